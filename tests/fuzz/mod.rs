//! Random inputs: configurations, damaged files, grids. A short run is part of every test run; with
//! `PLIMSOLL_LONG_TESTS=SECONDS` each fuzzer runs that long. Recordings are in `crates/memory/tests/fuzz.rs`,
//! kills in `tests/kills.rs`, and faults of MPI in `tests/mpi_faults.rs`.

mod checkpoints;
mod configurations;
mod grids;
mod runs;
