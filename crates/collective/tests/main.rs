//! Communication between ranks: results, failures, and what they cost.
#![allow(clippy::panic, clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod common;
mod conformance;
mod counted;
mod divided;
mod failure;
mod nccl;
mod process_failure;
mod properties;
mod shared_gpu;
mod tcp_start;
