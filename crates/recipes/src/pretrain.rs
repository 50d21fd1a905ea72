//! Creates the configuration of a pretraining job.

use config::{Data, DataKind, Optim, Train};
use telemetry::units::grouped;

use crate::draft::{Draft, JobOptions};
use crate::error::{RecipeError, Result};
use crate::finetune::tokenizer_for;
use crate::found_data::{BYTES_IN_SHARDS, BYTES_PER_TOKEN, FoundData, HELD_OUT, find_data};

/// Sizes of a model, and its training settings.
#[derive(Clone, Copy, Debug)]
struct Shape {
    layers: usize,
    heads: usize,
    width: usize,
    context: usize,
    rate: f64,
    /// Number of parameters in its blocks.
    parameters: u64,
    global_batch: usize,
}

/// Shapes by size. The smallest is for CPUs and little data.
const SHAPES: [Shape; 4] = [
    Shape::new(4, 4, 128, 128, 3e-3, 32),
    Shape::new(6, 6, 384, 256, 1e-3, 64),
    Shape::new(12, 12, 768, 1024, 6e-4, 256),
    Shape::new(24, 16, 1024, 1024, 3e-4, 256),
];
/// Number of shapes that a CPU can train in reasonable time.
const ON_CPU: usize = 1;
/// Tokens of data per parameter from which on a larger model is chosen.
const TOKENS_PER_PARAMETER: u64 = 10;
/// Texts with more bytes than this get a tokenizer instead of byte tokens.
const MOST_BYTES_AS_TOKENS: u64 = 20_000_000;
/// Minimum and maximum number of steps; in between, each token is seen once.
const STEPS: (u64, u64) = (500, 50_000);

impl Shape {
    const fn new(layers: usize, heads: usize, width: usize, context: usize, rate: f64, batch: usize) -> Self {
        let parameters = 12 * (layers * width * width) as u64;
        Self { layers, heads, width, context, rate, parameters, global_batch: batch }
    }
}

/// Returns a configuration that trains a language model from random weights.
///
/// # Errors
/// The data is of no known kind, or of a kind for fine-tuning.
pub fn pretrain(options: &JobOptions) -> Result<Draft> {
    let found = find_data(options.directories.current(), &options.data)?;
    if !matches!(found.kind, DataKind::Text | DataKind::Tokens) {
        return Err(RecipeError::Refused(format!(
            "the data is {}: pretraining takes text or token shards; `plimsoll new finetune MODEL DATA` \
             takes these",
            found.summary
        )));
    }
    let mut draft = Draft::new("pretrain");
    draft.choose(format!("data.kind = \"{}\": {}", found.kind.name(), found.summary));
    let tokens = set_tokenizer(&mut draft, &found, options);
    let shape = shape(tokens, options);
    let shape = Shape { context: shape.context.min(found.most_context()), ..shape };
    set_model(&mut draft, shape, tokens, options);
    set_training(&mut draft, shape, tokens);
    draft.set_precision(options);
    Ok(draft)
}

/// Sets data and tokenizer. Returns the approximate number of tokens.
fn set_tokenizer(draft: &mut Draft, found: &FoundData, options: &JobOptions) -> u64 {
    let is_text = found.kind == DataKind::Text;
    let comment = if is_text { "plain text" } else { "token shards" };
    draft.set_data(found.kind.name(), comment, &found.paths, options);
    let (name, reason) = match &options.tokenizer {
        Some(name) => (Some(tokenizer_for(name, options)), "as --tokenizer says"),
        None if !is_text => of_shards(found, options),
        None if found.bytes > MOST_BYTES_AS_TOKENS => (Some("gpt2".to_owned()), "there is much text"),
        None => (Some("bytes".to_owned()), "there is little text"),
    };
    match &name {
        Some(name) => {
            let comment = "\"bytes\", \"gpt2\" or a tokenizer.json";
            draft.document.set(Data::tokenizer, name.as_str(), comment);
            draft.choose(format!("{}: {reason}", draft.document.assignment(Data::tokenizer)));
        }
        None => draft.choose(format!("tokenizer: {reason}")),
    }
    draft.document.set(Data::validation_fraction, HELD_OUT, "part of the data that is held out");
    match (is_text, name.as_deref()) {
        (true, Some("bytes")) => found.bytes,
        (true, _) => found.bytes / BYTES_PER_TOKEN,
        (false, _) => found.bytes / BYTES_IN_SHARDS,
    }
}

/// Returns the tokenizer of token shards if it must be configured, and the reason.
fn of_shards(found: &FoundData, options: &JobOptions) -> (Option<String>, &'static str) {
    match data::Tokenizer::beside_shards(options.directories.current(), &found.paths) {
        Some(_) => (None, "the one that the files beside the shards name"),
        None => (Some("gpt2".to_owned()), "no file beside the shards names theirs, and GPT-2's is usual"),
    }
}

/// Returns the largest shape for which there is enough data; on a CPU, only small ones.
fn shape(tokens: u64, options: &JobOptions) -> Shape {
    let most = if options.on_gpu() { SHAPES.len() } else { ON_CPU };
    let is_enough = |shape: &&Shape| shape.parameters * TOKENS_PER_PARAMETER <= tokens;
    let [smallest, ..] = SHAPES;
    SHAPES[..most].iter().rev().find(is_enough).copied().unwrap_or(smallest)
}

fn set_model(draft: &mut Draft, shape: Shape, tokens: u64, options: &JobOptions) {
    let document = &mut draft.document;
    document.set("model.kind", "llama", "RMS norms, rotary positions, gated feed-forward layers");
    document.set("model.layers", shape.layers, "");
    document.set("model.heads", shape.heads, "");
    document.set("model.width", shape.width, "values in a token's vector");
    document.set("model.context", shape.context, "tokens in a sequence");
    let reason = match options.on_gpu() {
        true => format!("for about {} tokens", grouped(tokens)),
        false => "on a CPU larger models take long".to_owned(),
    };
    let Shape { layers, width, context, .. } = shape;
    draft.choose(format!("model: {layers} layers of width {width}, sequences of {context} tokens: {reason}"));
}

fn set_training(draft: &mut Draft, shape: Shape, tokens: u64) {
    let tokens_per_step = (shape.global_batch * shape.context) as u64;
    let (least, most) = STEPS;
    let steps = (tokens / tokens_per_step).clamp(least, most);
    let epochs = (steps * tokens_per_step) as f64 / tokens.max(1) as f64;
    draft.document.set(Train::steps, steps, format!("about {epochs:.1} passes over the data"));
    draft.choose(format!("train.steps = {steps}: about {epochs:.1} passes over the data"));
    draft.set_batch("sequences", shape.global_batch, shape.global_batch);
    let interval = (steps / 10).max(1);
    draft.document.set(Train::validate_every, interval, "steps between validations");
    draft.document.set(Optim::learning_rate, shape.rate, "highest rate; it falls along a cosine");
    draft.document.set(Optim::warmup_steps, (steps / 50).max(20), "steps in which the rate rises");
    draft.document.set(Optim::weight_decay, 0.1, "of matrices and embeddings");
    draft.choose(format!("optim.learning_rate = {:e}: usual at this width", shape.rate));
}
