//! The sections of a resolved configuration, as plain typed values.

use data::Tokenizer;
use serde::{Serialize, Serializer};
use std::path::PathBuf;

/// An enumeration whose variants have names in the configuration.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant),+
        }

        impl $name {
            /// The names in the order of declaration.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The name in a configuration.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The variant with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

/// `[model]`: what is trained.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Model {
    /// A decoder-only transformer in the manner of GPT-2.
    Gpt(Gpt),
    /// A multilayer perceptron.
    Mlp(Mlp),
}

choice! {
    /// The name of a [`Model`].
    ModelKind {
        /// [`Model::Gpt`].
        Gpt = "gpt",
        /// [`Model::Mlp`].
        Mlp = "mlp",
    }
}

impl Model {
    /// Its name.
    #[must_use]
    pub fn kind(&self) -> ModelKind {
        match self {
            Self::Gpt(_) => ModelKind::Gpt,
            Self::Mlp(_) => ModelKind::Mlp,
        }
    }
}

/// The sizes of a GPT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpt {
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
    /// Values in a token's vector.
    pub width: usize,
    /// Tokens in a sequence.
    pub context: usize,
    /// Tokens that exist: the tokenizer's, or more.
    pub vocabulary: usize,
}

/// The sizes of an MLP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mlp {
    /// Values in the input, after each hidden layer, and in the output: at least two.
    pub sizes: Vec<usize>,
    /// What comes after every layer but the last.
    pub activation: Activation,
}

choice! {
    /// The non-linearity of an MLP.
    Activation {
        /// max(x, 0).
        Relu = "relu",
        /// x · Φ(x).
        Gelu = "gelu",
        /// The layers follow each other directly.
        None = "none",
    }
}

choice! {
    /// Where micro-batches come from.
    DataKind {
        /// Text files.
        Text = "text",
        /// A random number generator.
        Synthetic = "synthetic",
    }
}

/// `[data]`: what is trained on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Data {
    /// Where micro-batches come from.
    pub kind: DataKind,
    /// What turns text into tokens (GPT only).
    #[serde(serialize_with = "tokenizer_name")]
    pub tokenizer: Tokenizer,
    /// The absolute directory that `paths` are relative to; empty for synthetic data.
    pub base: PathBuf,
    /// Files and globs; empty for synthetic data.
    pub paths: Vec<String>,
    /// The part at the end that is held out, inside (0, 1).
    pub validation_fraction: f64,
}

fn tokenizer_name<S: Serializer>(tokenizer: &Tokenizer, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(tokenizer.name())
}

/// `[train]`: how long and in which portions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Train {
    /// Optimizer steps.
    pub steps: u64,
    /// Sequences or samples in a micro-batch.
    pub micro_batch: usize,
    /// Micro-batches in a step, over all ranks.
    pub micro_batches: usize,
    /// What all random numbers follow from.
    pub seed: u64,
    /// Steps between validations; 0: only after the last step.
    pub validate_every: u64,
    /// Micro-batches in a validation, over all ranks.
    pub validation_micro_batches: u64,
}

choice! {
    /// The optimizer.
    OptimKind {
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// Stochastic gradient descent with momentum.
        Sgd = "sgd",
    }
}

/// `[optim]`: how weights follow from gradients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Optim {
    /// The optimizer.
    pub kind: OptimKind,
    /// The highest learning rate: after warm-up.
    pub learning_rate: f64,
    /// What the learning rate falls to at the last step, along a cosine.
    pub min_learning_rate: f64,
    /// Steps in which the learning rate rises linearly.
    pub warmup_steps: u64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// The norm that gradients are clipped to; 0: no clipping.
    pub clip_norm: f64,
    /// Decay of the gradient's mean (AdamW).
    pub beta1: f64,
    /// Decay of the squared gradient's mean (AdamW).
    pub beta2: f64,
    /// Added to the denominator (AdamW).
    pub epsilon: f64,
    /// Momentum (SGD).
    pub momentum: f64,
}

choice! {
    /// The order of a pipeline's passes.
    Schedule {
        /// All forward passes, then all backward passes.
        GPipe = "gpipe",
        /// One forward, one backward.
        OneForwardOneBackward = "1f1b",
        /// The same with several stages per rank.
        Interleaved = "interleaved",
        /// ZB-H1: gradients of weights fill what would be idle.
        ZeroBubble = "zero-bubble",
    }
}

/// How a model's layers are divided over a pipeline's stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Division {
    /// So that the slowest stage is as fast as it can be.
    Fastest,
    /// So that the largest peak is as low as it can be.
    Smallest,
    /// So many layers in each stage.
    #[serde(untagged)]
    Layers(Vec<usize>),
}

impl Division {
    /// The names of those that have one.
    pub const NAMES: &'static [&'static str] = &["fastest", "smallest"];
}

