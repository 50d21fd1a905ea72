//! Every operator, through its public functions, compared with plain f64 code.
#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]

mod accuracy;
mod activation;
mod add;
mod affine_scan;
mod arriving;
mod attention;
mod attention_masks;
mod attention_pieces;
mod batch_norm;
mod block_codes;
mod blocks;
mod cached_attention;
mod cast;
mod causal_convolution;
mod choose;
mod convolution;
mod cross_entropy;
mod delta_gates;
mod divided_norm;
mod dropout;
mod embedding;
mod errors;
mod experts;
mod fill;
mod folded_convolution;
mod fp8_linear;
mod fp8_maxima;
mod fp8_parts;
mod gate;
mod gated_delta_rule;
mod gated_rms_norm;
mod general;
mod hash;
mod lanes;
mod latent_qkv;
mod layer_norm;
mod linear;
mod linear_cross_entropy;
mod loss_scale;
mod meta;
mod mse;
mod muon;
mod noise;
mod norm;
mod norms;
mod optimizers;
mod padded_rows;
mod pixels;
mod pooling;
mod preference;
mod qk_norm;
mod quantised_states;
mod random;
mod reference;
mod repeat;
mod rms_norm;
mod rotary;
mod router;
mod scale;
mod sigmoid_gate;
mod soft_cross_entropy;
mod state_space_scan;
mod support;
mod threads;
mod tree;
mod trial;
mod weight_average;

use trial::{Declaration, compare};

/// Lists the declarations of operators, and defines a test for each that compares its values.
macro_rules! operators {
    ($($operator:ident = $declared:path,)*) => {
        /// Every operator, for tests that run all of them.
        pub(crate) const OPERATORS: &[Declaration] = &[$((stringify!($operator), $declared)),*];

        mod values {
            use super::*;

            $(
                #[test]
                fn $operator() {
                    compare((stringify!($operator), $declared));
                }
            )*
        }
    };
}

operators! {
    activation = activation::declared,
    add = add::declared,
    affine_scan = affine_scan::declared,
    attention = attention::declared,
    attention_masks = attention_masks::declared,
    batch_norm = batch_norm::declared,
    cast = cast::declared,
    causal_convolution = causal_convolution::declared,
    convolution = convolution::declared,
    cross_entropy = cross_entropy::declared,
    delta_gates = delta_gates::declared,
    dropout = dropout::declared,
    embedding = embedding::declared,
    fill = fill::declared,
    folded_convolution = folded_convolution::declared,
    gate = gate::declared,
    gated_delta_rule = gated_delta_rule::declared,
    gated_rms_norm = gated_rms_norm::declared,
    latent_qkv = latent_qkv::declared,
    layer_norm = layer_norm::declared,
    feed_forward = linear::feed_forward,
    linear = linear::declared,
    linear_cross_entropy = linear_cross_entropy::declared,
    mse = mse::declared,
    noise = noise::declared,
    optimizers = optimizers::declared,
    pooling = pooling::declared,
    preference = preference::declared,
    qk_norm = qk_norm::declared,
    rms_norm = rms_norm::declared,
    rotary = rotary::declared,
    running_average = batch_norm::running_averages,
    scale = scale::declared,
    sigmoid_gate = sigmoid_gate::declared,
    soft_cross_entropy = soft_cross_entropy::declared,
    state_space_scan = state_space_scan::declared,
    matmul = general::matmul,
    pairs = general::pairs,
    pointwise = general::pointwise,
    rearrange = general::rearrange,
    reduce = general::reduce,
    softmax = general::softmax,
    weight_average = weight_average::declared,
}
