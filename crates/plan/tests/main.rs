//! Tests of plans: memory, proposals, calls and times.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod common;
mod continuation;
mod repeats;
mod roles;
mod search;
mod settings;
mod sharding;
mod step_calls;
mod step_times;
mod too_large;
