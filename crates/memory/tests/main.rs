//! The allocator: invariants, recordings, settings.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod fuzz;
mod invariants;
mod measured;
mod replay;
mod scripts;
mod settings;
mod support;
