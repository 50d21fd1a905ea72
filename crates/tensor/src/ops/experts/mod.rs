//! The layers of experts: matmuls of groups of rows, each with the weight of its expert, and the moves of
//! rows between the order of tokens and that of experts.
//!
//! Weights of all experts are one matrix, `[experts · out, in]`. Groups of rows have any size, also 0; their
//! ends are in [`Routes::offsets`], on the device. No sum depends on the routing of other rows.
//!
//! [`Routes::offsets`]: super::routing::Routes::offsets

mod blocks;
pub(super) mod cuda;
pub mod fp8;
mod gate;
pub(super) mod hopper;
mod linear;
mod moves;
mod parts;

pub use super::gate::forward_again as gate_forward_again;
pub use blocks::{collect, spread};
pub use gate::{backward as gate_backward, forward as gate_forward};
pub use linear::{backward_bias, backward_input, backward_weight, forward, forward_again};
pub use moves::{combine, gather, sum_choices, weight_gradients};
pub use parts::AdaptedParts;
