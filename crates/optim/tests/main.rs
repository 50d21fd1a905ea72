//! Optimizers: their calls, groups of parameters and averages of weights.
#![allow(clippy::unwrap_used, missing_docs, reason = "in tests, a panic is the report of a failure")]

mod averages;
mod calls;
mod groups;
