//! Optimizers: their calls and groups of parameters.
#![allow(clippy::unwrap_used, missing_docs, reason = "in tests, a panic is the report of a failure")]

mod calls;
mod groups;
