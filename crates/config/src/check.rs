//! Checks between keys.

use device::DType;
use keys::{Error, Given};
use parallel::pipeline;

use crate::RunConfig;
use crate::choices::{DataKind, PartitionPolicy, RecomputePolicy};
use crate::sections::{Data, Gpt, Memory, Mlp, Model, ModelSection, Optim, Parallel, Precision, Train};

/// The most bytes that one group of tensors may have: far beyond any machine, and so far below 2⁶⁴ that sums of a few
/// of them, and the allocator's rounding, cannot overflow.
const MOST_BYTES: u128 = 1 << 56;
const BYTES_OF_F32: usize = 4;
/// Widths of a head that attention in half precision has kernels for.
const HALF_PRECISION_HEADS: [usize; 3] = [32, 64, 128];
/// The most lanes that are chosen by default.
const MOST_DEFAULT_LANES: u64 = 8;
/// The most micro-batches of a step.
const MOST_MICRO_BATCHES: usize = 1 << 20;

/// Returns the largest power of two, at most 8, that divides the micro-batches of a step.
pub(crate) fn default_lanes(micro_batches: u64) -> u64 {
    power_of_two_divisors(micro_batches).take_while(|lanes| *lanes <= MOST_DEFAULT_LANES).last().unwrap_or(1)
}

/// Returns the powers of two that divide `number`: 1, 2, 4 ….
fn power_of_two_divisors(number: u64) -> impl Iterator<Item = u64> {
    (0..u64::BITS)
        .map(|bit| 1_u64 << bit)
        .take_while(move |power| number.is_multiple_of(*power) && *power <= number)
}

fn is_power_of_two_divisor(lanes: usize, number: usize) -> bool {
    lanes.is_power_of_two() && number.is_multiple_of(lanes)
}

/// Refuses the first values that do not go together.
pub(crate) fn check(given: &Given, config: &RunConfig) -> Result<(), Error> {
    match &config.model {
        Model::Gpt(gpt) => check_gpt(given, config, gpt)?,
        Model::Mlp(_) if config.data.kind == DataKind::Text => {
            let reason = "data.kind = \"text\" gives tokens and model.kind = \"mlp\" takes numbers: use \
                          data.kind = \"synthetic\"";
            return Err(given.conflict(&[Data::kind, ModelSection::kind], reason.to_owned()));
        }
        Model::Mlp(_) => {}
    }
    if config.data.kind == DataKind::Text && config.data.paths.is_empty() {
        let reason = "data.paths names no file, such as data.paths = [\"corpus/*.txt\"]".to_owned();
        return Err(given.conflict(&[Data::paths], reason));
    }
    if config.optim.min_learning_rate > config.optim.learning_rate {
        let reason = format!(
            "optim.min_learning_rate = {} is above optim.learning_rate = {}",
            config.optim.min_learning_rate, config.optim.learning_rate
        );
        return Err(given.conflict(&[Optim::min_learning_rate, Optim::learning_rate], reason));
    }
    if config.precision.gradients == DType::Bf16 && config.precision.compute != DType::Bf16 {
        let compute = config.precision.compute.name();
        let reason = format!(
            "precision.gradients = \"bf16\" needs precision.compute = \"bf16\", and it is \"{compute}\""
        );
        return Err(given.conflict(&[Precision::gradients, Precision::compute], reason));
    }
    check_batch(given, config)?;
    check_lanes(given, config)?;
    check_pipeline(given, config)?;
    check_recompute(given, config)?;
    memory::Settings::parse(&config.memory.allocator)
        .map_err(|error| given.conflict(&[Memory::allocator], format!("{}: {error}", Memory::allocator)))?;
    Ok(())
}

