//! The sections of the configuration: every key, in the order of the file, on one row each.

use std::path::PathBuf;

use collective::PeerMethod;
use data::{Crop, OrderKind};
use device::DType;
use keys::{Interval, Reading, Row, Takes, Value, choice, section};
use nn::{FolderTensor, Fp8Layers, Fp8Recipe, Lora, MOST_EXTENT, MOST_LAYERS};
use parallel::Axis;
use parallel::data::Reduction;
use parallel::pipeline::ScheduleKind;

use crate::choices::{
    DataKind, MatmulPrecision, OnOutOfMemory, OptimKind, Overlap, PartitionPolicy, RecomputePolicy,
    ScheduleName, StateType, WeightType, path_value, read_path,
};
use crate::mixture::{self, MixtureSource};
use crate::paths;

/// The largest integer that TOML guarantees.
const MOST: u64 = i64::MAX as u64;
/// The largest token number that a key accepts.
const MOST_TOKEN: u64 = u32::MAX as u64 - 1;
/// The kinds of data that are read from files.
const FILES: &[&str] = &[DataKind::Text.name(), DataKind::Tokens.name(), DataKind::Chat.name(), IMAGES[0]];
/// The kind of data that is images.
const IMAGES: &[&str] = &[DataKind::Images.name()];
/// Those of them with documents.
const DOCUMENTS: &[&str] = &[DataKind::Text.name(), DataKind::Tokens.name(), DataKind::Chat.name()];
/// Those of them that are read as one long sequence of tokens.
const STREAMS: &[&str] = &[DataKind::Text.name(), DataKind::Tokens.name()];

section! {
    /// The key of `[model]` that every family has.
    pub struct ModelSection = "model" {
        /// The family of the model. The other keys of `[model]` belong to a family each.
        kind: String = Row::text();
        /// A folder of Hugging Face, relative to the configuration: the family and the sizes that are not
        /// written come from its config.json, and the initial weights from its safetensors.
        from: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .any_bits()
            .local()
            .finish(|path, given| paths::file(path, given, ModelSection::from, "folder of the model"));
        /// Whether only sizes come from the folder `from`, and initial weights are random.
        from_config: bool = Row::flag().default("false").any_bits();
    }
}

