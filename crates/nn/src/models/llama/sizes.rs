//! The family `llama`: its keys and their checks.

use std::sync::Arc;

use device::{DType, Device};
use keys::{Given, Interval, Key, Row, Section, Value, choice, section};
use tensor::ops::Activation;
use tensor::ops::attention::Heads;
use tensor::ops::rotary::{Frequencies, Scaling};

use super::super::checks::{self, HeadWidth};
use super::Llama;
use crate::error::Result;
use crate::family::{Conditions, Examples, Family, MOST_EXTENT, MOST_LAYERS, ModelSpec, Searchable};
use crate::layers::LlamaBlockSizes;
use crate::model::{Model, Stage};
use crate::recompute::Recompute;

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
    /// The sizes of a [`Llama`].
    #[derive(Copy)]
    pub struct LlamaSizes = "model" {
        /// Transformer blocks.
        layers: usize = Row::count(1, MOST_LAYERS).default("4");
        /// Query heads of attention.
        heads: usize = Row::count(1, MOST_EXTENT).default("4");
        /// Key and value heads, which consecutive query heads share; they divide the heads.
        key_value_heads: usize = Row::count(1, MOST_EXTENT)
            .derived("`heads`", |given| Ok(given.integer(LlamaSizes::heads)?.into()));
        /// Values in a token's vector.
        width: usize = Row::count(1, MOST_EXTENT).default("128");
        /// Values in a head, an even number.
        head_width: usize = Row::count(2, MOST_EXTENT).derived("`width` / `heads`", |given| {
            Ok((given.integer(LlamaSizes::width)? / given.integer(LlamaSizes::heads)?).max(2).into())
        });
        /// Values between the feed-forward layers.
        feed_forward: usize = Row::count(1, MOST_EXTENT)
            .derived("8/3 of `width`, rounded up to a multiple of 32", |given| {
                Ok((given.integer(LlamaSizes::width)? * 8).div_ceil(3).next_multiple_of(32).into())
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

/// Contexts are searched in multiples of this where the configured one is a multiple.
const CONTEXT_STEP: usize = 64;

/// The family `llama`.
#[derive(Debug)]
pub struct LlamaFamily;

/// The family `llama`.
pub static LLAMA: LlamaFamily = LlamaFamily;

impl Family for LlamaFamily {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn keys(&self) -> Vec<&'static Key> {
        LlamaSizes::keys()
    }

    fn takes_tokens(&self) -> bool {
        true
    }

    fn read(&self, given: &Given, tokens: usize) -> keys::Result<Arc<dyn ModelSpec>> {
        let sizes = LlamaSizes::read(given)?;
        let vocabulary = if sizes.vocabulary == 0 { tokens } else { sizes.vocabulary };
        Ok(Arc::new(LlamaSizes { vocabulary, ..sizes }))
    }
}

impl ModelSpec for LlamaSizes {
    fn values(&self) -> Vec<Value> {
        Section::values(self)
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn layers_key(&self) -> &'static str {
        Self::layers
    }

    fn examples(&self) -> Examples {
        Examples::Tokens { vocabulary: self.vocabulary, context: self.context }
    }

    fn check(&self, given: &Given, conditions: &Conditions) -> keys::Result<()> {
        self.check_heads(given)?;
        let head = HeadWidth {
            value: self.head_width,
            from: format!("model.head_width is {}", self.head_width),
            keys: &[Self::head_width, Self::heads, Self::width],
        };
        head.check(given, conditions.compute)?;
        let (low, high) = (self.rope_low_turns, self.rope_high_turns);
        if self.rope_scaling == RopeScaling::Llama3 && low >= high {
            let reason = format!("model.rope_low_turns = {low} is not below model.rope_high_turns = {high}");
            return Err(given.conflict(&[Self::rope_low_turns, Self::rope_high_turns], reason));
        }
        checks::vocabulary(given, conditions, self.vocabulary)?;
        self.check_bytes(given, conditions.micro_batch_size)
    }

    fn build(
        &self,
        device: &Device,
        stage: &Stage,
        seed: u64,
        dtype: DType,
        recompute: Recompute,
    ) -> Result<Box<dyn Model>> {
        Ok(Box::new(Llama::new(device, self, stage, seed, dtype)?.recomputing(recompute)))
    }

    fn summary(&self) -> String {
        let Self { layers, heads, key_value_heads, width, context, .. } = self;
        let heads = match heads == key_value_heads {
            true => format!("{heads} heads"),
            false => format!("{heads}/{key_value_heads} heads"),
        };
        format!("Llama, {layers} layers, width {width}, {heads}, context {context}")
    }

    fn searchable(&self) -> Vec<Searchable> {
        let alone = |_: usize, _: usize| Vec::new();
        let tokens = if self.context.is_multiple_of(CONTEXT_STEP) { CONTEXT_STEP } else { 1 };
        vec![
            Searchable { key: Self::layers, value: self.layers, step: 1, follows: alone },
            Searchable { key: Self::context, value: self.context, step: tokens, follows: alone },
        ]
    }

    fn advice(&self, compute: DType) -> Option<String> {
        checks::vocabulary_advice(self.vocabulary, compute)
    }
}

impl LlamaSizes {
    /// Sizes of a block.
    pub(super) fn block(&self) -> LlamaBlockSizes {
        LlamaBlockSizes {
            width: self.width,
            heads: Heads { query: self.heads, key_value: self.key_value_heads, width: self.head_width },
            feed_forward: self.feed_forward,
            activation: self.activation,
            qkv_bias: self.qkv_bias,
            qk_norm: self.qk_norm,
            epsilon: self.norm_epsilon as f32,
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

    fn check_heads(&self, given: &Given) -> keys::Result<()> {
        let Self { heads, key_value_heads, width, head_width, .. } = *self;
        if !heads.is_multiple_of(key_value_heads) {
            let reason =
                format!("model.key_value_heads = {key_value_heads} does not divide model.heads = {heads}");
            return Err(given.conflict(&[Self::key_value_heads, Self::heads], reason));
        }
        if !given.is_given(Self::head_width) && !width.is_multiple_of(heads) {
            let reason = format!("model.width = {width} is not a multiple of model.heads = {heads}");
            return Err(given.conflict(&[Self::width, Self::heads], reason));
        }
        if !head_width.is_multiple_of(2) {
            let reason = format!("model.head_width = {head_width} is odd, and its halves turn together");
            return Err(given.conflict(&[Self::head_width, Self::heads, Self::width], reason));
        }
        Ok(())
    }

    /// Keeps sizes within what can be counted; this is no estimate of memory.
    fn check_bytes(&self, given: &Given, micro_batch: usize) -> keys::Result<()> {
        let of_layers = (Self::layers, self.layers);
        let [of_width, of_heads] = [(Self::width, self.width), (Self::heads, self.heads)];
        let of_head = (Self::head_width, self.head_width);
        let of_hidden = (Self::feed_forward, self.feed_forward);
        let of_context = (Self::context, self.context);
        let of_vocabulary = (Self::vocabulary, self.vocabulary);
        let of_batch = ("train.micro_batch_size", micro_batch);
        checks::bytes(
            given,
            &[
                ("the token embedding", 1, &[of_width, of_vocabulary]),
                ("the attention weights", 4, &[of_layers, of_width, of_heads, of_head]),
                ("the feed-forward weights", 3, &[of_layers, of_width, of_hidden]),
                ("a micro-batch's logits", 1, &[of_context, of_vocabulary, of_batch]),
                ("a micro-batch's attention", 8, &[of_layers, of_heads, of_head, of_context, of_batch]),
                ("a micro-batch's feed-forward", 4, &[of_layers, of_hidden, of_context, of_batch]),
            ],
        )
    }
}
