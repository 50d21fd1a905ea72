//! Enumerations of keys' values that no crate below defines.

use std::path::PathBuf;

use keys::{Reading, Takes, Value};
use nn::Alphabet;
use serde::{Serialize, Serializer};

system::names! {
    /// The source of micro-batches.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DataKind {
        /// Text files.
        Text = "text",
        /// Files of token numbers.
        Tokens = "tokens",
        /// Conversations in files of JSON lines.
        Chat = "chat",
        /// Pairs of answers in files of JSON lines, the one preferred to the other.
        Preference = "preference",
        /// Images and their classes.
        Images = "images",
        /// A random number generator, for benchmarks and planning.
        Synthetic = "synthetic",
    }
}

system::names! {
    /// The loss of pairs of answers.
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
    /// The storage of the frozen matrices beside adapters.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LoraBase {
        /// The compute type.
        Compute = "compute",
        /// 4 bits: quantiles of a normal distribution.
        Nf4 = "nf4",
        /// 4 bits: integers.
        Int4 = "int4",
        /// 8 bits: E4M3.
        Fp8 = "fp8",
    }
}

impl LoraBase {
    /// The codes; `None` for the compute type.
    #[must_use]
    pub fn alphabet(self) -> Option<Alphabet> {
        match self {
            LoraBase::Compute => None,
            LoraBase::Nf4 => Some(Alphabet::Nf4),
            LoraBase::Int4 => Some(Alphabet::Int4),
            LoraBase::Fp8 => Some(Alphabet::E4m3),
        }
    }
}

system::names! {
    /// The kind of an optimizer. Its parameters are separate keys, so `optim::Kind`, which holds them, is
    /// built after all of them have been read.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OptimKind {
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// The sign of a running mean of gradients.
        Lion = "lion",
        /// Stochastic gradient descent with momentum.
        Sgd = "sgd",
    }
}

system::names! {
    /// The mean that a step's loss over tokens is, where not all tokens are targets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LossMean {
        /// The sum over the step's targets, divided by their number.
        Targets = "targets",
        /// The mean of the micro-batches' means.
        MicroBatches = "micro-batches",
    }
}

system::names! {
    /// The activations that are in host memory between forward and backward.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OffloadPolicy {
        /// None.
        None = "none",
        /// The inputs of recomputed layers or segments.
        Activations = "activations",
    }
}

system::names! {
    /// The decay of the learning rate after the warm-up.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ScheduleName {
        /// Half a cosine.
        Cosine = "cosine",
        /// A line.
        Linear = "linear",
        /// None.
        Constant = "constant",
        /// None until the last steps, and a line in them: warm-up, stable, decay.
        Wsd = "wsd",
        /// A factor at some steps.
        Step = "step",
    }
}

system::names! {
    /// The type of an optimizer's moments and velocities.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum StateType {
        /// f32.
        F32 = "f32",
        /// bf16, rounded stochastically.
        Bf16 = "bf16",
        /// 8 bits with the largest magnitude of every block.
        EightBit = "8bit",
    }
}

system::names! {
    /// The type of the operands of linear layers' matmuls.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MatmulPrecision {
        /// The compute type.
        Compute = "compute",
        /// FP8.
        Fp8 = "fp8",
    }
}

system::names! {
    /// The time at which ranks sum gradients.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Overlap {
        /// The fastest of the others: late in backward if GPUs of one host sum through peer access, or after
        /// backward if the optimizer state is sharded there too; otherwise as buckets fill.
        Auto = "auto",
        /// As each bucket fills.
        On = "on",
        /// From late in backward on.
        Late = "late",
        /// After backward.
        Off = "off",
    }
}

system::names! {
    /// The type of the weights that operators hold.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum WeightType {
        /// The compute type; half types have f32 masters beside them.
        Compute = "compute",
        /// f32, cast where an operator computes in half precision.
        F32 = "f32",
    }
}

system::names! {
    /// Use of CUDA graphs for steps.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Graphs {
        /// Where a step can be captured.
        Auto = "auto",
        /// Always; a step that cannot be captured is refused.
        On = "on",
        /// Never.
        Off = "off",
    }
}

system::names! {
    /// Reaction of a run to a step whose gradient norm is far above recent ones.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OnSpike {
        /// The step updates the weights as any other.
        Ignore = "ignore",
        /// The run ends.
        Stop = "stop",
        /// The step updates nothing.
        Skip = "skip",
        /// The run goes back to its last checkpoint and leaves out the step's samples.
        Rewind = "rewind",
    }
}

system::names! {
    /// Reaction of a run to a step for which a device's memory did not suffice.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OnOutOfMemory {
        /// The run ends.
        Stop = "stop",
        /// The run halves the micro-batches and repeats the step.
        HalveMicroBatch = "halve_micro_batch",
    }
}

/// The partition of a model's layers over the stages of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionPolicy {
    /// The partition with the fastest slowest stage.
    Fastest,
    /// The partition with the lowest largest peak.
    Smallest,
    /// The number of layers in each stage.
    Layers(Vec<usize>),
}

impl PartitionPolicy {
    /// The policies that have a name.
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

/// The layers that discard their activations and recompute them in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecomputePolicy {
    /// No layer.
    None,
    /// Each layer separately.
    Block,
    /// The layers in this many segments.
    Segments(usize),
    /// The cheapest choice that fits, which planning finds and which then replaces this value.
    Auto,
}

impl RecomputePolicy {
    /// The policies that have a name.
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

/// Reads a string as a path; the empty string is none.
pub(crate) fn read_path(value: &Value, _: &Takes) -> Reading<Option<PathBuf>> {
    match value {
        Value::Text(text) => Reading::Good(Some(PathBuf::from(text)).filter(|_| !text.is_empty())),
        _ => Reading::WrongType,
    }
}

pub(crate) fn path_value(path: &Option<PathBuf>) -> Value {
    path.as_ref().map_or_else(String::new, |path| path.to_string_lossy().into_owned()).into()
}
