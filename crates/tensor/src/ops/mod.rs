//! Every operator: plain functions that check, allocate their outputs and compute.
//!
//! Forward outputs are allocated as [`Category::Activation`], backward outputs as
//! [`Category::ActivationGradient`], and workspaces on a GPU as [`Category::Workspace`] by a rule beside each
//! operator. Nothing else is allocated: the CPU computes in fixed-size tiles on the stack, and convolutions
//! in a workspace. A result depends on the operands alone, because loops are divided by shape and partial
//! results are joined in order.
//!
//! In descriptions, `y (+)= x` means that x is added to y if the call accumulates, and else overwrites it.
//!
//! [`Category::Activation`]: device::Category::Activation
//! [`Category::ActivationGradient`]: device::Category::ActivationGradient
//! [`Category::Workspace`]: device::Category::Workspace

pub mod accuracy;
pub mod activation;
pub mod add;
pub mod affine_scan;
pub mod attention;
pub mod batch_norm;
pub mod block_codes;
pub mod blocks;
pub mod cached_attention;
pub mod cast;
pub mod causal_convolution;
mod check;
pub mod choose;
mod columns;
pub mod convolution;
pub mod cross_entropy;
pub mod delta_gates;
pub mod divided_norm;
pub mod dropout;
mod elementwise;
pub mod embedding;
pub mod experts;
mod families;
pub mod feed_forward;
pub mod fill;
pub mod folded_convolution;
pub mod fp8_linear;
pub mod fp8_parts;
pub mod gate;
pub mod gated_delta_rule;
pub mod gated_rms_norm;
mod gpu;
pub mod hash;
mod kernels;
pub mod latent_qkv;
pub mod layer_norm;
mod layout;
pub mod linear;
pub mod linear_cross_entropy;
pub mod loss_scale;
mod math;
pub mod matmul;
pub mod mse;
pub mod noise;
pub mod norm;
pub mod optimizer;
pub mod orthogonalise;
mod padding;
pub mod pixels;
pub mod pointwise;
pub mod pooling;
pub mod preference;
pub mod qk_norm;
pub mod random;
pub mod rearrange;
pub mod reduce;
pub mod rms_norm;
pub mod rotary;
pub mod rounded_sum;
pub mod router;
pub mod routing;
mod row_norm;
mod rows;
pub mod running_average;
pub mod scale;
pub mod sigmoid_gate;
mod site_words;
pub mod soft_cross_entropy;
pub mod softmax;
pub mod state_space_scan;
mod step_state;
mod table;
mod target;
pub mod tree;
pub mod weight_average;

pub use activation::Activation;
pub use check::DTYPES;
pub use families::FAMILIES;
pub use gpu::lanes;
pub use loss_scale::ScaleRule;
pub use step_state::StepState;
pub use table::Table;
pub use target::GradientTarget;
