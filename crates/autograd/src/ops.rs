//! Operators on a tape. Each calls the forward function of `tensor` and records its backward rule.

mod activation;
mod adapter;
mod add;
mod attention;
mod batch_norm;
mod cast;
mod causal_convolution;
mod collective;
mod convolution;
mod cross_entropy;
mod delta_gates;
mod divided_rms_norm;
mod dropout;
mod embedding;
mod expert_adapter;
mod experts;
mod feed_forward;
mod folded_convolution;
mod fp8_linear;
mod gated_delta_rule;
mod gated_feed_forward;
mod gated_rms_norm;
mod gather;
mod join_losses;
mod latent_attention;
mod latent_qkv;
mod layer_norm;
mod linear;
mod linear_cross_entropy;
mod matmul;
mod mse;
mod noise;
mod norm_rule;
mod parameter;
mod piece_states;
mod pointwise;
mod pooling;
mod qk_norm;
mod rearrange;
mod reduce;
mod rms_norm;
mod rotary;
mod router;
mod routing;
mod row_linear;
mod row_qk_norm;
mod share_groups;
mod sigmoid_gate;
mod site;
mod softmax;
mod state_space_scan;

pub use activation::{ActivationRule, activation};
pub use adapter::{AdaptedLinearRule, Adapter, adapted_linear};
pub use add::{AddRule, add};
pub use attention::{
    AttentionMeasures, AttentionRule, attends_jointly, attention, attention_with_sinks, rotated_attention,
};
pub use batch_norm::{BatchNorm, BatchNormRule, Statistics, batch_norm};
pub use cast::{CastRule, autocast, cast};
pub use causal_convolution::{CausalConvolution, CausalConvolutionRule, causal_convolution};
pub use collective::{Collective, CollectiveRule, all_gather, all_reduce, exchange, reduce_scatter};
pub use convolution::{ConvolutionRule, convolution};
pub use cross_entropy::{
    CrossEntropyRule, cross_entropy, cross_entropy_of_scores, sum_of_pieces, sum_of_shares,
};
pub use delta_gates::{DeltaGates, DeltaGatesRule, delta_gates};
pub use divided_rms_norm::{DividedRmsNormRule, NormSpan, divided_rms_norm};
pub use dropout::{Dropout, DropoutRule, dropout};
pub use embedding::{EmbeddingRule, Positions, TokenTable, embedding};
pub use expert_adapter::ExpertAdapter;
pub use experts::{ExpertWeights, ExpertsRule, experts};
pub use feed_forward::{FeedForwardRule, FeedForwardWeights, feed_forward};
pub use folded_convolution::folded_convolution;
pub use fp8_linear::{Fp8Linear, Fp8LinearRule, Fp8Weight, fp8_linear};
pub use gated_delta_rule::{GatedDeltaRule, gated_delta_rule};
pub use gated_feed_forward::{GatedFeedForwardRule, GatedFeedForwardWeights, gated_feed_forward};
pub use gated_rms_norm::{GatedRmsNormRule, gated_rms_norm};
pub use gather::{GatherRule, gather};
pub use join_losses::{JoinLossesRule, join_losses};
pub use latent_attention::LatentLayer;
pub use latent_qkv::{LatentQkvRule, latent_qkv};
pub use layer_norm::{layer_norm, residual_layer_norm};
pub use linear::{LinearRule, PartialSums, linear, padded_linear, partial_linear};
pub use linear_cross_entropy::{LinearCrossEntropyRule, linear_cross_entropy};
pub use matmul::{MatmulRule, matmul, matmul_transposed};
pub use mse::{MseRule, mse};
pub use noise::{Noise, NoiseRule, noise};
pub use norm_rule::NormRule;
pub use parameter::{ParameterRule, parameter};
pub use pointwise::{PairRule, PointwiseRule, divide, multiply, pair, pointwise, subtract};
pub use pooling::{AveragePoolRule, MaxPoolRule, average_pool, global_average_pool, max_pool};
pub use qk_norm::{QkNormRule, QkNormWeights, qk_norm};
pub use rearrange::{RearrangeRule, concatenate, reshape, slice, split, transpose};
pub use reduce::{MaximumRule, SumRule, maximum, mean, sum};
pub use rms_norm::{residual_rms_norm, rms_norm};
pub use rotary::{Rotary, RotaryRule, rotary};
pub use router::{RouterRule, RouterWeights, router};
pub use routing::{RouterState, RoutingRule, routing};
pub use row_linear::{RowLinearRule, row_linear};
pub use row_qk_norm::{RowQkNormRule, row_qk_norm};
pub use share_groups::{ShareGroupsRule, share_groups};
pub use sigmoid_gate::{SigmoidGateRule, sigmoid_gate};
pub use softmax::{SoftmaxRule, softmax};
pub use state_space_scan::{StateSpaceScan, StateSpaceScanRule, state_space_scan};
pub use tensor::ops::convolution::ConvolutionOptions;
pub use tensor::ops::experts::{AdaptedParts, ExpertFunction};
pub use tensor::ops::fp8_linear::{Input as Fp8Input, Recipe as Fp8Recipe};
pub use tensor::ops::layer_norm::Settings as NormSettings;
pub use tensor::ops::linear_cross_entropy::Settings as LinearCrossEntropy;
pub use tensor::ops::pointwise::{Pair, Pointwise};
pub use tensor::ops::pooling::Windows;
pub use tensor::ops::state_space_scan::StateHeads;

use device::DType;
use tensor::Tensor;

use crate::error::{AutogradError, Result};
use crate::rule::ValueGradients;
use crate::weight::Weight;

/// Returns the gradient of a rule's single output.
pub(crate) fn only(outputs: ValueGradients) -> Result<Tensor> {
    outputs.into_iter().next().flatten().ok_or(AutogradError::NotRecorded)
}

/// Returns the values of an optional weight in `dtype` ([`Weight::values`]).
pub(crate) fn values_of(weight: Option<&Weight>, dtype: DType) -> tensor::Result<Option<Tensor>> {
    weight.map(|weight| weight.values(dtype)).transpose()
}

/// Adds the operator's name to a tensor error of a forward call.
pub(crate) fn named<T>(operator: &str, result: tensor::Result<T>) -> Result<T> {
    result.map_err(|source| AutogradError::Operator { operator: operator.to_owned(), source })
}
