//! Data parallelism with a reduction whose bits do not depend on the grid, and pipeline parallelism.
//!
//! The one idea: **a step's micro-batches are numbered, and so is the order in which their gradients are
//! added.** Lane l of `lanes` owns a contiguous range of micro-batches. Within a lane, gradients are added in
//! micro-batch order; lanes are added in a binary tree. A rank owns a contiguous range of lanes, which forms
//! a few subtrees. These are summed within the rank, and the remaining tree between ranks. The sum is
//! therefore the same, in the same order, on any number of ranks up to the number of lanes.
//!
//! ```
//! use parallel::data::{Assignment, Lanes};
//! let runs = Assignment::contiguous(4, 3).with_lanes_of(2); // 4 lanes of 8 micro-batches, on 3 ranks
//! let lanes = Lanes::new(runs, 0)?;
//! assert_eq!((lanes.local(), lanes.micro_batches(), lanes.parts()), (2, 4, 1));
//! # Ok::<(), parallel::ParallelError>(())
//! ```
//!
//! [`pipeline`] represents pipeline schedules as data: it generates, validates, simulates, draws and executes
//! them.
//!
//! The crate does not know which model it runs. [`example`] is a whole program that trains on two ranks.

pub mod data;
mod error;
pub mod pipeline;
mod shard;

/// A small GPT that two ranks train, in one file: `examples/two_ranks.rs`.
///
#[doc = concat!("```no_run\n", include_str!("../examples/two_ranks.rs"), "```")]
#[cfg(doc)]
pub mod example {}

pub use error::{ParallelError, Result};
pub use shard::Shard;