section! {
    /// `[data]`: the data that is trained on.
    pub struct Data = "data" {
        /// Text files, token shards, conversations, images of classes, or examples from a generator for
        /// benchmarks and planning.
        kind: DataKind = choice!(DataKind, DataKind::ALL).default("\"text\"");
        /// Files and globs of text, of token shards in nanoGPT's or llm.c's format, or of conversations in
        /// JSON lines; folders of images with a subfolder for each class, or CIFAR's binary files or their
        /// folder; at least one.
        paths: Vec<String> = Row::texts().default("[]").only(Data::kind, FILES).any_bits();
        /// Files and globs that are held out for validation; without one, the end of `paths` is, or for
        /// images CIFAR's test file, or the subfolder `val` beside `train`.
        validation_paths: Vec<String> = Row::texts().default("[]").only(Data::kind, FILES).any_bits();
        /// Sources in place of `paths`, each with its share of the sequences: `[[data.mixture]]` with
        /// `paths`, `weight` and, if need be, `validation_paths`.
        mixture: Vec<MixtureSource> =
            Row::new(Takes::Tables(MixtureSource::KEYS), MixtureSource::read_all, mixture::value)
                .default("[]")
                .only(Data::kind, STREAMS);
        /// The directory that paths are relative to; relative to its default itself.
        base: PathBuf = Row::new(Takes::Text, paths::read, paths::value)
            .derived("the configuration file's directory", |_| Ok("".into()))
            .only(Data::kind, FILES)
            .any_bits()
            .local()
            .finish(|path, given| {
                let is_files = FILES.contains(&given.text(Data::kind)?.as_str());
                paths::base(path, given, Data::base, is_files)
            });
        /// The tokenizer: "bytes", "gpt2", or the path of a tokenizer.json, relative to this file; "none" for
        /// token shards whose text does not matter.
        tokenizer: String = Row::text()
            .derived("\"none\" for token shards, else \"bytes\"", |given| {
                let is_tokens = given.text(Data::kind)? == DataKind::Tokens.name();
                Ok(if is_tokens { "none".into() } else { "bytes".into() })
            })
            .finish(|name, given| paths::tokenizer(name, given, Data::tokenizer));
        /// The file of the chat template, relative to this file; by default chat_template.jinja beside the
        /// tokenizer, or `chat_template` in its tokenizer_config.json.
        chat_template: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .only(Data::kind, &["chat"])
            .any_bits()
            .local()
            .finish(|path, given| paths::file(path, given, Data::chat_template, "chat template"));
        /// Whether the corpus is told from others by a hash of all of it, which reads it once when a run
        /// starts, and not by its size and a hash of pieces.
        full_hash: bool = Row::flag().default("false").only(Data::kind, STREAMS).any_bits();
        /// Whether sequences are filled with whole documents and padding, rather than with what follows in
        /// the text. All data is read once at the start. A document longer than a sequence is cut.
        pack_documents: bool = Row::flag().default("false").only(Data::kind, DOCUMENTS);
        /// Whether attention and positions stay within a document.
        document_mask: bool = Row::flag().default("false").only(Data::kind, DOCUMENTS);
        /// The token that documents begin with, by its number; by default the tokenizer's.
        separator: Option<u32> = Row::new(
            Takes::ChoiceOrInteger(&["tokenizer"], 0, MOST_TOKEN),
            read_token,
            |token| token.map_or("tokenizer".into(), |token| u64::from(token).into()),
        ).default("\"tokenizer\"").only(Data::kind, STREAMS);
        /// The token that does not count in the loss where it is a target, by its number.
        ignore: Option<u32> = Row::new(
            Takes::ChoiceOrInteger(&["none"], 0, MOST_TOKEN),
            read_token,
            |token| token.map_or("none".into(), |token| u64::from(token).into()),
        ).default("\"none\"").only(Data::kind, STREAMS);
        /// The directory in which tokens of text are kept between runs, relative to the current directory;
        /// empty: `.tokens` beside the run directory. Text of bytes needs none.
        cache: PathBuf = Row::new(Takes::Text, paths::read, paths::value)
            .default("\"\"")
            .only(Data::kind, &["text"])
            .any_bits()
            .local();
        /// The fraction of the text, at its end, or of the images, at random, that is held out for validation
        /// if `validation_paths` names nothing.
        validation_fraction: f64 = Row::number(Interval::Inside).default("0.05").only(Data::kind, FILES);
        /// The order of training: every epoch shuffled, or file by file from the first token on, as llm.c and
        /// modded-nanogpt read.
        order: OrderKind = choice!(OrderKind, OrderKind::ALL).default("\"shuffled\"").only(Data::kind, STREAMS);
        /// The part of a training image that a sample shows: "padded", a window of the model's size in the
        /// image with a black border; "resized", a random rectangle, scaled; "center"; or "auto": "padded"
        /// for images of the model's size, "resized" for others.
        crop: Crop = choice!(Crop, Crop::ALL).default("\"auto\"").only(Data::kind, IMAGES);
        /// Pixels of the border of `crop = "padded"`.
        crop_padding: usize = Row::count(0, 1024).default("4").only(Data::kind, IMAGES);
        /// Whether half of the training samples are mirrored.
        flip: bool = Row::flag().default("true").only(Data::kind, IMAGES);
        /// The mean that is subtracted from each channel of values from 0 to 1: one number, or one for each.
        mean: Vec<f64> =
            Row::numbers(Interval::NotNegative).default("[0.485, 0.456, 0.406]").only(Data::kind, IMAGES);
        /// The standard deviation that each channel is then divided by.
        deviation: Vec<f64> =
            Row::numbers(Interval::Positive).default("[0.229, 0.224, 0.225]").only(Data::kind, IMAGES);
        /// α of the Beta(α, α) distribution by which mixup mixes each sample with another one, and their
        /// classes; 0: it does not.
        mixup: f64 = Row::number(Interval::NotNegative).default("0").only(Data::kind, IMAGES);
        /// Whether an image that cannot be decoded is named, counted and replaced by the next one, rather
        /// than refused.
        skip_invalid: bool = Row::flag().default("false").only(Data::kind, IMAGES);
        /// Micro-batches that each rank reads ahead of its step on a thread of its own; 0: it reads each when
        /// the step needs it.
        prefetch: usize = Row::count(0, 1024).default("4").any_bits();
    }
}

