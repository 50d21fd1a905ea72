//! Data parallelism with a reduction whose bits do not depend on the grid, and pipelines.
//!
//! The one idea: **a step's micro-batches are numbered, and so is the order in which their gradients are
//! added.** Lane l of `lanes` owns a contiguous range of micro-batches; within a lane gradients add up in
//! micro-batch order, and lanes are added in a binary tree. A rank owns a contiguous range of lanes, which is
//! a few subtrees: they are summed within the rank, and the rest of the tree between ranks. This is the same
//! sum, in the same order, for every number of ranks up to that of lanes.
//!
//! ```
//! use parallel::data::{Assignment, Lanes};
//! let runs = Assignment::contiguous(4, 3).with_lanes_of(2); // 4 lanes of 8 micro-batches, on 3 ranks
//! let lanes = Lanes::new(runs, 0)?;
//! assert_eq!((lanes.local(), lanes.micro_batches(), lanes.parts()), (2, 4, 1));
//! # Ok::<(), parallel::ParallelError>(())
//! ```
//!
//! [`pipeline`] represents pipeline schedules as data that is generated, validated, simulated and drawn, and
//! executes them.
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
