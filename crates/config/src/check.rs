//! What must hold between keys.

use parallel::pipeline;

use crate::RunConfig;
use crate::error::ConfigError;
use crate::key::Key;
use crate::keys::*;
use crate::raw::Raw;
use crate::sections::{Compute, DataKind, Division, Gpt, Gradients, Model, Recompute};

/// The most bytes that one group of tensors may have: far beyond any machine, and so far below 2⁶⁴ that sums
/// of a few of them, and the allocator's rounding, cannot overflow.
const MOST_BYTES: u128 = 1 << 56;
const BYTES_OF_F32: usize = 4;
/// Widths of a head that attention in half precision has kernels for.
const HALF_PRECISION_HEADS: [usize; 3] = [32, 64, 128];
/// Lanes beyond this many are for those who ask for them.
const MOST_DEFAULT_LANES: usize = 8;

/// The largest power of two that divides the micro-batches, at most 8.
pub(crate) fn default_lanes(micro_batches: usize) -> usize {
    power_of_two_divisors(micro_batches).take_while(|lanes| *lanes <= MOST_DEFAULT_LANES).last().unwrap_or(1)
}

/// 1, 2, 4 … as far as they divide `number`.
fn power_of_two_divisors(number: usize) -> impl Iterator<Item = usize> {
    (0..usize::BITS)
        .map(|bit| 1_usize << bit)
        .take_while(move |power| number.is_multiple_of(*power) && *power <= number)
}

/// Refuses the first values that do not go together.
pub(crate) fn check(raw: &Raw, config: &RunConfig) -> Result<(), ConfigError> {
    match &config.model {
        Model::Gpt(gpt) => check_gpt(raw, config, gpt)?,
        Model::Mlp(_) if config.data.kind == DataKind::Text => {
            let reason = "data.kind = \"text\" gives tokens and model.kind = \"mlp\" takes numbers: use \
                          data.kind = \"synthetic\"";
            return Err(conflict(raw, &[&DATA_KIND, &MODEL_KIND], reason.to_owned()));
        }
        Model::Mlp(_) => {}
    }
    if config.data.kind == DataKind::Text && config.data.paths.is_empty() {
        let reason = "data.paths names no file, such as data.paths = [\"corpus/*.txt\"]".to_owned();
        return Err(conflict(raw, &[&PATHS], reason));
    }
    if config.optim.min_learning_rate > config.optim.learning_rate {
        let reason = format!(
            "optim.min_learning_rate = {} is above optim.learning_rate = {}",
            config.optim.min_learning_rate, config.optim.learning_rate
        );
        return Err(conflict(raw, &[&MIN_LEARNING_RATE, &LEARNING_RATE], reason));
    }
    if config.precision.gradients == Gradients::Bf16 && config.precision.compute != Compute::Bf16 {
        let compute = config.precision.compute.name();
        let reason = format!(
            "precision.gradients = \"bf16\" needs precision.compute = \"bf16\", and it is \"{compute}\""
        );
        return Err(conflict(raw, &[&GRADIENTS, &COMPUTE], reason));
    }
    check_lanes(raw, config)?;
    check_pipeline(raw, config)?;
    check_recompute(raw, config)?;
    memory::Settings::parse(&config.memory.allocator)
        .map_err(|error| conflict(raw, &[&ALLOCATOR], format!("{}: {error}", ALLOCATOR.path)))?;
    Ok(())
}

fn check_gpt(raw: &Raw, config: &RunConfig, gpt: &Gpt) -> Result<(), ConfigError> {
    let Gpt { layers, heads, width, context, vocabulary } = *gpt;
    if !width.is_multiple_of(heads) {
        let reason = format!("model.width = {width} is not a multiple of model.heads = {heads}");
        return Err(conflict(raw, &[&WIDTH, &HEADS], reason));
    }
    if config.precision.compute == Compute::Bf16 && !HALF_PRECISION_HEADS.contains(&(width / heads)) {
        let reason = format!(
            "precision.compute = \"bf16\" has attention for heads of 32, 64 and 128 values, and model.width = {width} \
             over model.heads = {heads} makes {}",
            width / heads
        );
        return Err(conflict(raw, &[&COMPUTE, &HEADS, &WIDTH], reason));
    }
    let tokens = config.data.tokenizer.vocabulary();
    if config.data.kind == DataKind::Text && vocabulary < tokens {
        let tokenizer = config.data.tokenizer.name();
        let reason = format!(
            "model.vocabulary = {vocabulary} is less than the {tokens} tokens of data.tokenizer = \"{tokenizer}\""
        );
        return Err(conflict(raw, &[&VOCABULARY, &TOKENIZER], reason));
    }
    // Roughly the weights of a block are 12·width²; a micro-batch's widest activations are the logits and the
    // hidden layer of the MLP. This is no estimate of memory: it keeps sizes within what can be counted.
    let micro_batch = config.train.micro_batch;
    let groups: [(&str, &[usize], &[&Key]); 5] = [
        ("the token embedding", &[vocabulary, width], &[&VOCABULARY, &WIDTH]),
        ("the position embedding", &[context, width], &[&CONTEXT, &WIDTH]),
        ("the blocks' weights", &[layers, 12, width, width], &[&LAYERS, &WIDTH]),
        (
            "a micro-batch's logits",
            &[micro_batch, context, vocabulary],
            &[&MICRO_BATCH, &CONTEXT, &VOCABULARY],
        ),
        (
            "a micro-batch's activations",
            &[layers, micro_batch, context, 16, width],
            &[&LAYERS, &MICRO_BATCH, &CONTEXT, &WIDTH],
        ),
    ];
    for (what, factors, keys) in groups {
        let bytes =
            factors.iter().fold(BYTES_OF_F32 as u128, |bytes, factor| bytes.saturating_mul(*factor as u128));
        if bytes > MOST_BYTES {
            let values =
                keys.iter().filter_map(|key| Some(format!("{} = {}", key.path, (key.read)(config)?)));
            let values = values.collect::<Vec<_>>().join(", ");
            let reason = format!("{values}: {what} would have more than {MOST_BYTES} bytes");
            return Err(conflict(raw, keys, reason));
        }
    }
    Ok(())
}

