//! Layers of experts: matmuls of groups of rows, each group with the weight of its expert, and copies of rows
//! between the order of tokens and the order of experts.
//!
//! The weights of all experts are one matrix, `[experts · out, in]`. A group has any number of rows, also 0;
//! its end is in [`Routes::offsets`], on the device. No sum depends on the routing of other rows.
//!
//! [`Routes::offsets`]: super::routing::Routes::offsets

mod blocks;
pub(super) mod cuda;
pub(super) mod divided_sums;
pub mod fp8;
mod function;
mod gate;
pub(super) mod hopper;
mod linear;
mod moves;
mod parts;
mod plain;

pub use blocks::{collect, spread};
pub use function::ExpertFunction;
pub use gate::{backward as gate_backward, forward as gate_forward, forward_again as gate_forward_again};
pub use linear::{backward_bias, backward_input, backward_weight, forward, forward_again};
pub use moves::{combine, gather, sum_choices, weight_gradients};
pub use parts::AdaptedParts;