fn check_gpt(given: &Given, config: &RunConfig, gpt: &Gpt) -> Result<(), Error> {
    let Gpt { layers, heads, width, context, vocabulary } = *gpt;
    if !width.is_multiple_of(heads) {
        let reason = format!("model.width = {width} is not a multiple of model.heads = {heads}");
        return Err(given.conflict(&[Gpt::width, Gpt::heads], reason));
    }
    if config.precision.compute == DType::Bf16 && !HALF_PRECISION_HEADS.contains(&(width / heads)) {
        let reason = format!(
            "precision.compute = \"bf16\" has attention for heads of 32, 64 and 128 values, and model.width = {width} \
             over model.heads = {heads} makes {}",
            width / heads
        );
        return Err(given.conflict(&[Precision::compute, Gpt::heads, Gpt::width], reason));
    }
    let tokens = config.data.tokenizer.vocabulary();
    if config.data.kind == DataKind::Text && vocabulary < tokens {
        let tokenizer = config.data.tokenizer.name();
        let reason = format!(
            "model.vocabulary = {vocabulary} is less than the {tokens} tokens of data.tokenizer = \"{tokenizer}\""
        );
        return Err(given.conflict(&[Gpt::vocabulary, Data::tokenizer], reason));
    }
    // Roughly the weights of a block are 12·width²; a micro-batch's widest activations are the logits and the hidden
    // layer of the MLP. This is no estimate of memory: it keeps sizes within what can be counted.
    let micro_batch = config.train.micro_batch_size;
    let groups: [(&str, &[usize], &[&str]); 5] = [
        ("the token embedding", &[vocabulary, width], &[Gpt::vocabulary, Gpt::width]),
        ("the position embedding", &[context, width], &[Gpt::context, Gpt::width]),
        ("the blocks' weights", &[layers, 12, width, width], &[Gpt::layers, Gpt::width]),
        (
            "a micro-batch's logits",
            &[micro_batch, context, vocabulary],
            &[Train::micro_batch_size, Gpt::context, Gpt::vocabulary],
        ),
        (
            "a micro-batch's activations",
            &[layers, micro_batch, context, 16, width],
            &[Gpt::layers, Train::micro_batch_size, Gpt::context, Gpt::width],
        ),
    ];
    let settings = config.settings();
    for (what, factors, paths) in groups {
        let bytes =
            factors.iter().fold(BYTES_OF_F32 as u128, |bytes, factor| bytes.saturating_mul(*factor as u128));
        if bytes > MOST_BYTES {
            let named = settings.iter().filter(|(key, _)| paths.contains(&key.path));
            let values = named.map(|(key, value)| format!("{} = {value}", key.path)).collect::<Vec<_>>();
            let reason = format!("{}: {what} would have more than {MOST_BYTES} bytes", values.join(", "));
            return Err(given.conflict(paths, reason));
        }
    }
    Ok(())
}

/// Checks that a step is a number of whole micro-batches.
fn check_batch(given: &Given, config: &RunConfig) -> Result<(), Error> {
    let Train { micro_batch_size: micro, global_batch_size: global, .. } = config.train;
    let default = |path| if given.is_given(path) { "" } else { " (its default)" };
    let sizes = || {
        let (of_global, of_micro) = (default(Train::global_batch_size), default(Train::micro_batch_size));
        (
            format!("train.global_batch_size = {global}{of_global}"),
            format!("train.micro_batch_size = {micro}{of_micro}"),
        )
    };
    let reason = if !global.is_multiple_of(micro) {
        let below = global / micro * micro;
        let near = if below > 0 { format!("{below} or {}", below + micro) } else { micro.to_string() };
        let (of_step, of_micro) = sizes();
        format!("{of_step} is not a multiple of {of_micro}: use {near}")
    } else if config.train.micro_batches() > MOST_MICRO_BATCHES {
        let (of_step, of_micro) = sizes();
        format!("{of_step} is more than {MOST_MICRO_BATCHES} micro-batches of {of_micro}")
    } else {
        return Ok(());
    };
    Err(given.conflict(&[Train::global_batch_size, Train::micro_batch_size], reason))
}

fn check_lanes(given: &Given, config: &RunConfig) -> Result<(), Error> {
    let (micro_batches, lanes, data) =
        (config.train.micro_batches(), config.parallel.lanes, config.parallel.data);
    if !is_power_of_two_divisor(lanes, micro_batches) {
        let reason = format!(
            "parallel.lanes = {lanes} is not a power of two that divides {}: use {}",
            micro_batches_in_words(config),
            alternatives(micro_batches)
        );
        return Err(given.conflict(&[Parallel::lanes, Train::global_batch_size], reason));
    }
    if !is_power_of_two_divisor(data, lanes) {
        let default = if given.is_given(Parallel::lanes) { "" } else { " (its default)" };
        let reason = format!(
            "parallel.data = {data} does not divide parallel.lanes = {lanes}{default}: use {}",
            alternatives(lanes)
        );
        return Err(given.conflict(&[Parallel::data, Parallel::lanes, Train::global_batch_size], reason));
    }
    Ok(())
}

