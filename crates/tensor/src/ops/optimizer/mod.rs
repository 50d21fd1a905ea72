//! Parameter updates from gradients, all parameters in one call, by one of several rules.
//!
//! [`begin`] counts an update and computes the coefficients that all elements share. [`update`] follows, once
//! or for some of the parameters at a time. [`change_rule`] computes the coefficients of another rule for the
//! parameters that follow. All read the learning rate, the factor of the gradients and the skip flag from a
//! [`StepState`](super::StepState) on the device. A rule is a file here, a struct of `kernels/optimizer.cu`,
//! and a variant of [`UpdateRule`]. Muon has two, between which matrices are orthogonalised.

mod adamw;
mod item;
mod lion;
mod listing;
mod muon;
mod piece;
mod quantised;
mod rounding;
mod rule;
mod sgd;
mod update;
mod written;

pub use item::Item;
pub(super) use listing::FAMILY;
pub use quantised::{BLOCK, blocks};
pub use rounding::Stream;
pub use rule::{StateTensor, UpdateRule};
pub use update::{begin, change_rule, update};
