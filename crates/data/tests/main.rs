//! Tests of corpora, tokenizers, orders and images.
#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "in tests, a panic is the report of a failure"
)]

mod choices;
mod common;
mod corpus;
mod decoding;
mod formats;
mod hold_out;
mod images;
mod prefetch;
mod shards;
mod special_tokens;
mod synthetic;
mod templates;
mod transformers;
mod windows;
