//! Every operator: plain functions that check, allocate their outputs and compute.
//!
//! Forward outputs are allocated as [`Category::Activation`], backward outputs as
//! [`Category::ActivationGradient`], and nothing else is: scratch is fixed-size tiles on the stack. A result
//! depends on the operands alone, because loops are cut into pieces by shape and pieces are joined in order.
//!
//! [`Category::Activation`]: device::Category::Activation
//! [`Category::ActivationGradient`]: device::Category::ActivationGradient

pub mod activation;
pub mod adamw;
pub mod add;
pub mod attention;
mod check;
mod columns;
pub mod cross_entropy;
pub mod embedding;
pub mod fill;
pub mod layer_norm;
pub mod linear;
mod math;
pub mod mse;
pub mod norm;
pub mod random;
mod rows;
pub mod scale;
pub mod sgd;
mod target;

pub use activation::Activation;
pub use target::GradientTarget;
