//! Data parallelism and pipelines.
#![allow(clippy::panic, clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod pipeline;
mod reduction;
mod weight_units;
