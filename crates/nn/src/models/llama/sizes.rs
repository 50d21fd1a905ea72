//! Sizes of the family `llama`.

use keys::{Interval, Row, choice, section};
use tensor::ops::Activation;
use tensor::ops::attention::Heads;
use tensor::ops::rotary::{Frequencies, Scaling};

use crate::family::{MOST_EXTENT, MOST_LAYERS};
use crate::layers::LlamaBlockSizes;

/// Scaling of rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScaling {
    /// None.
    None,
    /// All frequencies are divided.
    Linear,
    /// As in Llama 3.1: low frequencies are divided.
    Llama3,
}

impl RopeScaling {
    /// Returns its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            RopeScaling::None => "none",
            RopeScaling::Linear => "linear",
            RopeScaling::Llama3 => "llama3",
        }
    }
}

section! {
    /// The sizes of a [`Llama`](super::Llama).
    #[derive(Copy)]
    pub struct LlamaSizes = "model" {
        /// Transformer blocks.
        layers: usize = Row::count(1, MOST_LAYERS).default("4");
        /// Query heads of attention.
        heads: usize = Row::count(1, MOST_EXTENT).default("4");
        /// Key and value heads, which consecutive query heads share; they divide the heads.
        key_value_heads: usize = Row::count(1, MOST_EXTENT)
            .derived("`heads`", |raw| Ok(raw.integer(LlamaSizes::heads)?.into()));
        /// Values in a token's vector.
        width: usize = Row::count(1, MOST_EXTENT).default("128");
        /// Values in a head, an even number.
        head_width: usize = Row::count(2, MOST_EXTENT).derived("`width` / `heads`", |raw| {
            Ok((raw.integer(LlamaSizes::width)? / raw.integer(LlamaSizes::heads)?).max(2).into())
        });
        /// Values between the feed-forward layers.
        feed_forward: usize = Row::count(1, MOST_EXTENT)
            .derived("8/3 of `width`, rounded up to a multiple of 32", |raw| {
                Ok((raw.integer(LlamaSizes::width)? * 8).div_ceil(3).next_multiple_of(32).into())
            });
        /// Tokens in a sequence.
        context: usize = Row::count(1, MOST_EXTENT).default("128");
        /// Tokens that exist; 0: as many as the tokenizer has.
        vocabulary: usize = Row::count(0, 1 << 31).default("0");
        /// Whether the output head uses the token embedding's table.
        tied: bool = Row::flag().default("false");
        /// Function of the feed-forward gate: SwiGLU has "silu", GeGLU "gelu" (tanh form) or "gelu-erf".
        activation: Activation = choice!(
            Activation, [Activation::Silu, Activation::Gelu, Activation::GeluErf]
        ).default("\"silu\"");
        /// Whether queries, keys and values have biases, as in Qwen2.
        qkv_bias: bool = Row::flag().default("false");
        /// Whether every query and key head is normalised before its rotation, as in Qwen3.
        qk_norm: bool = Row::flag().default("false");
        /// Probability of dropout in training: of embeddings, attention weights and residual branches.
        dropout: f64 = Row::number(Interval::Fraction).default("0.0");
        /// Scores of tokens are capped by c·tanh(x/c) with this c, as in Gemma 2; 0: they are not.
        logit_soft_cap: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// Pieces of the vocabulary that the loss computes scores in, one after another, so that they are
        /// never whole: less memory for a large vocabulary, and the head is computed twice. 1: all at once.
        loss_pieces: usize = Row::count(1, MOST_EXTENT).default("1");
        /// Added to mean squares in norms.
        norm_epsilon: f64 = Row::number(Interval::Positive).default("1e-5");
        /// Base of the rotary frequencies.
        rope_theta: f64 = Row::number(Interval::Positive).default("10000.0");
        /// Scaling of the rotary frequencies for long contexts.
        rope_scaling: RopeScaling = choice!(
            RopeScaling, [RopeScaling::None, RopeScaling::Linear, RopeScaling::Llama3]
        ).default("\"none\"");
        /// The divisor of scaled frequencies.
        rope_factor: f64 = Row::number(Interval::Positive).default("8.0");
        /// With "llama3": frequencies of at most so many turns in the original context are divided.
        rope_low_turns: f64 = Row::number(Interval::Positive).default("1.0");
        /// With "llama3": frequencies of at least so many turns in the original context stay.
        rope_high_turns: f64 = Row::number(Interval::Positive).default("4.0");
        /// With "llama3": tokens of the original context.
        rope_original_context: usize = Row::count(1, MOST_EXTENT).default("8192");
    }
}

impl LlamaSizes {
    /// Sizes of a block.
    pub(super) fn block(&self) -> LlamaBlockSizes {
        LlamaBlockSizes {
            width: self.width,
            heads: Heads { query: self.heads, key_value: self.key_value_heads, width: self.head_width },
            context: self.context,
            feed_forward: self.feed_forward,
            activation: self.activation,
            qkv_bias: self.qkv_bias,
            qk_norm: self.qk_norm,
            epsilon: self.norm_epsilon as f32,
            dropout: self.dropout,
        }
    }

    /// Frequencies of the rotary angles.
    pub(super) fn frequencies(&self) -> Frequencies {
        let factor = self.rope_factor;
        let scaling = match self.rope_scaling {
            RopeScaling::None => Scaling::None,
            RopeScaling::Linear => Scaling::Linear { factor },
            RopeScaling::Llama3 => Scaling::Llama3 {
                factor,
                low: self.rope_low_turns,
                high: self.rope_high_turns,
                context: self.rope_original_context,
            },
        };
        Frequencies { width: self.head_width, theta: self.rope_theta, scaling }
    }
}
