//! Tests of Hugging Face folders: comparison with transformers, round trips, and refused folders.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)] // a test panics to report a failure

mod numbers;
mod refused;
mod round_trip;
mod settings;
mod support;
