//! Enumerations of key values that no lower crate defines.

use std::path::PathBuf;

use device::DType;
use keys::{Reading, Takes, Value};
use nn::Alphabet;
use serde::{Serialize, Serializer};

system::names! {
    /// The kind of training data.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DataKind {
        /// Text files.
        Text = "text",
        /// Files of token ids.
        Tokens = "tokens",
        /// Conversations in files of JSON lines.
        Chat = "chat",
        /// Pairs of a preferred and a rejected answer, in JSON lines.
        Preference = "preference",
        /// Images with class labels.
        Images = "images",
        /// A random number generator, for benchmarks and planning.
        Synthetic = "synthetic",
    }
}

system::names! {
    /// The loss function for preference pairs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PreferenceLoss {
        /// Direct preference optimisation.
        Dpo = "dpo",
        /// Identity preference optimisation.
        Ipo = "ipo",
        /// Odds-ratio preference optimisation.
        Orpo = "orpo",
    }
}

system::names! {
    /// Storage type of the frozen weight matrices that have adapters.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LoraBase {
        /// The compute type, `precision.compute`.
        Compute = "compute",
        /// bf16.
        Bf16 = "bf16",
        /// f16.
        F16 = "f16",
        /// 4-bit NormalFloat: quantiles of a normal distribution.
        Nf4 = "nf4",
        /// 4-bit integers.
        Int4 = "int4",
        /// 8-bit floating point, E4M3.
        Fp8 = "fp8",
    }
}

impl LoraBase {
    /// Returns the half type of the matrices; `None` for the compute type and for codes.
    #[must_use]
    pub fn dtype(self) -> Option<DType> {
        match self {
            LoraBase::Bf16 => Some(DType::Bf16),
            LoraBase::F16 => Some(DType::F16),
            LoraBase::Compute | LoraBase::Nf4 | LoraBase::Int4 | LoraBase::Fp8 => None,
        }
    }

    /// Returns the quantization codes; `None` for values.
    #[must_use]
    pub fn alphabet(self) -> Option<Alphabet> {
        match self {
            LoraBase::Compute | LoraBase::Bf16 | LoraBase::F16 => None,
            LoraBase::Nf4 => Some(Alphabet::Nf4),
            LoraBase::Int4 => Some(Alphabet::Int4),
            LoraBase::Fp8 => Some(Alphabet::E4m3),
        }
    }
}

system::names! {
    /// The kind of optimizer. `optim::Kind`, which also holds the hyperparameters, is built once all keys
    /// have been read.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OptimKind {
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// Lion: the sign of a running mean of gradients.
        Lion = "lion",
        /// Stochastic gradient descent with momentum.
        Sgd = "sgd",
        /// Muon: orthogonalised momentum for matrices of hidden layers, AdamW for all other parameters.
        Muon = "muon",
    }
}

impl OptimKind {
    /// Returns whether the optimizer has the decay rates `beta1` and `beta2`.
    #[must_use]
    pub const fn has_betas(self) -> bool {
        matches!(self, OptimKind::AdamW | OptimKind::Lion)
    }
}

system::names! {
    /// How a step's loss is averaged if some tokens are not targets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LossMean {
        /// The sum over the step's targets, divided by their number.
        Targets = "targets",
        /// The mean of the micro-batches' mean losses.
        MicroBatches = "micro-batches",
    }
}

system::names! {
    /// Selects the activations kept in host memory between forward and backward.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OffloadPolicy {
        /// No activations.
        None = "none",
        /// The inputs of recomputed layers or segments.
        Activations = "activations",
    }
}

system::names! {
    /// The shape of the learning rate after warm-up.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ScheduleName {
        /// Half a cosine, from the full rate to the minimum.
        Cosine = "cosine",
        /// A straight line, from the full rate to the minimum.
        Linear = "linear",
        /// Constant.
        Constant = "constant",
        /// Warm-up, stable, decay: constant, then a straight line down in the last steps.
        Wsd = "wsd",
        /// Multiplied by a factor at certain steps.
        Step = "step",
    }
}

system::names! {
    /// Storage type of the optimizer's moments and velocities.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum StateType {
        /// f32.
        F32 = "f32",
        /// bf16, rounded stochastically.
        Bf16 = "bf16",
        /// 8-bit codes, scaled by the largest magnitude of each block.
        EightBit = "8bit",
    }
}

