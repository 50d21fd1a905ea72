//! Checks between keys of different sections.

use data::{OrderKind, Tokenizer};
use device::DType;
use keys::{Error, RawValues};
use nn::{Conditions, Examples};
use parallel::pipeline;
use system::numbers::grouped;

use crate::check_adapters::check_adapters;
use crate::check_average::check_average;
use crate::check_context::check_context_lanes;
use crate::check_experts::check_experts;
use crate::check_images::check_images;
use crate::check_offload::check_offload;
use crate::check_optim::check_optim;
use crate::check_prediction::check_prediction;
use crate::check_preference::check_preference;
use crate::check_schedule::check_schedule;
use crate::check_tensor::check_tensor_lanes;
use crate::check_validation::check_validation;
use crate::choices::{DataKind, MatmulPrecision, OnSpike, PartitionPolicy, RecomputePolicy};
use crate::lanes::{divisor_from, divisors_around};
use crate::run_config::RunConfig;
use crate::sections::{
    Checkpoint, Data, LoraSection, Memory, ModelSection, Parallel, Precision, Scaler, Train,
};

/// Maximum number of micro-batches per step.
const MOST_MICRO_BATCHES: usize = 1 << 20;

/// Checks all values against each other. Returns an error for the first contradiction.
pub(crate) fn check(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    check_model(raw, config)?;
    check_data(raw, config)?;
    check_images(raw, config)?;
    check_experts(raw, config)?;
    check_preference(raw, config)?;
    check_prediction(raw, config)?;
    check_schedule(raw, config)?;
    check_validation(raw, config)?;
    check_average(raw, config)?;
    check_optim(raw, config)?;
    check_precision(raw, config)?;
    check_offload(raw, config)?;
    if config.precision.matmul == MatmulPrecision::Fp8 && config.lora.rank > 0 {
        let reason = format!(
            "precision.matmul = \"fp8\" has no adapters, and lora.rank = {}: use \"compute\"",
            config.lora.rank
        );
        return Err(raw.conflict(&[Precision::matmul, LoraSection::rank], reason));
    }
    check_adapters(raw, config)?;
    if config.lora.rank == 0 && config.lora.from.is_some() {
        let reason = "lora.from names adapters, and lora.rank = 0 is none".to_owned();
        return Err(raw.conflict(&[LoraSection::rank, LoraSection::from], reason));
    }
    check_batch(raw, config)?;
    check_repetition(raw, config)?;
    check_spikes(raw, config)?;
    check_memory_steps(raw, config)?;
    check_lanes(raw, config)?;
    check_tensor_lanes(raw, config)?;
    check_context_lanes(raw, config)?;
    check_pipeline(raw, config)?;
    check_recompute(raw, config)?;
    let settings = memory::Settings::parse(&config.memory.allocator)
        .map_err(|error| raw.conflict(&[Memory::allocator], format!("{}: {error}", Memory::allocator)))?;
    check_emptied_cache(raw, config, &settings)
}

/// Checks that no setting contradicts `memory.empty_cache_every`.
fn check_emptied_cache(
    raw: &RawValues,
    config: &RunConfig,
    settings: &memory::Settings,
) -> Result<(), Error> {
    let every = config.memory.empty_cache_every;
    if every > 0 && config.memory.preallocate {
        let reason = format!(
            "memory.preallocate = true keeps memory that memory.empty_cache_every = {every} returns: use one \
             of them"
        );
        return Err(raw.conflict(&[Memory::preallocate, Memory::empty_cache_every], reason));
    }
    if every > 0 && settings.garbage_collection_threshold > 0.0 {
        let reason = format!(
            "memory.empty_cache_every = {every} and garbage_collection_threshold in memory.allocator both \
             return idle memory: use one of them"
        );
        return Err(raw.conflict(&[Memory::empty_cache_every, Memory::allocator], reason));
    }
    Ok(())
}

