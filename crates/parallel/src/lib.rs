//! The grid of ranks, data parallelism with a reduction whose bits do not depend on the grid, and pipelines.
//!
//! The one idea: **a step's micro-batches are numbered, and so is the order in which their gradients are
//! added.** Lane l of `lanes` owns a contiguous range of micro-batches; within a lane gradients add up in
//! micro-batch order, and lanes are added in a balanced binary tree. A rank owns a contiguous range of lanes,
//! so the tree's lower levels lie within one rank and its upper levels between ranks: the same sum, in the
//! same order, for every number of ranks that divides the lanes.
//!
//! ```
//! use parallel::{Axis, RankGrid};
//! let grid = RankGrid::new(&[(Axis::Data, 2), (Axis::Pipeline, 2)], 3)?; // the last of 2 × 2 ranks
//! assert_eq!(grid.group(Axis::Data).ranks, [1, 3]); // ranks with the same stage
//! # Ok::<(), parallel::ParallelError>(())
//! ```
//!
//! [`pipeline`] represents pipeline schedules as data that is generated, validated, simulated and drawn, and
//! executes them. [`Planes`] gives the transports of a rank by axis.
//!
//! The crate does not know which model it runs.

pub mod data;
mod error;
mod grid;
pub mod pipeline;
mod planes;
mod shard;

pub use error::{ParallelError, Result};
pub use grid::{Axis, GridShape, Group, RankGrid};
pub use planes::{PeerRegion, Planes};
pub use shard::Shard;