system::names! {
    /// Operand type of the matmuls of linear layers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MatmulPrecision {
        /// The compute type, `precision.compute`.
        Compute = "compute",
        /// FP8 (E4M3).
        Fp8 = "fp8",
    }
}

system::names! {
    /// The time at which ranks sum gradients.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Overlap {
        /// The fastest of the others: late in backward if GPUs of one host sum through peer access, or after
        /// backward if they also shard the optimizer state; elsewhere as buckets fill.
        Auto = "auto",
        /// As each bucket fills.
        On = "on",
        /// Late in backward.
        Late = "late",
        /// After backward.
        Off = "off",
    }
}

system::names! {
    /// Type of the weights that operators read.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum WeightType {
        /// The compute type; half types have f32 master weights in addition.
        Compute = "compute",
        /// f32, cast by operators that compute in half precision.
        F32 = "f32",
    }
}

system::names! {
    /// Whether steps are captured in CUDA graphs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Graphs {
        /// Steps are captured if possible.
        Auto = "auto",
        /// Every step is captured; one that cannot be is an error.
        On = "on",
        /// Steps are never captured.
        Off = "off",
    }
}

system::names! {
    /// The action after a step whose gradient norm is far above recent ones.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OnSpike {
        /// Update the weights as usual.
        Ignore = "ignore",
        /// End the run.
        Stop = "stop",
        /// Skip the update.
        Skip = "skip",
        /// Restart from the last checkpoint and skip the step's samples.
        Rewind = "rewind",
    }
}

system::names! {
    /// The action after a step that runs out of device memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OnOutOfMemory {
        /// End the run.
        Stop = "stop",
        /// Halve the micro-batches and repeat the step.
        HalveMicroBatch = "halve_micro_batch",
    }
}

/// How a model's layers are divided over pipeline stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionPolicy {
    /// The partition whose slowest stage is fastest.
    Fastest,
    /// The partition whose largest memory peak is smallest.
    Smallest,
    /// Explicit number of layers in each stage.
    Layers(Vec<usize>),
}

impl PartitionPolicy {
    /// Names of the policies other than explicit numbers.
    pub const NAMES: &'static [&'static str] = &["fastest", "smallest"];

    pub(crate) fn read(value: &Value, takes: &Takes) -> Reading<Self> {
        match value {
            Value::Text(name) => Reading::within(match name.as_str() {
                "fastest" => Some(Self::Fastest),
                "smallest" => Some(Self::Smallest),
                _ => None,
            }),
            _ => takes.read_counts(value).map(Self::Layers),
        }
    }

    pub(crate) fn value(&self) -> Value {
        match self {
            Self::Fastest => "fastest".into(),
            Self::Smallest => "smallest".into(),
            Self::Layers(counts) => counts.as_slice().into(),
        }
    }
}

/// Selects the layers that discard their activations and recompute them in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecomputePolicy {
    /// No layer.
    None,
    /// Each layer separately.
    Block,
    /// All layers, in this number of segments.
    Segments(usize),
    /// The cheapest policy that fits in memory. Planning finds it and replaces this value.
    Auto,
}

impl RecomputePolicy {
    /// Names of the policies other than numbers of segments.
    pub const NAMES: &'static [&'static str] = &["none", "block", "auto"];

    pub(crate) fn read(value: &Value, takes: &Takes) -> Reading<Self> {
        match value {
            Value::Text(name) => Reading::within(match name.as_str() {
                "none" => Some(Self::None),
                "block" => Some(Self::Block),
                "auto" => Some(Self::Auto),
                _ => None,
            }),
            _ => takes.read_count(value).map(Self::Segments),
        }
    }

    pub(crate) fn value(self) -> Value {
        match self {
            Self::None => "none".into(),
            Self::Block => "block".into(),
            Self::Segments(count) => count.into(),
            Self::Auto => "auto".into(),
        }
    }
}

impl Serialize for RecomputePolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Block => serializer.serialize_str("block"),
            Self::Segments(count) => serializer.serialize_u64(*count as u64),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

/// Reads a string as a path; the empty string is read as `None`.
pub(crate) fn read_path(value: &Value, _: &Takes) -> Reading<Option<PathBuf>> {
    match value {
        Value::Text(text) => Reading::Good(Some(PathBuf::from(text)).filter(|_| !text.is_empty())),
        _ => Reading::WrongType,
    }
}

pub(crate) fn path_value(path: &Option<PathBuf>) -> Value {
    path.as_ref().map_or_else(String::new, |path| path.to_string_lossy().into_owned()).into()
}
