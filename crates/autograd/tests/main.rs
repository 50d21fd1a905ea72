//! The tape, its rules and recomputation.
#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "in tests, a panic is the report of a failure"
)]

mod collective;
mod common;
mod experts;
mod frozen;
mod general;
mod precision;
mod recompute;
mod tape;
