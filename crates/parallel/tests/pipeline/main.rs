//! Pipeline schedules: valid, with the papers' times and loads, drawn like the papers' figures,
//! and executed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod execution;
mod figures;
mod partition;
mod refused;
mod shapes;
mod sound;
mod timing;