/// Checks that the types of `[precision]` are compatible, and that the loss scale can grow and shrink.
fn check_precision(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let (Precision { compute, gradients, .. }, scaler) = (&config.precision, &config.scaler);
    if *gradients != DType::F32 && gradients != compute {
        let reason = format!(
            "precision.gradients = \"{gradients}\" needs precision.compute = \"{gradients}\", and it is \
             \"{compute}\""
        );
        return Err(raw.conflict(&[Precision::gradients, Precision::compute], reason));
    }
    if config.precision.is_autocast() && *gradients != DType::F32 {
        let reason = format!(
            "precision.weights = \"f32\" has gradients in f32, and precision.gradients = \"{gradients}\""
        );
        return Err(raw.conflict(&[Precision::weights, Precision::gradients], reason));
    }
    if config.precision.is_autocast() && config.precision.matmul == MatmulPrecision::Fp8 {
        let reason = "precision.matmul = \"fp8\" casts weights of the compute type, and precision.weights = \
                      \"f32\": use \"compute\" for one of them"
            .to_owned();
        return Err(raw.conflict(&[Precision::weights, Precision::matmul], reason));
    }
    let growth = scaler.growth_factor;
    let backoff = scaler.backoff_factor;
    if growth <= 1.0 {
        let reason = format!("precision.scaler.growth_factor = {growth} is not above 1");
        return Err(raw.conflict(&[Scaler::growth_factor], reason));
    }
    if backoff >= 1.0 {
        let reason = format!("precision.scaler.backoff_factor = {backoff} is not below 1");
        return Err(raw.conflict(&[Scaler::backoff_factor], reason));
    }
    Ok(())
}

/// Checks the model's sizes, and that the data has the kind of examples the model learns from.
fn check_model(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let kind = config.data.kind.name();
    let is_files = config.data.kind != DataKind::Synthetic;
    let images = config.data.kind == DataKind::Images;
    let takes = match config.model.examples() {
        Examples::Tokens { .. } => "tokens",
        Examples::Numbers { .. } => "numbers",
        Examples::Images { .. } => "images",
    };
    let gives = if images { "images" } else { "tokens" };
    if config.train.neftune_alpha > 0.0 && takes != "tokens" {
        let reason = format!(
            "train.neftune_alpha is for embeddings of tokens, and model.kind = \"{}\" takes {takes}",
            config.model.kind()
        );
        return Err(raw.conflict(&[Train::neftune_alpha, ModelSection::kind], reason));
    }
    match config.model.examples() {
        _ if is_files && takes != gives => {
            let other = match takes {
                "images" => "\"images\" or \"synthetic\"",
                _ => "\"synthetic\"",
            };
            let reason = format!(
                "data.kind = \"{kind}\" gives {gives} and model.kind = \"{}\" takes {takes}: use \
                 data.kind = {other}",
                config.model.kind()
            );
            return Err(raw.conflict(&[Data::kind, ModelSection::kind], reason));
        }
        Examples::Tokens { vocabulary: 0, .. } => {
            let reason = "data.kind = \"tokens\" needs model.vocabulary or the data.tokenizer that made the \
                          tokens"
                .to_owned();
            return Err(raw.conflict(&[Data::kind], reason));
        }
        _ => {}
    }
    let conditions =
        Conditions { compute: config.precision.compute, micro_batch_size: config.micro_batch_rows() };
    config.model.check(raw, &conditions)
}

/// Checks that data files are named, and that text has a tokenizer.
fn check_data(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let Data { paths, mixture, .. } = &config.data;
    if !mixture.is_empty() && !paths.is_empty() {
        let reason = "data.paths and data.mixture are given, and a mixture names its own paths".to_owned();
        return Err(raw.conflict(&[Data::mixture, Data::paths], reason));
    }
    if config.data.kind != DataKind::Synthetic && paths.is_empty() && mixture.is_empty() {
        let reason = "data.paths names no file, such as data.paths = [\"corpus/*.txt\"]".to_owned();
        return Err(raw.conflict(&[Data::paths], reason));
    }
    let is_chat = config.data.kind == DataKind::Chat;
    if (config.data.pack_documents || config.data.document_mask) && !is_chat && config.separator().is_none() {
        let reason =
            "data.pack_documents and data.document_mask need data.separator, the token that documents \
                      begin with"
                .to_owned();
        return Err(raw.conflict(&[Data::pack_documents, Data::document_mask], reason));
    }
    if config.data.pack_documents && config.data.order == OrderKind::Sequential {
        let reason =
            "data.order = \"sequential\" reads tokens as they follow, and data.pack_documents does not";
        return Err(raw.conflict(&[Data::order, Data::pack_documents], reason.to_owned()));
    }
    if config.data.group_by_length {
        check_groups(raw, config)?;
    }
    if matches!(config.data.kind, DataKind::Text | DataKind::Chat | DataKind::Preference)
        && config.tokenizer == Tokenizer::None
    {
        let kind = config.data.kind.name();
        let reason = format!("data.tokenizer = \"none\" makes no tokens of data.kind = \"{kind}\"");
        return Err(raw.conflict(&[Data::tokenizer, Data::kind], reason));
    }
    Ok(())
}