section! {
    /// `[train]`: how long, and in which portions.
    pub struct Train = "train" {
        /// Optimizer steps.
        steps: u64 = Row::integer(1, 1 << 40).default("300").may_change();
        /// Sequences, samples or images in one micro-batch.
        micro_batch_size: usize = Row::count(1, MOST_EXTENT).default("8").decides_times()
            .renamed("train.micro_batch", "");
        /// Sequences, samples or images in one step, over all ranks: a multiple of `micro_batch_size`.
        global_batch_size: usize = Row::count(1, MOST_EXTENT << 20).default("32").renamed(
            "train.micro_batches",
            ", in sequences or samples: train.micro_batches × train.micro_batch",
        );
        /// The seed of initial weights and of the order of the data.
        seed: u64 = Row::integer(0, MOST).default("1");
        /// The part of each target's probability that is spread evenly over all classes in training, as
        /// PyTorch's `label_smoothing`; for images.
        label_smoothing: f64 = Row::number(Interval::Fraction).default("0");
        /// Globs of the names of parameters that are not trained, such as "wte.*" or "h.[0-5].*": they have
        /// no gradient, no master weight and no optimizer state.
        freeze: Vec<String> = Row::texts().default("[]");
        /// Steps between validations; 0: only after the last step.
        validate_every: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Successive steps with a loss or gradient norm that is not finite after which a run ends. A
        /// gradient whose norm is not finite updates nothing.
        max_nonfinite_steps: u64 = Row::integer(1, MOST).default("1").any_bits();
        /// Validations without a lower loss after which the run ends; 0: it does all steps.
        patience: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// After a step that runs out of memory: "stop" ends the run; "halve_micro_batch" halves
        /// `micro_batch_size`, doubles the number of micro-batches, and repeats the step with the same
        /// samples. Ranks of one process, without a pipeline; gradients are summed after backward.
        on_out_of_memory: OnOutOfMemory =
            choice!(OnOutOfMemory, OnOutOfMemory::ALL).default("\"stop\"").any_bits();
        /// Micro-batches in a validation, over all ranks. Of images, those beyond the last are empty.
        validation_micro_batches: u64 = Row::integer(1, 1 << 20).default("8").any_bits();
    }
}

section! {
    /// `[lora]`: low-rank adapters, which alone are trained beside the frozen model.
    pub struct LoraSection = "lora" {
        /// A folder of adapters in PEFT's format, relative to the configuration: settings that are not
        /// written come from its adapter_config.json, and the initial values from its safetensors.
        from: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .any_bits()
            .local()
            .finish(|path, given| paths::file(path, given, LoraSection::from, "folder of adapters"));
        /// The rank of the adapters; 0: there are none.
        rank: usize = Row::count(0, MOST_EXTENT).default("0");
        /// The factor of an adapter is `alpha` / `rank`.
        alpha: f64 = Row::number(Interval::NotNegative).derived("the rank", |given| {
            Ok((given.integer(LoraSection::rank)? as f64).into())
        });
        /// The probability of dropout of an adapter's input.
        dropout: f64 = Row::number(Interval::Fraction).default("0");
        /// The linear layers with an adapter: names of modules or their ends, as PEFT takes them, such as
        /// "q_proj" or "c_attn", globs of names, or "all-linear".
        targets: Vec<String> = Row::texts().default("[\"all-linear\"]");
    }
}

