//! Memory of layers for sequences that grow token by token.

use autograd::SequenceState;
use device::{DType, Device};
use tensor::ops::cached_attention::{Cache, CachedHeads};
use tensor::ops::causal_convolution;
use tensor::ops::gated_delta_rule::DeltaHeads;
use tensor::ops::state_space_scan::StateHeads;

/// Memory of an operator for each sequence when text is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerCache {
    /// Keys and values of all tokens.
    Attention(CachedHeads),
    /// The last inputs of a causal convolution.
    Convolution {
        /// Number of tokens that an output reads.
        taps: usize,
        /// Number of channels.
        channels: usize,
    },
    /// The states of a scan of state spaces.
    States(StateHeads),
    /// The states of the gated delta rule.
    Delta(DeltaHeads),
}

impl LayerCache {
    /// Returns the memory of one of `parts` tensor lanes.
    #[must_use]
    pub fn divided(self, parts: usize) -> Self {
        match self {
            LayerCache::Attention(heads) => LayerCache::Attention(heads.divided(parts)),
            LayerCache::Convolution { taps, channels } => {
                LayerCache::Convolution { taps, channels: channels / parts }
            }
            LayerCache::States(heads) => LayerCache::States(heads.divided(parts)),
            LayerCache::Delta(heads) => LayerCache::Delta(heads.divided(parts)),
        }
    }

    /// Allocates the memory of `slots` sequences of at most `capacity` tokens.
    ///
    /// # Errors
    /// Heads that do not divide, a type that operators do not compute with, out of memory.
    pub fn allocate(
        &self,
        device: &Device,
        [slots, capacity]: [usize; 2],
        dtype: DType,
    ) -> tensor::Result<SequenceState> {
        Ok(match *self {
            LayerCache::Attention(heads) => {
                SequenceState::Attention(Cache::new(device, slots, heads, capacity, dtype)?)
            }
            LayerCache::Convolution { taps, channels } => {
                SequenceState::Recurrent(causal_convolution::state(device, slots, [taps, channels], dtype)?)
            }
            LayerCache::States(heads) => SequenceState::Recurrent(heads.allocate(device, slots)?),
            LayerCache::Delta(heads) => SequenceState::Recurrent(heads.allocate(device, slots)?),
        })
    }
}
