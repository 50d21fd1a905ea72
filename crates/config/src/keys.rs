//! Every key of the configuration, in the order of the file: the one place where they are listed.

use crate::RunConfig;
use crate::key::{Default, Interval, Key, Takes};
use crate::sections::{
    Activation, Compute, DataKind, Division, Gpt, Gradients, Mlp, Model, ModelKind, OptimKind, Overlap,
    Peers, Recompute, Reduction, Schedule,
};
use crate::value::Value;
use Default::{Derived, Literal};
use Takes::{Choice, ChoiceOrInteger, ChoiceOrIntegers, Flag, Integer, Integers, Number, Text, Texts};

/// The largest integer that TOML guarantees.
const MOST: u64 = i64::MAX as u64;
/// The largest extent of a tensor's axis.
const EXTENT: u64 = 1 << 24;

macro_rules! keys {
    ($($id:ident = [$section:literal] $name:literal: $takes:expr, $default:expr, $only:expr, $meaning:literal,
        $read:expr;)+) => {
        $(pub(crate) static $id: Key = Key {
            section: $section,
            name: $name,
            path: concat!($section, ".", $name),
            takes: $takes,
            default: $default,
            only: $only,
            meaning: $meaning,
            read: $read,
        };)+

        /// All keys, section by section.
        pub(crate) static KEYS: &[&Key] = &[$(&$id),+];
    };
}

const GPT: Option<(&Key, &str)> = Some((&MODEL_KIND, "gpt"));
const MLP: Option<(&Key, &str)> = Some((&MODEL_KIND, "mlp"));
const TEXT: Option<(&Key, &str)> = Some((&DATA_KIND, "text"));
const ADAMW: Option<(&Key, &str)> = Some((&OPTIM_KIND, "adamw"));
const SGD: Option<(&Key, &str)> = Some((&OPTIM_KIND, "sgd"));
const FASTEST: Option<(&Key, &str)> = Some((&DIVISION, "fastest"));
const INTERLEAVED: Option<(&Key, &str)> = Some((&SCHEDULE, "interleaved"));

fn gpt(config: &RunConfig) -> Option<&Gpt> {
    match &config.model {
        Model::Gpt(gpt) => Some(gpt),
        Model::Mlp(_) => None,
    }
}

fn mlp(config: &RunConfig) -> Option<&Mlp> {
    match &config.model {
        Model::Gpt(_) => None,
        Model::Mlp(mlp) => Some(mlp),
    }
}

fn division(division: &Division) -> Value {
    match division {
        Division::Fastest => "fastest".into(),
        Division::Smallest => "smallest".into(),
        Division::Layers(counts) => counts.as_slice().into(),
    }
}