section! {
    /// `[optim]`: the optimizer and its learning rate.
    pub struct Optim = "optim" {
        /// AdamW, or stochastic gradient descent with momentum.
        kind: OptimKind = choice!(OptimKind, OptimKind::ALL).default("\"adamw\"").decides_times();
        /// The type of moments and velocity. bf16 takes half the bytes; each update rounds it up or down at
        /// random, with the same random numbers on every grid. Master weights stay f32.
        state: StateType = choice!(StateType, StateType::ALL).default("\"f32\"").decides_times();
        /// The highest learning rate, at the end of warm-up.
        learning_rate: f64 = Row::number(Interval::Positive).default("1e-3").may_change();
        /// The decay of the learning rate: along half a cosine, or by `gamma` at some steps.
        schedule: ScheduleName =
            choice!(ScheduleName, ScheduleName::ALL).default("\"cosine\"").may_change();
        /// Steps after which the learning rate is multiplied by `gamma`, in increasing order.
        milestones: Vec<usize> =
            Row::counts(0, 1, MOST).default("[]").only(Optim::schedule, &["step"]).may_change();
        /// Steps between multiplications by `gamma`, if there are no `milestones`.
        step_size: u64 = Row::integer(1, MOST)
            .derived("a third of `train.steps`, rounded up", |given| {
                Ok(given.integer(Train::steps)?.div_ceil(3).into())
            })
            .only(Optim::schedule, &["step"])
            .may_change();
        /// The factor of the learning rate.
        gamma: f64 =
            Row::number(Interval::Inside).default("0.1").only(Optim::schedule, &["step"]).may_change();
        /// The learning rate of the last step, reached along a cosine.
        min_learning_rate: f64 = Row::number(Interval::NotNegative)
            .derived("a tenth of `learning_rate`", |given| {
                Ok((given.number(Optim::learning_rate)? / 10.0).into())
            })
            .only(Optim::schedule, &["cosine"])
            .may_change();
        /// Steps in which the learning rate rises linearly.
        warmup_steps: u64 = Row::integer(0, MOST).default("20").may_change();
        /// Weight decay: decoupled in AdamW, added to the gradient in SGD.
        weight_decay: f64 = Row::number(Interval::NotNegative).default("0.1").may_change();
        /// Whether weight decay applies to norms and biases too.
        decay_norms: bool = Row::flag()
            .derived("true for SGD, as in PyTorch; else false", |given| {
                Ok((given.text(Optim::kind)? == OptimKind::Sgd.name()).into())
            })
            .may_change();
        /// The norm that the gradient is clipped to; 0: no clipping.
        clip_norm: f64 = Row::number(Interval::NotNegative).default("1.0").may_change();
        /// Decay of the gradient's running mean.
        beta1: f64 = Row::number(Interval::Fraction).default("0.9").only(Optim::kind, &["adamw"]);
        /// Decay of the squared gradient's running mean.
        beta2: f64 = Row::number(Interval::Fraction).default("0.95").only(Optim::kind, &["adamw"]);
        /// Added to the denominator of the update.
        epsilon: f64 = Row::number(Interval::Positive).default("1e-8").only(Optim::kind, &["adamw"]);
        /// The fraction of the velocity that an update keeps.
        momentum: f64 = Row::number(Interval::Fraction).default("0.9").only(Optim::kind, &["sgd"]);
    }
}