/// Checks that the sequences of a step may be shorter than `model.context`.
fn check_groups(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    if config.data.pack_documents {
        let reason = "packed sequences have no lengths by which data.group_by_length could group them: set \
                      data.pack_documents = false";
        return Err(raw.conflict(&[Data::group_by_length, Data::pack_documents], reason.to_owned()));
    }
    let parallel = &config.parallel;
    let divided = [
        (Parallel::pipeline, parallel.pipeline),
        (Parallel::context, parallel.context),
        (Parallel::context_lanes, parallel.context_lanes),
    ];
    match divided.into_iter().find(|(_, size)| *size > 1) {
        Some((key, size)) => {
            let reason = format!("data.group_by_length needs sequences of one length with {key} = {size}");
            Err(raw.conflict(&[Data::group_by_length, key], reason))
        }
        None => Ok(()),
    }
}

/// Checks that a step consists of whole micro-batches.
fn check_batch(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let Train { micro_batch_size: micro, global_batch_size: global, .. } = config.train;
    let default = |path| if raw.is_set(path) { "" } else { " (its default)" };
    let sizes = || {
        let of_global = default(Train::global_batch_size);
        let of_micro = default(Train::micro_batch_size);
        (
            format!("train.global_batch_size = {global}{of_global}"),
            format!("train.micro_batch_size = {micro}{of_micro}"),
        )
    };
    let reason = if !global.is_multiple_of(micro) {
        let below = global / micro * micro;
        let near = if below > 0 { format!("{below} or {}", below + micro) } else { micro.to_string() };
        let (of_step, of_micro) = sizes();
        format!("{of_step} is not a multiple of {of_micro}: use {} = {near}", Train::global_batch_size)
    } else if config.train.micro_batches() > MOST_MICRO_BATCHES {
        let (of_step, of_micro) = sizes();
        format!("{of_step} is more than {MOST_MICRO_BATCHES} micro-batches of {of_micro}")
    } else {
        return Ok(());
    };
    Err(raw.conflict(&[Train::global_batch_size, Train::micro_batch_size], reason))
}

/// Checks that a step that runs out of memory can be repeated with smaller micro-batches of the same samples.
fn check_repetition(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    if !config.train.halves_micro_batches() {
        return Ok(());
    }
    let (other, why) = if config.parallel.pipeline > 1 {
        (Parallel::pipeline, "needs parallel.pipeline = 1: stages wait for each other within a step")
    } else if config.data.kind == DataKind::Synthetic {
        (Data::kind, "needs other data than \"synthetic\", whose samples depend on the micro-batch size")
    } else if config.data.order == OrderKind::Sequential {
        (Data::order, "needs data.order = \"shuffled\": the other depends on the micro-batch size")
    } else if !config.checkpoint.is_kept() {
        (Checkpoint::minutes, "needs checkpoints, from which the step is repeated: set checkpoint.minutes")
    } else {
        return Ok(());
    };
    let reason = format!("train.on_out_of_memory = \"halve_micro_batch\" {why}");
    Err(raw.conflict(&[Train::on_out_of_memory, other], reason))
}

/// Checks that a run with `train.on_spike = "rewind"` keeps checkpoints.
fn check_spikes(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    if config.train.on_spike != OnSpike::Rewind || config.checkpoint.is_kept() {
        return Ok(());
    }
    let reason = "train.on_spike = \"rewind\" needs checkpoints: set checkpoint.minutes";
    Err(raw.conflict(&[Train::on_spike, Checkpoint::minutes], reason.to_owned()))
}

/// Checks that a run that keeps states in memory also keeps checkpoints, which a job needs after losing
/// hosts.
fn check_memory_steps(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    if config.checkpoint.memory_steps == 0 || config.checkpoint.is_kept() {
        return Ok(());
    }
    let reason = "checkpoint.memory_steps needs checkpoints for the loss of hosts: set checkpoint.minutes";
    Err(raw.conflict(&[Checkpoint::memory_steps, Checkpoint::minutes], reason.to_owned()))
}

