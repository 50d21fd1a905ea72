//! Tests of the program and its scripts as commands.
#![allow(clippy::panic, clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

mod attacks;
mod command;
mod common;
mod fine_tuning;
mod gpu;
mod launch;
mod pipeline;
mod planning;
mod preparation;
mod profile;
mod replay;
mod report;
mod sanitize;
mod scaling;
mod watching;
