//! Data parallelism with a reduction whose bits do not depend on the grid, and pipelines.
//!
//! The one idea: **a step's micro-batches are numbered, and so is the order in which their gradients are
//! added.** Lane l of `lanes` owns a contiguous range of micro-batches; within a lane gradients add up in
//! micro-batch order, and lanes are added in a balanced binary tree. A rank owns a contiguous range of lanes,
//! so the tree's lower levels lie within one rank and its upper levels between ranks: the same sum, in the
//! same order, for every number of ranks that divides the lanes.
//!
//! ```
//! use parallel::data::Lanes;
//! let lanes = Lanes::new(4, 8, 2)?; // 4 lanes of 8 micro-batches, on 2 ranks
//! assert_eq!((lanes.local, lanes.micro_batches()), (2, 4));
//! # Ok::<(), parallel::ParallelError>(())
//! ```
//!
//! [`pipeline`] represents pipeline schedules as data that is generated, validated, simulated and drawn, and
//! executes them.
//!
//! The crate does not know which model it runs.

pub mod data;
mod error;
pub mod pipeline;
mod shard;

pub use error::{ParallelError, Result};
pub use shard::Shard;