section! {
    /// `[parallel]`: how the work is distributed over ranks.
    pub struct Parallel = "parallel" {
        /// Ranks that share the micro-batches: a power of two that divides `lanes`.
        data: usize = Row::count(1, 1 << 20).default("1").any_bits();
        /// Ranks that share the layers.
        pipeline: usize = Row::count(1, MOST_LAYERS).default("1").any_bits();
        /// Gradient sums that a fixed tree adds: a power of two that divides the micro-batches of a step.
        lanes: usize = Row::count(1, 1 << 20).derived(
            "the largest power of two, at most 8, that divides the micro-batches of a step",
            |given| {
                let global = given.integer(Train::global_batch_size)?;
                Ok(crate::lanes::default_lanes(global / given.integer(Train::micro_batch_size)?).into())
            },
        );
        /// The order of a pipeline's passes; the bits are the same. On one rank each micro-batch ends before
        /// the next begins.
        schedule: ScheduleKind = choice!(ScheduleKind, ScheduleKind::ALL).default("\"1f1b\"").any_bits();
        /// Stages of each rank.
        chunks: usize = Row::count(1, MOST_LAYERS)
            .default("2")
            .only(Parallel::schedule, &["interleaved"])
            .any_bits()
            .finish(|count, given| match given.text(Parallel::schedule)?.as_str() {
                "interleaved" => Ok(count),
                _ => Ok(1),
            });
        /// The partition of the layers over a pipeline's stages: the one whose slowest stage is fastest, the
        /// one whose largest peak is lowest, or the number of layers in each stage.
        partition: PartitionPolicy = Row::new(
            Takes::ChoiceOrIntegers(PartitionPolicy::NAMES, 1, MOST_LAYERS),
            PartitionPolicy::read,
            PartitionPolicy::value,
        ).default("\"fastest\"").any_bits().renamed("parallel.division", "");
        /// A file of times that `plimsoll plan --profile` wrote, for choosing the partition, relative to the
        /// configuration; without one, the partition follows counted FLOPs and bytes.
        profile: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .only(Parallel::partition, &["fastest"])
            .any_bits()
            .local()
            .finish(|path, given| paths::file(path, given, Parallel::profile, "file of times"));
        /// The order in which gradients are added over ranks: a fixed tree, with the same bits on every grid,
        /// or NCCL's, with the same bits on the same grid.
        reduction: Reduction = choice!(Reduction, Reduction::ALL).default("\"tree\"");
        /// 1: each data-parallel rank keeps only its shard of the optimizer state (ZeRO stage 1); the bits
        /// are the same.
        zero_stage: u32 = Row::small(0, 1).default("0").any_bits()
            .renamed("parallel.shard_optimizer", ": true is 1, false is 0");
        /// Bytes of gradients that are reduced together.
        bucket_bytes: u64 = Row::integer(512, 1 << 40).default("67108864").any_bits();
        /// When ranks sum gradients: as buckets fill (on), from late in backward on, or after backward (off).
        /// auto: late where GPUs of one host sum through peer access, or after backward if the optimizer
        /// state is sharded there too; elsewhere as buckets fill. The bits are the same.
        overlap: Overlap = choice!(Overlap, Overlap::ALL).default("\"auto\"").any_bits();
        /// How GPUs of one host sum through peer access during backward: copy engines move all values
        /// (engines), a kernel reads them and copy engines move the sums (copies), one kernel does both
        /// (kernel), or NCCL without peer access (off); the bits are the same.
        peer_access: Option<PeerMethod> = choice!(
            Option<PeerMethod>,
            [Some(PeerMethod::Engines), Some(PeerMethod::Copies), Some(PeerMethod::Kernel), None],
            way_name
        ).default("\"kernel\"").any_bits().renamed("parallel.peers", "");
        /// Thread blocks of the kernel that reads other GPUs' memory: the multiprocessors that it takes from
        /// other work.
        peer_blocks: u32 = Row::small(1, 1024).default("16").any_bits();
        /// Seconds that a rank waits for another before it gives up.
        timeout_seconds: u64 = Row::integer(1, 1_000_000_000).default("60").any_bits();
    }
}

section! {
    /// `[precision]`: the types of values.
    pub struct Precision = "precision" {
        /// The type of activations and their gradients. Half precision keeps master weights, statistics, sums
        /// and the loss in f32; f16 has a dynamic loss scale (`[precision.scaler]`).
        compute: DType = choice!(DType, [DType::F32, DType::Bf16, DType::F16]).default("\"f32\"")
            .decides_times();
        /// The type of the weights that operators hold: the compute type, beside f32 masters that the
        /// optimizer updates, or f32 alone, cast wherever an operator computes in half precision (PyTorch's
        /// autocast; not supported yet).
        weights: WeightType = choice!(WeightType, WeightType::ALL).default("\"compute\"").decides_times()
            .unbuilt("f32 weights beside half-precision operators are", |value| *value == "f32".into());
        /// The type of the weights' gradients and of every sum of them; a half type needs `compute` of the
        /// same type.
        gradients: DType = choice!(DType, [DType::F32, DType::Bf16, DType::F16]).default("\"f32\"")
            .decides_times();
        /// Whether matmuls of f32 round their operands to TF32 on GPUs that have it (sm_80 and later).
        tf32: bool = Row::flag().default("false").decides_times();
        /// The type of the operands of linear layers' matmuls: that of `compute`, or FP8 (E4M3, and E5M2 for
        /// gradients), which needs a GPU of compute capability 8.9 and bf16, or the CPU, which emulates it.
        /// Sums, outputs and everything else stay as `compute` says.
        matmul: MatmulPrecision =
            choice!(MatmulPrecision, MatmulPrecision::ALL).default("\"compute\"").decides_times();
        /// Factors of FP8 operands, from their current largest magnitudes: one of a whole tensor, or one of
        /// every row.
        fp8_recipe: Fp8Recipe = choice!(Fp8Recipe, Fp8Recipe::ALL).default("\"tensorwise\"").decides_times();
        /// Globs of the linear layers that multiply in FP8, such as `"*.mlp.*"`; without one all but the
        /// model's first one and its head.
        fp8_layers: Vec<String> = Row::texts().default("[]").decides_times();
    }
}