choice! {
    /// Who adds gradients over ranks.
    Reduction {
        /// Plimsoll, in the order of a fixed tree: the same bits on every grid.
        Tree = "tree",
        /// The transport, NCCL on GPUs, in its own order: the same bits on the same grid.
        Library = "nccl",
    }
}

choice! {
    /// When ranks sum gradients.
    Overlap {
        /// As soon as a bucket is full; where GPUs sum in each other's memory late, and after backward if the optimizer is divided.
        Auto = "auto",
        /// As soon as a bucket is full.
        On = "on",
        /// From late in backward on.
        Late = "late",
        /// After backward.
        Off = "off",
    }
}

choice! {
    /// How sums get from GPU to GPU where these reach each other's memory.
    Peers {
        /// Copy engines move everything, and a kernel adds what they brought.
        Engines = "engines",
        /// A kernel reads and adds, and copy engines move the sums.
        Copies = "copies",
        /// One kernel reads, adds and writes.
        Kernel = "kernel",
        /// They go over NCCL, as they do between hosts.
        Off = "off",
    }
}

/// `[parallel]`: how the work is divided over ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Parallel {
    /// Ranks that share the micro-batches; a power of two that divides `lanes`.
    pub data: usize,
    /// Ranks that share the layers.
    pub pipeline: usize,
    /// Gradient sums that the tree adds: a power of two that divides the micro-batches.
    pub lanes: usize,
    /// The order of a pipeline's passes.
    pub schedule: Schedule,
    /// Stages of each rank (interleaved); 1 elsewhere.
    pub chunks: usize,
    /// How layers are divided over stages.
    pub division: Division,
    /// The absolute path of the times that the division goes by, instead of what is counted on Meta.
    pub profile: Option<PathBuf>,
    /// Who adds gradients over ranks.
    pub reduction: Reduction,
    /// Whether each rank holds a part of the optimizer's state only.
    pub shard_optimizer: bool,
    /// Bytes in a bucket of gradients.
    pub bucket_bytes: u64,
    /// When gradients are summed.
    pub overlap: Overlap,
    /// How sums get from GPU to GPU of one host.
    pub peers: Peers,
    /// Blocks of the kernel that reads the other GPUs' memory.
    pub peer_blocks: u32,
    /// How long a rank waits for another before it gives up.
    pub timeout_seconds: u64,
}

choice! {
    /// The type that activations and their gradients have.
    Compute {
        /// IEEE single precision.
        F32 = "f32",
        /// bfloat16, with master weights, statistics, sums and the loss in f32. Needs a GPU.
        Bf16 = "bf16",
    }
}

choice! {
    /// The type that the gradients of weights have.
    Gradients {
        /// IEEE single precision.
        F32 = "f32",
        /// bfloat16: half the bytes to keep and to reduce, and every sum of them rounded to it. Computing must be in it too.
        Bf16 = "bf16",
    }
}

/// `[precision]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Precision {
    /// The type that activations and their gradients have.
    pub compute: Compute,
    /// The type that the gradients of weights, and their sums over micro-batches and ranks, have.
    pub gradients: Gradients,
}

impl Precision {
    /// Both types, for reports: `f32`, `bf16`, or `bf16 with bf16 gradients`.
    #[must_use]
    pub fn name(&self) -> String {
        let compute = self.compute.name();
        match self.gradients {
            Gradients::F32 => compute.to_owned(),
            Gradients::Bf16 => format!("{compute} with bf16 gradients"),
        }
    }
}

/// Which layers keep no activations and compute them again in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// None of them.
    None,
    /// Each on its own.
    Block,
    /// In so many segments.
    Segments(usize),
    /// What planning finds to be the cheapest that fits. A run begins with that in its place.
    Auto,
}

impl Recompute {
    /// The names that are not numbers.
    pub const NAMES: &'static [&'static str] = &["none", "block", "auto"];

    /// The variant with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "block" => Some(Self::Block),
            "auto" => Some(Self::Auto),
            _ => None,
        }
    }
}

impl Serialize for Recompute {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Block => serializer.serialize_str("block"),
            Self::Segments(count) => serializer.serialize_u64(*count as u64),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

/// `[memory]`: the caching allocator, and what is kept for backward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`; valid.
    pub allocator: String,
    /// Bytes that a rank may reserve; 0: all of the device.
    pub limit_bytes: u64,
    /// Which layers compute their activations again in backward.
    pub recompute: Recompute,
    /// How many of a stage's layers that is for, the first ones; 0: all.
    pub recompute_layers: usize,
    /// Allocator events that each rank keeps; 0: none.
    pub history: u64,
}

/// `[telemetry]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Telemetry {
    /// Steps between lines of progress.
    pub every: u64,
}

/// `[checkpoint]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checkpoint {
    /// Steps between checkpoints; 0: none.
    pub every: u64,
    /// Checkpoints that are kept, the latest.
    pub keep: u64,
}
