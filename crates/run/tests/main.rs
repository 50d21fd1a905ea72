//! Tests of whole runs, from their data to their results.
#![allow(clippy::panic, clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod data;
mod images;