/// `the 4 micro-batches of train.global_batch_size = 32`.
fn micro_batches_in_words(config: &RunConfig) -> String {
    let (count, global) = (config.train.micro_batches(), config.train.global_batch_size);
    format!("the {count} micro-batches of train.global_batch_size = {global}")
}

/// Checks that the layers divide into stages, and that the schedule has room for every micro-batch.
fn check_pipeline(given: &Given, config: &RunConfig) -> Result<(), Error> {
    let (parallel, micro_batches) = (&config.parallel, config.train.micro_batches());
    if parallel.pipeline == 1 {
        return Ok(());
    }
    let (layers, stages) = (config.layers(), config.stages());
    let grid: &[&str] = match parallel.chunks {
        1 => &[Parallel::pipeline, Gpt::layers, Mlp::sizes],
        _ => &[Parallel::pipeline, Parallel::chunks, Gpt::layers, Mlp::sizes],
    };
    let of = if parallel.chunks == 1 {
        String::new()
    } else {
        format!(" × parallel.chunks = {}", parallel.chunks)
    };
    let here = format!("parallel.pipeline = {}{of}", parallel.pipeline);
    if let Err(error) = pipeline::Partition::possible(layers, stages) {
        return Err(given.conflict(grid, format!("{here}: {error}")));
    }
    if let PartitionPolicy::Layers(counts) = &parallel.partition {
        let refused = |error| {
            given.conflict(&[Parallel::partition], format!("parallel.partition = {counts:?}: {error}"))
        };
        pipeline::Partition::explicit(layers, stages, counts).map_err(refused)?;
    }
    let shape = pipeline::Shape {
        ranks: parallel.pipeline,
        chunks: parallel.chunks,
        micro_batches: micro_batches / parallel.data,
    };
    let kind = config.schedule_kind();
    pipeline::Schedule::check(kind, shape).map_err(|error| {
        let reason = format!(
            "parallel.schedule = \"{kind}\" with {} over parallel.data = {}: {error}",
            micro_batches_in_words(config),
            parallel.data
        );
        given.conflict(
            &[Parallel::schedule, Train::global_batch_size, Parallel::data, Parallel::pipeline],
            reason,
        )
    })
}

fn check_recompute(given: &Given, config: &RunConfig) -> Result<(), Error> {
    let (of, layers) = (config.memory.recompute_layers, config.layers());
    let reason = match config.memory.recompute {
        RecomputePolicy::None if of > 0 => {
            format!("memory.recompute_layers = {of} needs a memory.recompute other than \"none\"")
        }
        RecomputePolicy::Auto if of > 0 => {
            format!(
                "memory.recompute = \"auto\" chooses the layers itself, and memory.recompute_layers = {of} is given"
            )
        }
        _ if of > layers => {
            format!("memory.recompute_layers = {of} is more than the model's {layers} layers")
        }
        RecomputePolicy::Segments(count) if count > layers => {
            format!("memory.recompute = {count} is more segments than the model's {layers} layers make")
        }
        RecomputePolicy::Segments(count) if of > 0 && count > of => {
            format!("memory.recompute = {count} is more segments than memory.recompute_layers = {of} make")
        }
        _ => return Ok(()),
    };
    Err(given.conflict(&[Memory::recompute, Memory::recompute_layers], reason))
}

/// `1, 2 or 4`: the powers of two that divide `number`.
fn alternatives(number: usize) -> String {
    let mut all: Vec<String> = power_of_two_divisors(number as u64).map(|power| power.to_string()).collect();
    match all.pop() {
        Some(last) if all.is_empty() => last,
        Some(last) => format!("{} or {last}", all.join(", ")),
        None => String::new(),
    }
}
