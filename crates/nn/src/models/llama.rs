//! Llama and similar models: Mistral, Qwen, Gemma, Phi, OLMo, SmolLM, Granite, which differ in options of
//! their layers.

mod block;
mod canonical;
mod checks;
pub(crate) mod folder;
mod frequencies;
mod heads;
mod latents;
mod later_tokens;
mod linear_attention;
mod mixers;
mod mixture;
mod model;
mod placements;
mod positions;
mod sharing;
mod sizes;

pub use model::Llama;
pub use sizes::{LlamaSizes, RopeScaling};

use keys::RawValues;

use super::checks::{self as sizes_checks, HeadWidth};
use crate::error::{NnError, Result};
use crate::family::{Conditions, Examples, Experts, Family, ModelSpec, Searchable};
use crate::hugging_face::HuggingFaceModel;
use crate::layer_cache::LayerCache;
use crate::layers::{CachedHeads, Heads, QkNormSpan};
use crate::model::{Model, Stage};
use crate::parameters::Parameters;
use crate::placements::PlacementTable;
use crate::recompute::Recompute;
use crate::width_scaling::WidthScaling;
use mixers::SequenceMixer;

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

    fn width_scaling(&self) -> WidthScaling {
        self.scaling_by_width()
    }

    fn layers_key(&self) -> &'static str {
        Self::layers
    }

    fn examples(&self) -> Examples {
        Examples::Tokens { vocabulary: self.vocabulary, context: self.context }
    }

    fn experts(&self) -> Option<Experts> {
        let is_corrected = self.router_correction;
        self.has_mixture().then_some(Experts { key: Self::experts, is_corrected })
    }

    fn placements(&self) -> PlacementTable {
        self.placement_table()
    }

    fn divided_dimensions(&self, lanes: usize) -> Vec<(&'static str, usize)> {
        let heads = (Self::key_value_heads, self.key_value_heads);
        let linear = self.has_mixer(SequenceMixer::LinearAttention);
        let linear = linear.then_some((Self::linear_key_heads, self.linear_key_heads));
        let feed_forward = (Self::feed_forward, self.feed_forward);
        let of_shared = (Self::shared_layers_feed_forward, self.shared_layers_feed_forward);
        let full_heads = (Self::full_key_value_heads, self.full_key_value_heads);
        let mut dimensions = vec![heads, full_heads, (Self::vocabulary, self.vocabulary)];
        dimensions.extend(self.divided_mixers(lanes));
        dimensions.extend(linear);
        if self.has_dense_layers() {
            dimensions.extend([feed_forward, of_shared]);
        }
        if self.has_mixture() {
            dimensions.push((Self::expert_width, self.expert_width));
            dimensions.push((Self::shared_expert_width, self.shared_expert_width));
        }
        dimensions
    }

    fn check(&self, raw: &RawValues, conditions: &Conditions) -> keys::Result<()> {
        self.check_heads(raw)?;
        self.check_latents(raw)?;
        self.check_full_heads(raw)?;
        self.check_sharing(raw)?;
        self.check_options(raw)?;
        let head = HeadWidth {
            value: self.head_width,
            from: format!("model.head_width is {}", self.head_width),
            keys: &[Self::head_width, Self::heads, Self::width],
        };
        head.check(raw, conditions.compute)?;
        let values = HeadWidth {
            value: self.value_width,
            from: format!("model.value_width is {}", self.value_width),
            keys: &[Self::value_width, Self::head_width],
        };
        values.check(raw, conditions.compute)?;
        let full = HeadWidth {
            value: self.full_head_width,
            from: format!("model.full_head_width is {}", self.full_head_width),
            keys: &[Self::full_head_width, Self::head_width],
        };
        full.check(raw, conditions.compute)?;
        self.check_base(raw)?;
        self.check_layers(raw)?;
        self.check_rope(raw)?;
        self.check_experts(raw)?;
        self.check_bytes(raw, conditions.micro_batch_size)
    }

    fn build(&self, parameters: Parameters, stage: &Stage, recompute: Recompute) -> Result<Box<dyn Model>> {
        if self.shared_layers > 0 && recompute != Recompute::NONE {
            let text = format!(
                "model.shared_layers = {} has no recomputation (memory.recompute): layers use keys and values \
                 of others",
                self.shared_layers
            );
            return Err(NnError::Sizes(text));
        }
        Ok(Box::new(Llama::new(parameters, self, stage)?.recomputing(recompute)))
    }

    fn without_modules(&self) -> Option<String> {
        self.option_without_modules()
    }

    fn cached_heads(&self) -> Option<Heads> {
        Some(self.attention_heads())
    }

    fn widest_convolution(&self) -> Option<(&'static str, usize)> {
        self.convolutions().into_iter().max_by_key(|(_, width)| *width)
    }

    fn cache(&self) -> Option<CachedHeads> {
        Some(self.cached())
    }

    fn layer_caches(&self, layer: usize) -> Vec<Vec<LayerCache>> {
        self.mixer_caches(layer)
    }

    fn hugging_face(&self) -> Option<HuggingFaceModel> {
        folder::model(self, 0)
    }

    fn hugging_face_with(&self, modules: usize) -> Option<HuggingFaceModel> {
        folder::model(self, modules)
    }

    fn summary(&self) -> String {
        let Self { layers, heads, key_value_heads, width, context, window, .. } = self;
        let heads = match heads == key_value_heads {
            true => format!("{heads} heads"),
            false => format!("{heads}/{key_value_heads} heads"),
        };
        let window = if *window > 0 { format!(", window {window}") } else { String::new() };
        let latents = match self.latent_width {
            0 => String::new(),
            latents => format!(" with latents of {latents}"),
        };
        let experts = match self.has_mixture() {
            true => format!(", {} of {} experts", self.experts_per_token, self.experts),
            false => String::new(),
        };
        let attention = format!("{heads}{latents}");
        format!("Llama, {layers} layers, width {width}, {attention}{experts}, context {context}{window}")
    }

    fn searchable(&self) -> Vec<Searchable> {
        let alone = |_: usize, _: usize| Vec::new();
        let tokens = sizes_checks::context_step(self.context);
        vec![
            Searchable { key: Self::layers, value: self.layers, step: 1, follows: alone },
            Searchable { key: Self::context, value: self.context, step: tokens, follows: alone },
        ]
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
        let of_heads = self.qk_norm && self.qk_norm_span == QkNormSpan::Head;
        if of_heads && self.value_width != head_width {
            let reason = format!(
                "model.qk_norm needs values as wide as keys, and model.value_width = {} is not \
                 model.head_width = {head_width}",
                self.value_width
            );
            return Err(raw.conflict(&[Self::value_width, Self::qk_norm], reason));
        }
        if self.qk_norm && self.qk_norm_last && !of_heads {
            let reason =
                "model.qk_norm_last = true is built for norms of heads, and model.qk_norm_span is \"all\"";
            return Err(raw.conflict(&[Self::qk_norm_last, Self::qk_norm_span], reason.to_owned()));
        }
        if !head_width.is_multiple_of(2) {
            let reason =
                format!("model.head_width = {head_width} is odd; rotary embeddings need an even one");
            return Err(raw.conflict(&[Self::head_width, Self::heads, Self::width], reason));
        }
        Ok(())
    }

    /// Rejects a base width of a model with layers that it has no rules for.
    fn check_base(&self, raw: &RawValues) -> keys::Result<()> {
        let keys = [Self::base_width, Self::base_head_width];
        sizes_checks::check_base(raw, keys, [self.base_width, self.base_head_width])?;
        let others = [(Self::experts, self.experts), (Self::latent_width, self.latent_width)];
        let linear = self.has_mixer(SequenceMixer::LinearAttention).then_some(self.linear_key_heads);
        let linear = linear.map(|heads| (Self::linear_key_heads, heads));
        let other = others
            .into_iter()
            .chain(linear)
            .find(|(_, size)| *size > 0 && !self.scaling_by_width().is_none());
        let Some((key, size)) = other else { return Ok(()) };
        let reason = format!("model.base_width has no rules for {key} = {size}");
        Err(raw.conflict(&[Self::base_width, key], reason))
    }

    /// Rejects inconsistent layer types, and an unknown padding token or folder family.
    fn check_layers(&self, raw: &RawValues) -> keys::Result<()> {
        self.check_mixers(raw)?;
        let padding = &self.padding_tokens;
        let vocabulary = self.vocabulary;
        if padding.len() > 1 || padding.iter().any(|token| *token >= vocabulary) {
            let reason = format!(
                "model.padding_tokens = {padding:?} is not a list of at most one token below \
                 model.vocabulary = {vocabulary}"
            );
            return Err(raw.conflict(&[Self::padding_tokens, Self::vocabulary], reason));
        }
        if !self.hugging_face.is_empty() && !folder::CONFIG.model_types.contains(&&*self.hugging_face) {
            let reason =
                format!("model.hugging_face = \"{}\" is none of {}", self.hugging_face, folder::names());
            return Err(raw.conflict(&[Self::hugging_face], reason));
        }
        Ok(())
    }

    /// Rejects rotary frequencies that are inconsistent with each other or with the heads.
    fn check_rope(&self, raw: &RawValues) -> keys::Result<()> {
        let low = self.rope_low_turns;
        let high = self.rope_high_turns;
        let has_turns = matches!(self.rope_scaling, RopeScaling::Llama3 | RopeScaling::Yarn);
        if has_turns && low >= high {
            let reason = format!("model.rope_low_turns = {low} is not below model.rope_high_turns = {high}");
            return Err(raw.conflict(&[Self::rope_low_turns, Self::rope_high_turns], reason));
        }
        let columns = self.rotated();
        let head = self.head_width;
        if columns > head || !columns.is_multiple_of(2) {
            let reason =
                format!("model.rope_width = {columns} is not an even number up to model.head_width = {head}");
            return Err(raw.conflict(&[Self::rope_width, Self::head_width], reason));
        }
        let lists = [
            (Self::rope_short_factors, &self.rope_short_factors),
            (Self::rope_long_factors, &self.rope_long_factors),
        ];
        for (key, factors) in lists {
            let pairs = columns / 2;
            let count = factors.len();
            if self.rope_scaling == RopeScaling::LongRope && count != 1 && count != pairs {
                let reason = format!(
                    "{key} has {count} numbers, and model.rope_width = {columns} has {pairs} pairs of columns"
                );
                return Err(raw.conflict(&[key, Self::rope_width], reason));
            }
        }
        Ok(())
    }

    /// Rejects sizes whose number of bytes overflows. This is no estimate of memory.
    fn check_bytes(&self, raw: &RawValues, micro_batch: usize) -> keys::Result<()> {
        let of_layers = (Self::layers, self.layers);
        let [of_width, of_heads] = [(Self::width, self.width), (Self::heads, self.heads)];
        let widths = [
            (Self::head_width, self.head_width),
            (Self::value_width, self.value_width),
            (Self::full_head_width, self.full_head_width),
        ];
        let widest = widths.into_iter().rev().max_by_key(|(_, width)| *width);
        let of_head = widest.unwrap_or((Self::head_width, self.head_width));
        let of_embedding = (Self::layer_embedding_width, self.layer_embedding_width);
        let of_hidden = (Self::feed_forward, self.feed_forward);
        let of_context = (Self::context, self.context);
        let [of_experts, of_choices] =
            [(Self::experts, self.experts), (Self::experts_per_token, self.experts_per_token)];
        let of_expert = (Self::expert_width, self.expert_width);
        let of_latents = (Self::expert_latent_width, self.expert_latent_width);
        let of_vocabulary = (Self::vocabulary, self.vocabulary);
        let of_batch = ("train.micro_batch_size", micro_batch);
        sizes_checks::check_bytes(
            raw,
            &[
                ("the token embedding", 1, &[of_width, of_vocabulary]),
                ("the embeddings for each layer", 1, &[of_layers, of_embedding, of_vocabulary]),
                ("the attention weights", 4, &[of_layers, of_width, of_heads, of_head]),
                (
                    "the weights of latents",
                    2,
                    &[of_layers, (Self::latent_width, self.latent_width), of_heads, of_head],
                ),
                (
                    "the weights of latents of queries",
                    1,
                    &[of_layers, (Self::query_latent_width, self.query_latent_width), of_heads, of_head],
                ),
                (
                    "the weights of linear attention",
                    6,
                    &[
                        of_layers,
                        of_width,
                        (Self::linear_value_heads, self.linear_value_heads),
                        (Self::linear_key_width, self.linear_key_width.max(self.linear_value_width)),
                    ],
                ),
                ("the feed-forward weights", 3, &[of_layers, of_width, of_hidden]),
                ("the weights of experts", 3, &[of_layers, of_width, of_experts, of_expert]),
                ("the weights of experts on latents", 3, &[of_layers, of_latents, of_experts, of_expert]),
                ("a micro-batch's experts", 4, &[of_layers, of_choices, of_expert, of_context, of_batch]),
                ("a micro-batch's logits", 1, &[of_context, of_vocabulary, of_batch]),
                ("a micro-batch's attention", 8, &[of_layers, of_heads, of_head, of_context, of_batch]),
                ("a micro-batch's feed-forward", 4, &[of_layers, of_hidden, of_context, of_batch]),
            ],
        )
    }
}
