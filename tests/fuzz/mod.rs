//! Fuzzers of configurations, damaged files and grids. A short run is part of every test run; with
//! `PLIMSOLL_LONG_TESTS=SECONDS` each fuzzer runs that long. Recordings are fuzzed in
//! `crates/memory/tests/fuzz.rs`, kills in `tests/kills.rs`, and MPI faults in `tests/mpi_faults.rs`.

mod checkpoints;
mod configurations;
mod grids;
mod runs;