/// The values of `precision.compute` that have a loss scale.
const SCALED: &[&str] = &[DType::F16.name()];

section! {
    /// `[precision.scaler]`: the factor of the loss whose gradients are in f16, as PyTorch's `GradScaler`
    /// adapts it.
    pub struct Scaler = "precision.scaler" {
        /// The first factor of the loss.
        init_scale: f64 = Row::number(Interval::Positive).default("65536").only(Precision::compute, SCALED);
        /// The factor of the scale after `growth_interval` steps in a row with finite gradients.
        growth_factor: f64 = Row::number(Interval::Positive).default("2").only(Precision::compute, SCALED);
        /// The factor of the scale after a step with an infinity or NaN in a gradient, which is skipped.
        backoff_factor: f64 = Row::number(Interval::Positive).default("0.5").only(Precision::compute, SCALED);
        /// The number of steps after which the scale grows.
        growth_interval: u64 = Row::integer(1, u32::MAX as u64).default("2000")
            .only(Precision::compute, SCALED);
    }
}

section! {
    /// `[memory]`: the caching allocator, and the activations that are kept for backward.
    pub struct Memory = "memory" {
        /// Settings of the caching allocator, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        allocator: String = Row::text().default("\"\"").any_bits();
        /// Bytes that a rank may reserve; 0: all of the device.
        limit_bytes: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Takes the planned peak from the device at the start, so that nothing is asked of its driver later
        /// and no other process can take it meanwhile.
        preallocate: bool = Row::flag().default("false").any_bits();
        /// The activations that backward computes again instead of keeping: none, those of each layer, those
        /// of the layers in so many segments one segment at a time, or the cheapest of these that fits; the
        /// bits are the same.
        recompute: RecomputePolicy = Row::new(
            Takes::ChoiceOrInteger(RecomputePolicy::NAMES, 1, MOST_LAYERS),
            RecomputePolicy::read,
            |policy| policy.value(),
        ).default("\"none\"").any_bits();
        /// The number of layers of a pipeline stage that `recompute` is for, the first ones; 0: all.
        recompute_layers: usize = Row::count(0, MOST_LAYERS).default("0").any_bits();
        /// Allocator events kept by each rank for the views in the run directory's `memory/`; 0: none are
        /// written.
        history: u64 = Row::integer(0, 100_000_000).default("0").any_bits();
    }
}

section! {
    /// `[telemetry]`: reports of progress.
    pub struct Telemetry = "telemetry" {
        /// Steps between lines of progress, and between records of the memory of all ranks in metrics.jsonl.
        every: u64 = Row::integer(1, MOST).default("10").any_bits();
        /// Steps between steps whose arrays are hashed into `hashes.jsonl`, for `plimsoll compare`: weights,
        /// optimizer state, every operator's outputs and gradients, summed gradients; 0: none.
        hashes: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Also write each step's figures as a TensorBoard event file, in `tensorboard/` of the run.
        tensorboard: bool = Row::flag().default("false").any_bits();
        /// Address, such as `127.0.0.1:9400`, at which rank 0 serves the last step's figures to Prometheus,
        /// at `/metrics`; empty: none.
        listen: String = Row::text().default("\"\"").any_bits().local();
        /// Allow `listen` to be an address that other hosts reach. Anyone there can read the figures.
        listen_publicly: bool = Row::flag().default("false").any_bits();
    }
}

