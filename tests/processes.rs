//! Tests of ranks as processes: results, failures, kills and restarts.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "in tests, a panic is the report of a failure"
)]

mod common;
mod failures;
#[cfg(feature = "mpi")]
mod hosts;
mod kills;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "mpi")]
mod mpi_faults;
#[cfg(feature = "mpi")]
mod restarts;
mod tcp;
