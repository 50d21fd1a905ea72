//! Devices: memory, streams, loops and matmuls.
#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "in tests, a panic is the report of a failure"
)]

mod device;
mod host_buffer;
mod host_loops;
mod marks;
mod matmul;