fn check_lanes(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let (micro_batches, lanes, data) =
        (config.train.micro_batches(), config.parallel.lanes, config.parallel.data);
    if !micro_batches.is_multiple_of(lanes) {
        let reason = format!(
            "parallel.lanes = {lanes} does not divide {}: use {}",
            micro_batches_in_words(config),
            divisors_around(lanes, micro_batches)
        );
        return Err(raw.conflict(&[Parallel::lanes, Train::global_batch_size], reason));
    }
    let sharing = config.parallel.replicas();
    if config.parallel.shard > 0 && !sharing.is_multiple_of(config.parallel.shard) {
        let shard = config.parallel.shard;
        let context = match config.parallel.gradient_parts() {
            1 => String::new(),
            parts => format!(" times parallel.context = {parts}"),
        };
        let reason = format!(
            "parallel.shard = {shard} does not divide parallel.data = {data}{context}: use {}",
            divisors_around(shard, sharing)
        );
        return Err(raw.conflict(&[Parallel::shard, Parallel::data], reason));
    }
    if data > lanes {
        let default = if raw.is_set(Parallel::lanes) { "" } else { " (its default)" };
        let advice = match divisor_from(data, micro_batches) {
            Some(more) => format!("set parallel.lanes = {more}, which decides the bits, on every grid"),
            None => format!(
                "{} allow no more: lower train.micro_batch_size or use fewer ranks",
                micro_batches_in_words(config)
            ),
        };
        let reason = format!(
            "parallel.data = {data} is more than parallel.lanes = {lanes}{default}, the sums of gradients \
             that ranks share: {advice}"
        );
        return Err(raw.conflict(&[Parallel::data, Parallel::lanes, Train::global_batch_size], reason));
    }
    Ok(())
}

/// Formats the number of micro-batches: `the 4 micro-batches of train.global_batch_size = 32`.
fn micro_batches_in_words(config: &RunConfig) -> String {
    let count = grouped(config.train.micro_batches() as u64);
    format!("the {count} micro-batches of train.global_batch_size = {}", config.train.global_batch_size)
}

/// Checks that the layers divide over the stages, and that the schedule accepts the number of micro-batches.
fn check_pipeline(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let parallel = &config.parallel;
    if parallel.pipeline == 1 {
        return Ok(());
    }
    let layers = config.layers();
    let stages = config.stages();
    let grid: &[&str] = match parallel.chunks {
        1 => &[Parallel::pipeline, config.model.layers_key()],
        _ => &[Parallel::pipeline, Parallel::chunks, config.model.layers_key()],
    };
    let chunks = if parallel.chunks == 1 {
        String::new()
    } else {
        format!(" × parallel.chunks = {}", parallel.chunks)
    };
    let here = format!("parallel.pipeline = {}{chunks}", parallel.pipeline);
    if let Err(error) = pipeline::Partition::possible(layers, stages) {
        return Err(raw.conflict(grid, format!("{here}: {error}")));
    }
    if let PartitionPolicy::Layers(counts) = &parallel.partition {
        let refused =
            |error| raw.conflict(&[Parallel::partition], format!("parallel.partition = {counts:?}: {error}"));
        pipeline::Partition::explicit(layers, stages, counts).map_err(refused)?;
    }
    let kind = config.schedule_kind();
    // The last replica has the fewest micro-batches.
    let shapes = [0, parallel.data - 1].map(|replica| config.pipeline_shape_of(replica));
    shapes.into_iter().try_for_each(|shape| pipeline::Schedule::check(kind, shape)).map_err(|error| {
        let reason = format!(
            "parallel.schedule = \"{kind}\" with {} over parallel.data = {}: {error}",
            micro_batches_in_words(config),
            parallel.data
        );
        raw.conflict(
            &[Parallel::schedule, Train::global_batch_size, Parallel::data, Parallel::pipeline],
            reason,
        )
    })
}

fn check_recompute(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let recomputed = config.memory.recompute_layers;
    let layers = config.layers();
    let reason = match config.memory.recompute {
        RecomputePolicy::None if recomputed > 0 => {
            format!("memory.recompute_layers = {recomputed} needs a memory.recompute other than \"none\"")
        }
        RecomputePolicy::Auto if recomputed > 0 => {
            format!(
                "memory.recompute = \"auto\" chooses the layers itself, and memory.recompute_layers = {recomputed} \
                 is set"
            )
        }
        _ if recomputed > layers => {
            format!("memory.recompute_layers = {recomputed} is more than the model's {layers} layers")
        }
        RecomputePolicy::Segments(count) if count > layers => {
            format!("memory.recompute = {count} is more segments than the model's {layers} layers make")
        }
        RecomputePolicy::Segments(count) if recomputed > 0 && count > recomputed => {
            format!(
                "memory.recompute = {count} is more segments than memory.recompute_layers = {recomputed} make"
            )
        }
        _ => return Ok(()),
    };
    Err(raw.conflict(&[Memory::recompute, Memory::recompute_layers], reason))
}