fn check_lanes(raw: &Raw, config: &RunConfig) -> Result<(), ConfigError> {
    let (micro_batches, lanes, data) =
        (config.train.micro_batches, config.parallel.lanes, config.parallel.data);
    if !power_of_two_divisors(micro_batches).any(|good| good == lanes) {
        let reason = format!(
            "parallel.lanes = {lanes} is not a power of two that divides train.micro_batches = {micro_batches}: use {}",
            alternatives(micro_batches)
        );
        return Err(conflict(raw, &[&LANES, &MICRO_BATCHES], reason));
    }
    if !power_of_two_divisors(lanes).any(|good| good == data) {
        let given = if raw.given(&LANES).is_some() { "" } else { " (its default)" };
        let reason = format!(
            "parallel.data = {data} does not divide parallel.lanes = {lanes}{given}: use {}",
            alternatives(lanes)
        );
        return Err(conflict(raw, &[&DATA_PARALLEL, &LANES, &MICRO_BATCHES], reason));
    }
    Ok(())
}

/// Whether the layers divide into stages, and the schedule has a place for every micro-batch.
fn check_pipeline(raw: &Raw, config: &RunConfig) -> Result<(), ConfigError> {
    let (parallel, micro_batches) = (&config.parallel, config.train.micro_batches);
    if parallel.pipeline == 1 {
        return Ok(());
    }
    let (layers, stages) = (config.layers(), config.stages());
    let grid: &[&Key] = match parallel.chunks {
        1 => &[&PIPELINE, &LAYERS, &SIZES],
        _ => &[&PIPELINE, &CHUNKS, &LAYERS, &SIZES],
    };
    let of = if parallel.chunks == 1 {
        String::new()
    } else {
        format!(" × parallel.chunks = {}", parallel.chunks)
    };
    let here = format!("parallel.pipeline = {}{of}", parallel.pipeline);
    if let Err(error) = pipeline::Partition::possible(layers, stages) {
        return Err(conflict(raw, grid, format!("{here}: {error}")));
    }
    if let Division::Layers(counts) = &parallel.division {
        let refused = |error| conflict(raw, &[&DIVISION], format!("parallel.division = {counts:?}: {error}"));
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
            "parallel.schedule = \"{kind}\" with train.micro_batches = {micro_batches} over parallel.data = {}: {error}",
            parallel.data
        );
        conflict(raw, &[&SCHEDULE, &MICRO_BATCHES, &DATA_PARALLEL, &PIPELINE], reason)
    })
}

fn check_recompute(raw: &Raw, config: &RunConfig) -> Result<(), ConfigError> {
    let (of, layers) = (config.memory.recompute_layers, config.layers());
    let reason = match config.memory.recompute {
        Recompute::None if of > 0 => {
            format!("memory.recompute_layers = {of} needs a memory.recompute other than \"none\"")
        }
        Recompute::Auto if of > 0 => {
            format!(
                "memory.recompute = \"auto\" chooses the layers itself, and memory.recompute_layers = {of} is given"
            )
        }
        _ if of > layers => {
            format!("memory.recompute_layers = {of} is more than the model's {layers} layers")
        }
        Recompute::Segments(count) if count > layers => {
            format!("memory.recompute = {count} is more segments than the model's {layers} layers make")
        }
        Recompute::Segments(count) if of > 0 && count > of => {
            format!("memory.recompute = {count} is more segments than memory.recompute_layers = {of} make")
        }
        _ => return Ok(()),
    };
    Err(conflict(raw, &[&RECOMPUTE, &RECOMPUTE_LAYERS], reason))
}

/// `1, 2 or 4`: the powers of two that divide `number`.
fn alternatives(number: usize) -> String {
    let mut all: Vec<String> = power_of_two_divisors(number).map(|power| power.to_string()).collect();
    match all.pop() {
        Some(last) if all.is_empty() => last,
        Some(last) => format!("{} or {last}", all.join(", ")),
        None => String::new(),
    }
}

fn conflict(raw: &Raw, keys: &[&Key], reason: String) -> ConfigError {
    ConfigError::Conflict { place: raw.place(keys), reason }
}
