//! Tests of training in this process: equal bits, planned bytes, resumed runs, and reports of differences.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "in tests, a panic is the report of a failure"
)]

mod buffers;
mod checkpoints;
mod collectives;
mod common;
mod compare;
mod divergence;
mod fuzz;
mod memory_figures;
mod phases;
mod recorded_muon;
mod recorded_training;
mod repetition;
mod runs;
mod spikes;
mod uses;
mod verification;
mod views;
