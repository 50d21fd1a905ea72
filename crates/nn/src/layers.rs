//! Layers: structs that hold parameters and run operators on them.

mod adapter;
mod attention;
mod block;
mod block_norm;
mod block_tail;
mod carried;
mod dropout;
mod edges;
mod embedding;
mod feed_forward;
mod gated_delta;
mod gated_feed_forward;
mod gpt_block;
mod latent_qkv;
mod latents;
mod layer_embeddings;
mod layer_norm;
mod linear;
mod llama_block;
mod mixture;
mod multiplier;
mod prediction_module;
mod qk_norm;
mod residual;
mod rms_norm;
mod rotary_attention;
mod row_adapter;
mod shared_key_values;
mod short_convolution;
mod stack;
mod state_space;
mod token_head;
mod token_mixer;
mod value_options;

pub use attention::CausalSelfAttention;
pub use autograd::ops::StateHeads;
pub use block::Block;
pub use block_norm::{BlockNorm, NormKind, NormOptions};
pub use carried::{CarriedColumns, CarriedKeyValues, StageEmbeddings};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use feed_forward::FeedForward;
pub use gated_delta::{DeltaLayout, GatedDelta, GatedDeltaSizes};
pub use gated_feed_forward::GatedFeedForward;
pub use gpt_block::{GptBlock, GptBlockSizes};
pub use latent_qkv::LatentQkv;
pub use latents::{LatentSizes, Latents};
pub use layer_embeddings::LayerEmbeddings;
pub use layer_norm::LayerNorm;
pub use linear::{Linear, short};
pub use llama_block::{LlamaBlock, LlamaBlockSizes, NormPosition};
pub use mixture::{BlockFeedForward, Mixture, MixtureSizes};
pub use multiplier::Multiplier;
pub use prediction_module::PredictionModule;
pub use qk_norm::{QkNorm, QkNormSpan};
pub use residual::{Norm, Residual};
pub use rms_norm::RmsNorm;
pub use rotary_attention::{QkvLayer, RotaryAttention, RotaryPositions, RotaryTable};
pub use shared_key_values::{KeyValueRole, SharedKeyValues};
pub use short_convolution::{ShortConvolution, ShortConvolutionSizes};
pub use stack::{Layer, Stack, Stream};
pub use state_space::{StateSpace, StateSpaceSizes};
pub use tensor::ops::Activation;
pub use tensor::ops::attention::{Heads, Qkv};
pub use tensor::ops::cached_attention::{CachedHeads, CachedValues};
pub use tensor::ops::gated_rms_norm::GateFunction;
pub use tensor::ops::rotary::{Frequencies, Scaling};
pub use tensor::ops::routing::{Routing, ScoreFunction};
pub use token_head::TokenHead;
pub use token_mixer::TokenMixer;

use autograd::Tape;

use crate::error::Result;

/// Runs `body` within module `name`: allocations are labelled with the name, and errors contain it.
///
/// # Errors
/// Errors of `body`.
pub fn within<T>(tape: &Tape, name: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let _scope = tape.device().module(name);
    body().map_err(|error| error.inside(name))
}
