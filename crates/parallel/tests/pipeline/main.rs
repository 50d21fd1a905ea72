//! Pipeline schedules: sound, as fast as the papers say, holding what they say, drawn as their figures
//! are; and executed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod execution;
mod figures;
mod partition;
mod refused;
mod shapes;
mod sound;
mod timing;
