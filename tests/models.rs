//! Tests of using trained models: text and scores, Hugging Face folders, and adapters.
#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "in tests, a panic is the report of a failure"
)]

mod adapters;
mod common;
mod families;
mod generation;
mod hugging_face;
