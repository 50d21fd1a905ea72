//! Folders of Hugging Face: numbers against those of transformers, round trips, and folders that are refused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod numbers;
mod refused;
mod round_trip;
mod support;
