//! Every operator, through its public functions, compared with plain f64 code.
#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]

mod activation;
mod add;
mod arriving;
mod attention;
mod attention_masks;
mod cached_attention;
mod cast;
mod choose;
mod cross_entropy;
mod dropout;
mod embedding;
mod errors;
mod fill;
mod gate;
mod general;
mod layer_norm;
mod linear;
mod linear_cross_entropy;
mod meta;
mod mse;
mod norm;
mod norms;
mod optimizers;
mod qk_norm;
mod random;
mod reference;
mod repeat;
mod rms_norm;
mod rotary;
mod scale;
mod scenario;
mod scenario_general;
mod support;
mod threads;
mod tree;
