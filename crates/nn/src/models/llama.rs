//! Llama and similar models: Mistral without a window, Qwen2, Qwen3, SmolLM2.

mod model;
mod sizes;

pub use model::Llama;
pub use sizes::{LlamaSizes, RopeScaling};

use device::DType;
use keys::RawValues;

use super::checks::{self, HeadWidth};
use crate::error::Result;
use crate::family::{Conditions, Examples, Family, ModelSpec, Searchable};
use crate::hugging_face::{HuggingFaceModel, llama as folder};
use crate::layers::Heads;
use crate::model::{Model, Stage};
use crate::parameters::Parameters;
use crate::recompute::Recompute;

/// The family `llama`.
pub const LLAMA: Family = Family::new::<LlamaSizes>("llama").of_tokens().with_hugging_face(folder::CONFIG);

impl ModelSpec for LlamaSizes {
    fn with_default_vocabulary(self, tokens: usize) -> Self {
        Self { vocabulary: if self.vocabulary == 0 { tokens } else { self.vocabulary }, ..self }
    }

    fn with_vocabulary_for(self, needed: usize, tokens: usize) -> Self {
        Self { vocabulary: if self.vocabulary < needed { tokens } else { self.vocabulary }, ..self }
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

    fn divided_dimensions(&self) -> std::result::Result<Vec<(&'static str, usize)>, (&'static str, String)> {
        checks::has_whole_loss(Self::loss_pieces, self.loss_pieces)?;
        let heads = (Self::key_value_heads, self.key_value_heads);
        let feed_forward = (Self::feed_forward, self.feed_forward);
        Ok(vec![heads, feed_forward, (Self::vocabulary, self.vocabulary)])
    }

    fn check(&self, raw: &RawValues, conditions: &Conditions) -> keys::Result<()> {
        self.check_heads(raw)?;
        let head = HeadWidth {
            value: self.head_width,
            from: format!("model.head_width is {}", self.head_width),
            keys: &[Self::head_width, Self::heads, Self::width],
        };
        head.check(raw, conditions.compute)?;
        let (low, high) = (self.rope_low_turns, self.rope_high_turns);
        if self.rope_scaling == RopeScaling::Llama3 && low >= high {
            let reason = format!("model.rope_low_turns = {low} is not below model.rope_high_turns = {high}");
            return Err(raw.conflict(&[Self::rope_low_turns, Self::rope_high_turns], reason));
        }
        checks::vocabulary(raw, conditions, self.vocabulary)?;
        self.check_bytes(raw, conditions.micro_batch_size)
    }

    fn build(&self, parameters: Parameters, stage: &Stage, recompute: Recompute) -> Result<Box<dyn Model>> {
        Ok(Box::new(Llama::new(parameters, self, stage)?.recomputing(recompute)))
    }

    fn cached_heads(&self) -> Option<Heads> {
        Some(self.block().heads)
    }

    fn hugging_face(&self) -> Option<HuggingFaceModel> {
        if self.logit_soft_cap > 0.0 {
            return None;
        }
        folder::model(&folder::Sizes {
            layers: self.layers,
            heads: self.heads,
            key_value_heads: self.key_value_heads,
            width: self.width,
            head_width: self.head_width,
            feed_forward: self.feed_forward,
            context: self.context,
            vocabulary: self.vocabulary,
            tied: self.tied,
            activation: self.activation.name(),
            qkv_bias: self.qkv_bias,
            qk_norm: self.qk_norm,
            norm_epsilon: self.norm_epsilon,
            rope_theta: self.rope_theta,
            rope_scaling: self.frequencies().scaling,
        })
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
        let tokens = checks::context_step(self.context);
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
    fn check_heads(&self, raw: &RawValues) -> keys::Result<()> {
        let Self { heads, key_value_heads, width, head_width, .. } = *self;
        if !heads.is_multiple_of(key_value_heads) {
            let reason =
                format!("model.key_value_heads = {key_value_heads} does not divide model.heads = {heads}");
            return Err(raw.conflict(&[Self::key_value_heads, Self::heads], reason));
        }
        if !raw.is_set(Self::head_width) && !width.is_multiple_of(heads) {
            let reason = format!("model.width = {width} is not a multiple of model.heads = {heads}");
            return Err(raw.conflict(&[Self::width, Self::heads], reason));
        }
        if !head_width.is_multiple_of(2) {
            let reason =
                format!("model.head_width = {head_width} is odd; rotary embeddings need an even one");
            return Err(raw.conflict(&[Self::head_width, Self::heads, Self::width], reason));
        }
        Ok(())
    }

    /// Refuses sizes whose bytes cannot be counted; this is no estimate of memory.
    fn check_bytes(&self, raw: &RawValues, micro_batch: usize) -> keys::Result<()> {
        let of_layers = (Self::layers, self.layers);
        let [of_width, of_heads] = [(Self::width, self.width), (Self::heads, self.heads)];
        let of_head = (Self::head_width, self.head_width);
        let of_hidden = (Self::feed_forward, self.feed_forward);
        let of_context = (Self::context, self.context);
        let of_vocabulary = (Self::vocabulary, self.vocabulary);
        let of_batch = ("train.micro_batch_size", micro_batch);
        checks::bytes(
            raw,
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
