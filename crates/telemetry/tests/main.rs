//! Tests of statistics, logs, tables and files of runs.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod log;
mod run_files;
mod scaling;
mod statistics;
