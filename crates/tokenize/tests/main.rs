//! Tests of tokenizing files, some against Python.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod python;
#[cfg(feature = "parquet")]
mod tokenize;
