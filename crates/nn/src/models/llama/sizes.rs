//! Sizes and options of the family `llama`.

use keys::{Interval, RawValues, Row, choice, section};
use tensor::ops::Activation;

use crate::family::{MOST_EXTENT, MOST_LAYERS};
use crate::layers::{DeltaLayout, GateFunction, NormKind, NormPosition, QkNormSpan, ScoreFunction};

system::names! {
    /// Scaling of rotary frequencies.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RopeScaling {
        /// No scaling.
        None = "none",
        /// All frequencies are divided.
        Linear = "linear",
        /// As in Llama 3.1: low frequencies are divided.
        Llama3 = "llama3",
        /// YaRN: low frequencies are divided, and scores grow.
        Yarn = "yarn",
        /// LongRoPE: each frequency has its divisor, and scores grow.
        LongRope = "longrope",
    }
}

section! {
    /// Sizes and options of a [`Llama`](super::Llama).
    pub struct LlamaSizes = "model" {
        /// Number of transformer blocks.
        layers: usize = Row::count(1, MOST_LAYERS).default("4");
        /// Number of query heads in attention.
        heads: usize = Row::count(1, MOST_EXTENT).default("4");
        /// Number of key and value heads; `heads` must be a multiple of it. Consecutive query heads share
        /// one.
        key_value_heads: usize = Row::count(1, MOST_EXTENT)
            .derived("`heads`", |raw| Ok(raw.integer(LlamaSizes::heads)?.into()));
        /// Number of values in a token's vector.
        width: usize = Row::count(1, MOST_EXTENT).default("128");
        /// Number of values in a head; must be even.
        head_width: usize = Row::count(2, MOST_EXTENT).derived("`width` / `heads`", |raw| {
            Ok(derived_head_width(raw)?.into())
        });
        /// Values in a head of attention's values and of its results, which may differ from the width of
        /// queries and keys.
        value_width: usize = Row::count(1, MOST_EXTENT)
            .derived("`head_width`", |raw| {
                let own = match raw.is_set(LlamaSizes::head_width) {
                    true => raw.integer(LlamaSizes::head_width),
                    false => derived_head_width(raw),
                };
                Ok(own?.into())
            });
        /// Number of values in a head in layers without a window, if layers with one have `head_width`; twice
        /// as many in Gemma 4.
        full_head_width: usize = Row::count(2, MOST_EXTENT).derived("`head_width`", |raw| {
            let own = match raw.is_set(LlamaSizes::head_width) {
                true => raw.integer(LlamaSizes::head_width),
                false => derived_head_width(raw),
            };
            Ok(own?.into())
        });
        /// Number of key and value heads in layers without a window, if layers with one have
        /// `key_value_heads`.
        full_key_value_heads: usize = Row::count(1, MOST_EXTENT)
            .derived("`key_value_heads`", |raw| {
                let own = match raw.is_set(LlamaSizes::key_value_heads) {
                    true => LlamaSizes::key_value_heads,
                    false => LlamaSizes::heads,
                };
                Ok(raw.integer(own)?.into())
            });
        /// Whether layers without a window have no projection of values, and use keys before their norm and
        /// rotation instead, as in Gemma 4.
        keys_as_values: bool = Row::flag().default("false");
        /// Whether each head of values is normalised, without a weight, as in Gemma 4.
        value_norm: bool = Row::flag().default("false");
        /// Number of last layers that have no keys and values of their own, as in Gemma 4: such a layer uses
        /// keys and values of the last layer of its type (with a window or without) before all of them.
        shared_layers: usize = Row::count(0, MOST_LAYERS).default("0");
        /// Number of values between the two feed-forward layers in layers that share keys and values.
        shared_layers_feed_forward: usize = Row::count(1, MOST_EXTENT)
            .derived("`feed_forward`", |raw| {
                let own = match raw.is_set(LlamaSizes::feed_forward) {
                    true => raw.integer(LlamaSizes::feed_forward),
                    false => derived_feed_forward(raw),
                };
                Ok(own?.into())
            });
        /// Width of additional embeddings of tokens for each layer, as in Gemma 4: a layer multiplies its
        /// embedding by a gate of its result and adds a projection of the product. With 0 there are none.
        layer_embedding_width: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Whether the result of each layer is multiplied by a number of its own, as in Gemma 4. Training
        /// does not change these numbers.
        layer_factors: bool = Row::flag().default("false");
        /// Number of latent values of a token, from which the keys and values of all heads are computed, as
        /// in DeepSeek-V2 and V3. With 0 they are computed from the token's vector. With latents, all heads
        /// share the rotated columns of keys (`rope_width`).
        latent_width: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Number of latent values from which queries are computed. With 0 they are computed from the token's
        /// vector.
        query_latent_width: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Number added to the mean squares in norms of latents; 1e-6 in DeepSeek-V3.
        latent_epsilon: f64 = Row::number(Interval::Positive)
            .derived("`norm_epsilon`", |raw| Ok(raw.number(LlamaSizes::norm_epsilon)?.into()));
        /// Width of a model whose settings hold for this one (maximal update parametrisation). A model that
        /// is m times as wide has matrices with initial values 1/√m, learning rates 1/m and weight decay m
        /// times as large, scores of tokens divided by m, and attention scores divided by √m. Embeddings,
        /// norms and biases are as in the base. With 0 nothing is scaled.
        base_width: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Width of a head in the model of `base_width`. With 0 that model has as many heads; with the heads'
        /// own width it has fewer, and attention scores are not scaled.
        base_head_width: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Number of values between the two feed-forward layers.
        feed_forward: usize = Row::count(1, MOST_EXTENT)
            .derived("8/3 of `width`, rounded up to a multiple of 32", |raw| {
                Ok(derived_feed_forward(raw)?.into())
            });
        /// Experts of the feed-forward layers; a router chooses some of them for each token. 0: there are
        /// none, and all tokens use the same layers.
        experts: usize = Row::count(0, 1 << 16).default("0");
        /// Number of experts that the router chooses for each token.
        experts_per_token: usize = Row::count(1, 1 << 16).default("2");
        /// Number of values between the two layers of an expert.
        expert_width: usize = Row::count(1, MOST_EXTENT)
            .derived("`feed_forward`", |raw| {
                let own = match raw.is_set(LlamaSizes::feed_forward) {
                    true => raw.integer(LlamaSizes::feed_forward),
                    false => derived_feed_forward(raw),
                };
                Ok(own?.into())
            });
        /// Width of the vectors that the router's experts read and write, as in Nemotron 3 Super: a linear
        /// layer before all of them and one after them change the width. With 0 it is `width`.
        expert_latent_width: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Number of values between the two layers of the shared experts, which every token uses in addition.
        /// With 0 there are none.
        shared_expert_width: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Whether the results of the shared experts are multiplied by a sigmoid gate of each token, as in
        /// Qwen3-Next.
        shared_expert_gate: bool = Row::flag().default("false");
        /// The layers with experts: a list of 1 (experts) and 0 (none) that is repeated over the layers. An
        /// empty list means that all layers have experts.
        expert_layers: Vec<usize> = Row::counts(0, 0, 1).default("[]");
        /// Function that computes the scores of experts: "softmax" over all experts, as in Mixtral and Qwen3,
        /// or the "sigmoid" of each router output, as in DeepSeek-V3. The experts with the highest scores are
        /// chosen, and the scores are their weights.
        router_scores: ScoreFunction = choice!(ScoreFunction, ScoreFunction::ALL).default("\"softmax\"");
        /// Whether the weights of a token's experts are divided by their sum.
        router_normalised: bool = Row::flag().default("true");
        /// Lower bound of the sum that divides a token's expert weights, as in Ernie 4.5. 0: no bound.
        router_least_sum: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// Multiplier of the weights of a token's experts.
        router_scale: f64 = Row::number(Interval::Positive).default("1.0");
        /// Whether the router has a bias, as in gpt-oss.
        router_bias: bool = Row::flag().default("false");
        /// Whether each expert has a correction, as in DeepSeek-V3. It is added to the expert's scores when
        /// experts are chosen, but not to its weights. Training adjusts it by `train.correction_rate`.
        router_correction: bool = Row::flag().default("false");
        /// Number of groups of consecutive experts.
        expert_groups: usize = Row::count(1, 1 << 16).default("1");
        /// Number of groups from which the experts of a token are chosen: the groups whose two best scores
        /// have the largest sum.
        expert_groups_per_token: usize = Row::count(1, 1 << 16).default("1");
        /// Number of tokens in a sequence.
        context: usize = Row::count(1, MOST_EXTENT).default("128");
        /// Number of tokens in the vocabulary. With 0 it is the tokenizer's.
        vocabulary: usize = Row::count(0, 1 << 31).default("0");
        /// A list of at most one token, whose embedding gets no gradient from the input; transformers does
        /// the same with `pad_token_id`.
        padding_tokens: Vec<usize> = Row::counts(0, 0, (1 << 31) - 1).default("[]");
        /// Whether the output head uses the token embedding's table.
        tied: bool = Row::flag().default("false");
        /// Activation function of the feed-forward gate: "silu" for SwiGLU, "gelu" (tanh form) or "gelu-erf"
        /// for GeGLU, "quick-gelu", x·σ(1.702·x), for gpt-oss, and "relu-squared", max(x, 0)², for nanochat.
        activation: Activation = choice!(
            Activation,
            [
                Activation::Silu,
                Activation::Gelu,
                Activation::GeluErf,
                Activation::QuickGelu,
                Activation::ReluSquared,
            ]
        ).default("\"silu\"");
        /// Whether the feed-forward layers and experts have a gate. Without one they are two layers with the
        /// activation between them, as in nanochat and Nemotron-H.
        gated: bool = Row::flag().default("true");
        /// Upper bound of the gate, and bound on the magnitude of the values that it multiplies; 7 in
        /// gpt-oss. With 0 there are no bounds.
        gate_limit: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// Factor of the gate before its activation.
        gate_scale: f64 = Row::number(Interval::Positive).default("1.0");
        /// Factor of the results of the feed-forward layers.
        feed_forward_scale: f64 = Row::number(Interval::Positive).default("1.0");
        /// Number added to the values that the gate multiplies; 1 in gpt-oss.
        gate_offset: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// Whether queries, keys and values have biases, as in Qwen2.
        qkv_bias: bool = Row::flag().default("false");
        /// Whether the output projection of attention has a bias.
        output_bias: bool = Row::flag().default("false");
        /// Whether the feed-forward layers have biases.
        mlp_bias: bool = Row::flag().default("false");
        /// Whether queries and keys are normalised before their rotation, as in Qwen3.
        qk_norm: bool = Row::flag().default("false");
        /// Values that share a mean square in norms of queries and keys: of each "head", or of "all"
        /// heads of a position, as in OLMo 2.
        qk_norm_span: QkNormSpan = choice!(
            QkNormSpan, [QkNormSpan::Head, QkNormSpan::All]
        ).default("\"head\"");
        /// Whether norms of heads follow the rotation of queries and keys, as in Hunyuan and nanochat.
        qk_norm_last: bool = Row::flag().default("false");
        /// Position of the norms of attention and of the feed-forward layers: "before" them, "after" them, as
        /// in OLMo 2, or "both", as in Gemma 2.
        norm_position: NormPosition = choice!(
            NormPosition, [NormPosition::Before, NormPosition::After, NormPosition::Both]
        ).default("\"before\"");
        /// Kind of the norms between layers: "rms", or "layer", which also subtracts means, as in Cohere 2.
        norm_kind: NormKind = choice!(NormKind, NormKind::ALL).default("\"rms\"");
        /// Whether norms have weights; false in nanochat, also for norms of queries and keys.
        norm_weights: bool = Row::flag().default("true");
        /// Whether token embeddings are normalised, without a weight, before the first layer, as in nanochat.
        embedding_norm: bool = Row::flag().default("false");
        /// Whether attention and the feed-forward layers of a block read the same norm, and both are added
        /// to the residual stream, as in Cohere 2.
        parallel_branches: bool = Row::flag().default("false");
        /// Whether each layer has one branch, with one norm before it, as in Nemotron-H: the mixer that
        /// `layer_types` names, or feed-forward layers or experts in layers of type "feed_forward".
        single_branches: bool = Row::flag().default("false");
        /// Whether norms store their weights minus 1, as in Gemma. Weight decay then pulls the weights
        /// towards 1 instead of 0.
        norms_less_one: bool = Row::flag().default("false");
        /// Number of tokens, including its own, that a query attends to in layers with a window. With 0 no
        /// layer has a window.
        window: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Types of the layers: a list of "sliding_attention" (with the window), "full_attention",
        /// "convolution" (short ones, as in LFM2), "linear_attention" (the gated delta rule, as in Qwen3.5),
        /// "state_space" (as in Mamba-2), "attention_and_state_space" (both side by side, as in Falcon-H1)
        /// and "feed_forward" (with `single_branches`) that is repeated over the layers. With an empty list
        /// all layers have the window, if there is one.
        layer_types: Vec<String> = Row::texts().default("[]");
        /// Number of tokens, including its own, that an output of a short convolution reads.
        convolution_width: usize = Row::count(2, 4).default("3");
        /// Whether short convolutions and the projections around them have biases.
        convolution_bias: bool = Row::flag().default("false");
        /// Number of heads of state-space layers.
        state_heads: usize = Row::count(1, MOST_EXTENT)
            .derived("`heads`", |raw| Ok(raw.integer(LlamaSizes::heads)?.into()));
        /// Number of columns of a head of state-space layers.
        state_head_width: usize = Row::count(1, MOST_EXTENT).default("64");
        /// Number of values that the state of a head has for each of its columns.
        state_width: usize = Row::count(1, MOST_EXTENT).default("128");
        /// Number of groups of heads of state-space layers; the heads of a group read and write their states
        /// alike.
        state_groups: usize = Row::count(1, MOST_EXTENT).default("1");
        /// Number of tokens, including its own, that an output of the convolution in a state-space layer
        /// reads.
        state_convolution_width: usize = Row::count(2, 4).default("4");
        /// Whether the convolution in a state-space layer has a bias.
        state_convolution_bias: bool = Row::flag().default("true");
        /// Whether the projections of state-space layers have biases.
        state_bias: bool = Row::flag().default("false");
        /// Number of groups of columns that the norm of a state-space layer's results treats separately. With
        /// 0 there is no norm.
        state_norm_groups: usize = Row::count(0, MOST_EXTENT).default("1");
        /// Whether that norm precedes the gate.
        state_norm_first: bool = Row::flag().default("false");
        /// Factors of the gate, x, B, C and the time steps of state-space layers: five, or one for all.
        state_scales: Vec<f64> = Row::numbers(Interval::Positive).default("[1.0]");
        /// Factors of attention and of the state space beside it: two, or one for both.
        mixer_scales: Vec<f64> = Row::numbers(Interval::Positive).default("[1.0]");
        /// Least time step of state-space layers.
        state_least_step: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// Largest time step of state-space layers. With 0 there is no limit.
        state_largest_step: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// Query heads, and key heads, of linear attention.
        linear_key_heads: usize = Row::count(1, MOST_EXTENT)
            .derived("`heads`", |raw| Ok(raw.integer(LlamaSizes::heads)?.into()));
        /// Value heads of linear attention, each with a state; a multiple of `linear_key_heads`. Consecutive
        /// value heads share a query head and a key head.
        linear_value_heads: usize = Row::count(1, MOST_EXTENT)
            .derived("`linear_key_heads`", |raw| {
                let own = match raw.is_set(LlamaSizes::linear_key_heads) {
                    true => raw.integer(LlamaSizes::linear_key_heads),
                    false => raw.integer(LlamaSizes::heads),
                };
                Ok(own?.into())
            });
        /// Number of values in a query or key of linear attention, at most 256 on a GPU.
        linear_key_width: usize = Row::count(1, MOST_EXTENT).default("128");
        /// Number of values in a value of linear attention.
        linear_value_width: usize = Row::count(1, 1024).default("128");
        /// Number of tokens, including its own, that the convolution of linear attention reads.
        linear_convolution_width: usize = Row::count(2, 4).default("4");
        /// Layout of the projections of linear attention: "separate" as in Qwen3.5, or "grouped" by key head,
        /// as in Qwen3-Next.
        linear_layout: DeltaLayout = choice!(DeltaLayout, DeltaLayout::ALL).default("\"separate\"");
        /// Whether rates of linear attention are up to 2 instead of 1, so that a state's eigenvalues may be
        /// negative, as in OLMo Hybrid.
        linear_negative_eigenvalues: bool = Row::flag().default("false");
        /// Whether linear attention has a decay for each key channel, as in Kimi Linear, instead of one for
        /// each head.
        linear_channel_decays: bool = Row::flag().default("false");
        /// Rank of the projections of gates and decays in linear attention, as in Kimi Linear: two linear
        /// layers with this width between them. 0: one linear layer.
        linear_gate_rank: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Activation function of linear attention's output gates: "silu", or "sigmoid" as in Kimi Linear.
        linear_gate: GateFunction = choice!(GateFunction, GateFunction::ALL).default("\"silu\"");
        /// Number added to the mean squares in the norm of linear attention's results; 1e-5 in OLMo Hybrid.
        linear_epsilon: f64 = Row::number(Interval::Positive)
            .derived("`norm_epsilon`", |raw| Ok(raw.number(LlamaSizes::norm_epsilon)?.into()));
        /// Position of the norms in layers of linear attention: "before" in OLMo Hybrid, whose other layers
        /// have norms "after".
        linear_norm_position: NormPosition = choice!(
            NormPosition, [NormPosition::Before, NormPosition::After, NormPosition::Both]
        ).derived("`norm_position`", |raw| Ok(raw.text(LlamaSizes::norm_position)?.into()));
        /// Whether attention's output is multiplied by the sigmoid of a gate, which further rows of the query
        /// projection compute, as in Qwen3.5.
        attention_gate: bool = Row::flag().default("false");
        /// Factor of attention scores. With 0 it is 1/√`head_width`.
        attention_scale: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// Cap c of attention scores, which become c·tanh(x/c), as in Gemma 2. With 0 they are not capped.
        attention_soft_cap: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// Whether every query head has a sink, as in gpt-oss: a learned score that takes part in the softmax
        /// over the keys but has no value.
        attention_sinks: bool = Row::flag().default("false");
        /// Factor of token embeddings; √`width` in Gemma.
        embedding_scale: f64 = Row::number(Interval::Positive).default("1.0");
        /// Multiplier of each branch before it is added to the residual stream, as in
        /// Granite.
        residual_scale: f64 = Row::number(Interval::Positive).default("1.0");
        /// Factor of the scores of tokens, applied before their cap; the reciprocal of Granite's
        /// `logits_scaling`.
        logit_scale: f64 = Row::number(Interval::Positive).default("1.0");
        /// Probability of dropout in training, for attention weights, embeddings and residual branches.
        dropout: f64 = Row::number(Interval::Fraction).default("0.0");
        /// Probability of dropout in training, for embeddings.
        embedding_dropout: f64 = Row::number(Interval::Fraction)
            .derived("`dropout`", |raw| Ok(raw.number(LlamaSizes::dropout)?.into()));
        /// Probability of dropout in training, for residual branches.
        branch_dropout: f64 = Row::number(Interval::Fraction)
            .derived("`dropout`", |raw| Ok(raw.number(LlamaSizes::dropout)?.into()));
        /// Cap c of the scores of tokens, which become c·tanh(x/c), as in Gemma 2. With 0 they are not
        /// capped.
        logit_soft_cap: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// Number of pieces into which the loss splits the vocabulary, or each lane's part of it, to compute
        /// the scores of one piece at a time. More than one piece needs less memory for a large vocabulary,
        /// but computes the scores again in backward.
        loss_pieces: usize = Row::count(1, MOST_EXTENT).default("1");
        /// Number added to the mean squares in norms.
        norm_epsilon: f64 = Row::number(Interval::Positive).default("1e-5");
        /// Base of the rotary frequencies.
        rope_theta: f64 = Row::number(Interval::Positive).default("10000.0");
        /// Number of columns of a head that rotate, counted from the first; must be even. With 0 all columns
        /// rotate.
        rope_width: usize = Row::count(0, MOST_EXTENT).default("0");
        /// Whether neighbouring columns rotate together, as in DeepSeek-V3, Ernie 4.5 and Cohere 2. If not,
        /// each column of the first half rotates with one of the second half.
        rope_interleaved: bool = Row::flag().default("false");
        /// Whether columns rotate in the opposite direction, as in nanochat.
        rope_reversed: bool = Row::flag().default("false");
        /// The layers that rotate queries and keys, as in SmolLM3: a list of 1 (rotate) and 0 (do not),
        /// repeated over the layers. With an empty list all layers rotate them.
        rope_layers: Vec<usize> = Row::counts(0, 0, 1).default("[]");
        /// Share of the pairs of columns that rotate in layers without a window, the fastest ones, as in
        /// Gemma 4; at most 1. Frequencies are as for whole heads.
        rope_share: f64 = Row::number(Interval::Positive).default("1.0");
        /// Base of the rotary frequencies in layers with a window.
        window_rope_theta: f64 = Row::number(Interval::Positive)
            .derived("`rope_theta`", |raw| Ok(raw.number(LlamaSizes::rope_theta)?.into()));
        /// Whether frequencies are also scaled in layers with a window; false in Gemma 3 and OLMo 3.
        window_rope_scaled: bool = Row::flag().default("true");
        /// Scaling of the rotary frequencies for long contexts.
        rope_scaling: RopeScaling = choice!(RopeScaling, RopeScaling::ALL).default("\"none\"");
        /// Divisor of scaled frequencies. With "longrope" it is the growth factor of the context, and
        /// only sets the default of `rope_attention_factor`.
        rope_factor: f64 = Row::number(Interval::Positive).default("8.0");
        /// With "llama3": frequencies of at most this many turns in the original context are divided. With
        /// "yarn": so are the frequencies from the pair of columns that makes this many turns.
        rope_low_turns: f64 = Row::number(Interval::Positive).default("1.0");
        /// With "llama3" and "yarn": frequencies of at least this many turns in the original context are not
        /// scaled; 32 is usual with "yarn".
        rope_high_turns: f64 = Row::number(Interval::Positive).default("4.0");
        /// With "llama3", "yarn", "longrope" and `query_growth`: number of tokens in the original context.
        rope_original_context: usize = Row::count(1, MOST_EXTENT).default("8192");
        /// With "yarn": whether the bounds of the range of column pairs in which the scaling changes are
        /// rounded outwards to whole numbers.
        rope_rounded: bool = Row::flag().default("true");
        /// With "yarn" and "longrope": factor of queries and keys. With 0 it is 0.1·ln(`rope_factor`) + 1 for
        /// "yarn", and √(1 + ln(`rope_factor`)/ln(`rope_original_context`)) for "longrope".
        rope_attention_factor: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// With "longrope": divisors of the frequencies if `context` is at most `rope_original_context`; one
        /// for each pair of columns, or one for all.
        rope_short_factors: Vec<f64> = Row::numbers(Interval::Positive).default("[1.0]");
        /// With "longrope": divisors of the frequencies if `context` is longer than `rope_original_context`.
        rope_long_factors: Vec<f64> = Row::numbers(Interval::Positive).default("[1.0]");
        /// Growth β of queries with their position p, as in Ministral 3: they are multiplied by 1 + β·ln(1 +
        /// ⌊p / `rope_original_context`⌋). With 0 they are not.
        query_growth: f64 = Row::number(Interval::NotNegative).default("0.0");
        /// The `model_type` of the Hugging Face folder that an export writes. If empty, it is that of the
        /// first family that supports the options.
        hugging_face: String = Row::text().any_bits().default("\"\"");
    }
}

/// Returns the default number of values per head.
fn derived_head_width(raw: &RawValues) -> keys::Result<u64> {
    Ok((raw.integer(LlamaSizes::width)? / raw.integer(LlamaSizes::heads)?).max(2))
}

/// Returns the default width of the feed-forward layers.
fn derived_feed_forward(raw: &RawValues) -> keys::Result<u64> {
    Ok((raw.integer(LlamaSizes::width)? * 8).div_ceil(3).next_multiple_of(32))
}

/// Returns `None` for 0.
pub(super) fn some(number: f64) -> Option<f32> {
    (number > 0.0).then_some(number as f32)
}
