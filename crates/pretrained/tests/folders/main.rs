//! Folders of Hugging Face: numbers against those of transformers, round trips, and folders that are refused.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)] // a test panics to report a failure

mod numbers;
mod refused;
mod round_trip;
mod support;
