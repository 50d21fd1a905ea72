//! The kernel families of all operators, which a device compiles at start.

use device::cuda::Families;

/// All kernel families of operators.
pub static FAMILIES: Families = &[
    &super::accuracy::cuda::FAMILY,
    &super::activation::FAMILY,
    &super::add::FAMILY,
    &super::attention::cuda::FAMILY,
    &super::attention::cuda::FAMILY_F32,
    &super::attention::cuda::FAMILY_HOPPER_BACKWARD,
    &super::attention::cuda::FAMILY_HOPPER_FORWARD,
    &super::blocks::cuda::FAMILY,
    &super::cached_attention::cuda::FAMILY,
    &super::cast::FAMILY,
    &super::choose::cuda::FAMILY,
    &super::cross_entropy::cuda::FAMILY,
    &super::dropout::FAMILY,
    &super::embedding::cuda::FAMILY,
    &super::fill::FAMILY,
    &super::gate::FAMILY,
    &super::layer_norm::cuda::FAMILY,
    &super::linear::cuda::FAMILY,
    &super::linear_cross_entropy::cuda::FAMILY,
    &super::mse::FAMILY,
    &super::norm::FAMILY,
    &super::optimizer::FAMILY,
    &super::pointwise::cuda::FAMILY,
    &super::qk_norm::cuda::FAMILY,
    &super::rearrange::cuda::FAMILY,
    &super::reduce::cuda::FAMILY,
    &super::rms_norm::cuda::FAMILY,
    &super::rotary::cuda::FAMILY,
    &super::scale::FAMILY,
    &super::soft_cross_entropy::cuda::FAMILY,
    &super::softmax::cuda::FAMILY,
    &super::tree::FAMILY,
];