section! {
    /// `[checkpoint]`: what is saved during a run.
    pub struct Checkpoint = "checkpoint" {
        /// Steps between checkpoints; 0: by time only. There is one after the last step, also of a run that
        /// is stopped, unless `minutes` is 0 too: then nothing is kept.
        every: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Minutes of training between checkpoints; 0: by steps only.
        minutes: f64 = Row::number(Interval::NotNegative).default("10").any_bits();
        /// Whether training waits for the last checkpoint where the next one is due, so that none is late;
        /// without it, the next one is put off until the last one is on the disk.
        wait: bool = Row::flag().default("false").any_bits();
        /// Checkpoints that are kept, the latest.
        keep: u64 = Row::integer(1, MOST).default("2").any_bits();
        /// Also save and keep the state with the lowest validation loss, as `checkpoints/best`.
        keep_best: bool = Row::flag().default("false").any_bits();
    }
}

/// Reads a token number; the key's name for none is `None`.
fn read_token(value: &Value, takes: &Takes) -> Reading<Option<u32>> {
    match value {
        Value::Text(name) => Reading::within(takes.names().contains(&name.as_str()).then_some(None)),
        _ => takes.read_count(value).try_into().map(Some),
    }
}

const fn way_name(way: Option<PeerMethod>) -> &'static str {
    match way {
        Some(way) => way.name(),
        None => "off",
    }
}

impl Train {
    /// Micro-batches in a step, over all ranks.
    #[must_use]
    pub fn micro_batches(&self) -> usize {
        self.global_batch_size / self.micro_batch_size
    }

    /// Returns whether a step that runs out of memory is repeated with smaller micro-batches.
    #[must_use]
    pub fn halves_micro_batches(&self) -> bool {
        self.on_out_of_memory == OnOutOfMemory::HalveMicroBatch
    }
}

impl LoraSection {
    /// The adapters of a model with these tensors in Hugging Face's format; `None` for rank 0.
    pub(crate) fn of(&self, tensors: &[FolderTensor]) -> Option<Lora> {
        let LoraSection { rank, alpha, dropout, ref targets, .. } = *self;
        (rank > 0).then(|| Lora::new(rank, alpha, dropout, targets, tensors))
    }
}

impl Checkpoint {
    /// Returns whether a run keeps checkpoints.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.every > 0 || self.minutes > 0.0
    }
}

impl Parallel {
    /// The axes of the grid of ranks with their sizes, the slowest varying first.
    #[must_use]
    pub fn axes(&self) -> [(Axis, usize); 2] {
        [(Axis::Data, self.data), (Axis::Pipeline, self.pipeline)]
    }

    /// Returns whether each data-parallel rank keeps only its shard of the optimizer state.
    #[must_use]
    pub fn shards_optimizer(&self) -> bool {
        parallel::data::shards_optimizer(self.zero_stage)
    }
}

impl Precision {
    /// Returns the types for reports: `f32`, `bf16`, or `bf16 with fp8 matmuls and bf16 gradients`.
    #[must_use]
    pub fn name(&self) -> String {
        let compute = self.compute.name();
        match (self.matmul, self.gradients) {
            (MatmulPrecision::Compute, DType::F32) => compute.to_owned(),
            (MatmulPrecision::Compute, gradients) => format!("{compute} with {gradients} gradients"),
            (MatmulPrecision::Fp8, DType::F32) => format!("{compute} with fp8 matmuls"),
            (MatmulPrecision::Fp8, gradients) => {
                format!("{compute} with fp8 matmuls and {gradients} gradients")
            }
        }
    }

    /// Returns the choice of layers that multiply in FP8; `None` if all multiply in the compute type. Errors:
    /// an invalid glob, in a sentence.
    pub(crate) fn fp8(&self) -> Result<Option<Fp8Layers>, String> {
        match self.matmul {
            MatmulPrecision::Compute => Ok(None),
            MatmulPrecision::Fp8 => Fp8Layers::new(self.fp8_recipe, &self.fp8_layers).map(Some),
        }
    }
}