keys! {
    MODEL_KIND = ["model"] "kind": Choice(ModelKind::NAMES), Literal("\"gpt\""), None,
        "A GPT-2-like transformer, or a multilayer perceptron.",
        |c| Some(c.model.kind().name().into());
    LAYERS = ["model"] "layers": Integer(1, 10_000), Literal("4"), GPT,
        "Transformer blocks.",
        |c| Some(gpt(c)?.layers.into());
    HEADS = ["model"] "heads": Integer(1, EXTENT), Literal("4"), GPT,
        "Attention heads; they divide the width.",
        |c| Some(gpt(c)?.heads.into());
    WIDTH = ["model"] "width": Integer(1, EXTENT), Literal("128"), GPT,
        "Values in a token's vector.",
        |c| Some(gpt(c)?.width.into());
    CONTEXT = ["model"] "context": Integer(1, EXTENT), Literal("128"), GPT,
        "Tokens in a sequence.",
        |c| Some(gpt(c)?.context.into());
    VOCABULARY = ["model"] "vocabulary": Integer(0, 1 << 31), Literal("0"), GPT,
        "Tokens that exist; 0: as many as the tokenizer has.",
        |c| Some(gpt(c)?.vocabulary.into());
    SIZES = ["model"] "sizes": Integers(2, 1, EXTENT), Literal("[64, 256, 256, 8]"), MLP,
        "Values in the input, after each hidden layer, and in the output.",
        |c| Some(mlp(c)?.sizes.as_slice().into());
    ACTIVATION = ["model"] "activation": Choice(Activation::NAMES), Literal("\"relu\""), MLP,
        "What comes after every layer but the last.",
        |c| Some(mlp(c)?.activation.name().into());

    DATA_KIND = ["data"] "kind": Choice(DataKind::NAMES), Literal("\"text\""), None,
        "Text files, or numbers from a generator for benchmarks and planning.",
        |c| Some(c.data.kind.name().into());
    PATHS = ["data"] "paths": Texts, Literal("[]"), TEXT,
        "Text files and globs, of which there must be some.",
        |c| Some(c.data.paths.as_slice().into());
    BASE = ["data"] "base": Text, Derived("the configuration file's directory"), TEXT,
        "The directory that `paths` are relative to; relative to its default itself.",
        |c| Some(c.data.base.to_string_lossy().into_owned().into());
    TOKENIZER = ["data"] "tokenizer": Text, Literal("\"bytes\""), GPT,
        "What makes tokens of text: \"bytes\".",
        |c| Some(c.data.tokenizer.name().into());
    VALIDATION_FRACTION = ["data"] "validation_fraction": Number(Interval::Part), Literal("0.05"), TEXT,
        "The part of the text, at its end, that is held out for validation.",
        |c| Some(c.data.validation_fraction.into());

    STEPS = ["train"] "steps": Integer(1, 1 << 40), Literal("300"), None,
        "Optimizer steps.",
        |c| Some(c.train.steps.into());
    MICRO_BATCH = ["train"] "micro_batch": Integer(1, EXTENT), Literal("8"), None,
        "Sequences (samples of an MLP) in a micro-batch.",
        |c| Some(c.train.micro_batch.into());
    MICRO_BATCHES = ["train"] "micro_batches": Integer(1, 1 << 20), Literal("4"), None,
        "Micro-batches in a step, over all ranks.",
        |c| Some(c.train.micro_batches.into());
    SEED = ["train"] "seed": Integer(0, MOST), Literal("1"), None,
        "What initial weights and the order of the data follow from.",
        |c| Some(c.train.seed.into());
    VALIDATE_EVERY = ["train"] "validate_every": Integer(0, MOST), Literal("0"), None,
        "Steps between validations; 0: only after the last step.",
        |c| Some(c.train.validate_every.into());
    VALIDATION_MICRO_BATCHES = ["train"] "validation_micro_batches": Integer(1, 1 << 20), Literal("8"), None,
        "Micro-batches in a validation, over all ranks.",
        |c| Some(c.train.validation_micro_batches.into());

    OPTIM_KIND = ["optim"] "kind": Choice(OptimKind::NAMES), Literal("\"adamw\""), None,
        "AdamW, or stochastic gradient descent with momentum.",
        |c| Some(c.optim.kind.name().into());
    LEARNING_RATE = ["optim"] "learning_rate": Number(Interval::Positive), Literal("1e-3"), None,
        "The highest learning rate, which warm-up ends at.",
        |c| Some(c.optim.learning_rate.into());
    MIN_LEARNING_RATE = ["optim"] "min_learning_rate": Number(Interval::NotNegative),
        Derived("a tenth of `learning_rate`"), None,
        "What the learning rate falls to at the last step, along a cosine.",
        |c| Some(c.optim.min_learning_rate.into());
    WARMUP_STEPS = ["optim"] "warmup_steps": Integer(0, MOST), Literal("20"), None,
        "Steps in which the learning rate rises linearly.",
        |c| Some(c.optim.warmup_steps.into());
    WEIGHT_DECAY = ["optim"] "weight_decay": Number(Interval::NotNegative), Literal("0.1"), None,
        "Decoupled weight decay.",
        |c| Some(c.optim.weight_decay.into());
    CLIP_NORM = ["optim"] "clip_norm": Number(Interval::NotNegative), Literal("1.0"), None,
        "The norm that the gradient is clipped to; 0: no clipping.",
        |c| Some(c.optim.clip_norm.into());
    BETA1 = ["optim"] "beta1": Number(Interval::Fraction), Literal("0.9"), ADAMW,
        "Decay of the gradient's running mean.",
        |c| Some(c.optim.beta1.into());
    BETA2 = ["optim"] "beta2": Number(Interval::Fraction), Literal("0.95"), ADAMW,
        "Decay of the squared gradient's running mean.",
        |c| Some(c.optim.beta2.into());
    EPSILON = ["optim"] "epsilon": Number(Interval::Positive), Literal("1e-8"), ADAMW,
        "Added to the denominator of the update.",
        |c| Some(c.optim.epsilon.into());
    MOMENTUM = ["optim"] "momentum": Number(Interval::Fraction), Literal("0.9"), SGD,
        "How much of the last update's direction stays.",
        |c| Some(c.optim.momentum.into());

    DATA_PARALLEL = ["parallel"] "data": Integer(1, 1 << 20), Literal("1"), None,
        "Ranks that share the micro-batches: a power of two that divides `lanes`.",
        |c| Some(c.parallel.data.into());
    PIPELINE = ["parallel"] "pipeline": Integer(1, 10_000), Literal("1"), None,
        "Ranks that share the layers.",
        |c| Some(c.parallel.pipeline.into());
    LANES = ["parallel"] "lanes": Integer(1, 1 << 20),
        Derived("the largest power of two that divides `micro_batches`, at most 8"), None,
        "Gradient sums that a fixed tree adds: a power of two that divides `micro_batches`.",
        |c| Some(c.parallel.lanes.into());
    SCHEDULE = ["parallel"] "schedule": Choice(Schedule::NAMES), Literal("\"1f1b\""), None,
        "The order of a pipeline's passes; the bits are the same. On one rank each micro-batch ends before the next begins.",
        |c| Some(c.parallel.schedule.name().into());
    CHUNKS = ["parallel"] "chunks": Integer(1, 10_000), Literal("2"), INTERLEAVED,
        "Stages of each rank.",
        |c| Some(c.parallel.chunks.into());
    DIVISION = ["parallel"] "division": ChoiceOrIntegers(Division::NAMES, 1, 10_000), Literal("\"fastest\""), None,
        "Layers over a pipeline's stages: the slowest as fast, or the largest peak as low as can be, or so many for each.",
        |c| Some(division(&c.parallel.division));
    PROFILE = ["parallel"] "profile": Text, Literal("\"\""), FASTEST,
        "A file of times that `plimsoll plan --profile` took, which the division goes by, relative to the configuration; without one, it goes by what is counted beforehand.",
        |c| Some(c.parallel.profile.as_ref().map_or("".into(), |path| path.to_string_lossy().into_owned().into()));
    REDUCTION = ["parallel"] "reduction": Choice(Reduction::NAMES), Literal("\"tree\""), None,
        "Who adds gradients over ranks: a fixed tree, with the same bits on every grid, or NCCL, the same on the same grid.",
        |c| Some(c.parallel.reduction.name().into());
    SHARD_OPTIMIZER = ["parallel"] "shard_optimizer": Flag, Literal("false"), None,
        "Whether each data-parallel rank keeps only its part of the optimizer's state; the bits are the same.",
        |c| Some(c.parallel.shard_optimizer.into());
    BUCKET_BYTES = ["parallel"] "bucket_bytes": Integer(512, 1 << 40), Literal("67108864"), None,
        "Bytes of gradients that are reduced together.",
        |c| Some(c.parallel.bucket_bytes.into());
    OVERLAP = ["parallel"] "overlap": Choice(Overlap::NAMES), Literal("\"auto\""), None,
        "When ranks sum gradients: while backward computes, from late in it on, or after it; auto: where GPUs read each other's memory late, and after it if the optimizer is divided, elsewhere while it computes; the bits are the same.",
        |c| Some(c.parallel.overlap.name().into());
    PEERS = ["parallel"] "peers": Choice(Peers::NAMES), Literal("\"kernel\""), None,
        "How the tree sums in the memory of the GPUs of one host, beside backward: copy engines move all values, a kernel reads them and copy engines move the sums, one kernel does both, or all goes over NCCL (off); the bits are the same.",
        |c| Some(c.parallel.peers.name().into());
    PEER_BLOCKS = ["parallel"] "peer_blocks": Integer(1, 1024), Literal("16"), None,
        "Blocks of the kernel that reads the other GPUs' memory: how many multiprocessors it takes from other work.",
        |c| Some(u64::from(c.parallel.peer_blocks).into());
    TIMEOUT_SECONDS = ["parallel"] "timeout_seconds": Integer(1, 1_000_000_000), Literal("60"), None,
        "Seconds that a rank waits for another before it gives up.",
        |c| Some(c.parallel.timeout_seconds.into());

    COMPUTE = ["precision"] "compute": Choice(Compute::NAMES), Literal("\"f32\""), None,
        "The type of activations and their gradients.",
        |c| Some(c.precision.compute.name().into());
    GRADIENTS = ["precision"] "gradients": Choice(Gradients::NAMES), Literal("\"f32\""), None,
        "The type of the weights' gradients and of every sum of them; \"bf16\" only where computing is in it too.",
        |c| Some(c.precision.gradients.name().into());

    ALLOCATOR = ["memory"] "allocator": Text, Literal("\"\""), None,
        "Settings of the caching allocator, in the syntax of PYTORCH_CUDA_ALLOC_CONF.",
        |c| Some(c.memory.allocator.as_str().into());
    LIMIT_BYTES = ["memory"] "limit_bytes": Integer(0, MOST), Literal("0"), None,
        "Bytes that a rank may reserve; 0: all of the device.",
        |c| Some(c.memory.limit_bytes.into());
    RECOMPUTE = ["memory"] "recompute": ChoiceOrInteger(Recompute::NAMES, 1, 10_000), Literal("\"none\""), None,
        "What is computed again in backward instead of kept: nothing, each layer, the layers in so many segments of which one \
         at a time is there, or the cheapest of these that fits; the bits are the same.",
        |c| Some(match c.memory.recompute {
            Recompute::None => "none".into(),
            Recompute::Block => "block".into(),
            Recompute::Segments(count) => count.into(),
            Recompute::Auto => "auto".into(),
        });
    RECOMPUTE_LAYERS = ["memory"] "recompute_layers": Integer(0, 10_000), Literal("0"), None,
        "How many layers of a pipeline stage `recompute` is for, the first ones; 0: all.",
        |c| Some(c.memory.recompute_layers.into());
    HISTORY = ["memory"] "history": Integer(0, 100_000_000), Literal("0"), None,
        "Allocator events kept by each rank for the views in the run directory's `memory/`; 0: none are written.",
        |c| Some(c.memory.history.into());

    TELEMETRY_EVERY = ["telemetry"] "every": Integer(1, MOST), Literal("10"), None,
        "Steps between lines of progress.",
        |c| Some(c.telemetry.every.into());

    CHECKPOINT_EVERY = ["checkpoint"] "every": Integer(0, MOST), Literal("0"), None,
        "Steps between checkpoints; 0: none.",
        |c| Some(c.checkpoint.every.into());
    CHECKPOINT_KEEP = ["checkpoint"] "keep": Integer(1, MOST), Literal("2"), None,
        "Checkpoints that are kept, the latest.",
        |c| Some(c.checkpoint.keep.into());
}

impl Key {
    /// Whether a resolved configuration has this key: whether it is of the kind that the key belongs to.
    pub(crate) fn applies(&self, config: &RunConfig) -> bool {
        self.only.is_none_or(|(kind, needed)| (kind.read)(config) == Some(needed.into()))
    }
}
