//! Layers and models.
#![allow(clippy::panic, clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod buffers;
mod decoders;
mod later_tokens;
mod layers;
mod pieces;
