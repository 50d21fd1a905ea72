//! The sample at the end of a run, generated on the host. Its weights are on a separate device, so the run's
//! memory figures do not change.

use std::time::Duration;

use collective::{Communicator, GridShape};
use config::{Graphs, RunConfig};
use data::{MicroBatch, Source, Tokenizer};
use generation::{Generator, GeneratorOptions};
use nn::Examples;
use run::{Sample, Sampler};
use worker::{Placement, Worker, state};

use super::generate::{Job, generate};
use super::options::SampleOptions;
use super::prepare::{setup_of, with_whole_sequences};
use super::prompts::Prompt;
use super::text::{Text, tail};
use run::Result;

/// Number of tokens of the continuation.
const TOKENS: usize = 320;
/// Number of tokens of held-out text with which the sample starts.
const PROMPT: usize = 24;
/// Maximum duration of generating the sample.
const LIMIT: Duration = Duration::from_secs(10);

/// Returns a sampler that continues the beginning of the held-out text for at most ten seconds.
#[must_use]
pub fn sampler() -> Sampler {
    Sampler::new(|worker| sample_of_run(worker, TOKENS))
}

/// Continues the beginning of the held-out text by `count` tokens. Returns prompt and continuation; `None`
/// for a model or data without text, and on ranks other than 0, which contribute their shards of the weights.
/// Draws use the run's seed, so the same model always generates the same sample.
fn sample_of_run(worker: &mut Worker, count: usize) -> Result<Option<Sample>> {
    let setup = worker.setup().clone();
    let (Some(source), Examples::Tokens { context, .. }) =
        (&setup.dataset.tokens, setup.config.model.examples())
    else {
        return Ok(None);
    };
    if worker.device().is_meta() || *source.tokenizer() == Tokenizer::None {
        return Ok(None);
    }
    if setup.config.parallel.shards_weights() {
        if worker.grid().rank() == 0 {
            tracing::info!(
                "no sample at the end, since no rank has all weights: `plimsoll sample` draws some"
            );
        }
        return Ok(None);
    }
    let trained = state::masters(worker)?;
    let buffers = state::buffers(worker);
    if worker.grid().rank() != 0 {
        trained.iter().chain(&buffers).try_for_each(|array| array.bring(worker, &mut []))?;
        return Ok(None);
    }
    let longest = PROMPT.min(context);
    let capacity = context.min(longest + count);
    let options = GeneratorOptions {
        slots: 1,
        capacity,
        longest: longest.max(tail(capacity)),
        choice: SampleOptions::default().choice()?,
    };
    let setup = setup_of(alone(&setup.config), Placement::Cpu, capacity)?;
    let mut generator = Generator::new(&setup, Communicator::solo(), options, None)?;
    for array in trained.iter().chain(&buffers) {
        let mut bytes = vec![0; array.bytes()];
        array.bring(worker, &mut bytes)?;
        // The run's model may have buffers that the sampled model lacks.
        generator.set_array(&array.name, array.dtype, &bytes)?;
    }
    let mut batch = MicroBatch::default();
    if let Err(error) = source.validation(0, &mut batch) {
        // A run is complete without a sample.
        tracing::warn!("no sample: {error}");
        return Ok(None);
    }
    let tokens = batch.inputs.tokens()?[..longest].to_vec();
    let tokenizer = source.tokenizer().clone();
    let prompt = Prompt { text: tokenizer.decode(&tokens), tokens, seed: setup.config.train.seed, turn: 0 };
    tracing::info!("drawing a sample of at most {count} tokens, for at most {} s", LIMIT.as_secs());
    let job = Job {
        prompts: vec![prompt],
        tokens: count,
        space: String::new(),
        stop: Vec::new(),
        ends: Vec::new(),
        tokenizer,
        limit: Some(LIMIT),
    };
    let texts = generate(&mut generator, options, &job, &|_| Ok(()))?;
    let sampled = texts.into_iter().next().map(Text::into_sampled);
    Ok(sampled.map(|sampled| (sampled.prompt, sampled.text)))
}

/// Returns the configuration for a single rank, without a memory limit and CUDA graphs.
fn alone(config: &RunConfig) -> RunConfig {
    let mut config = with_whole_sequences(config.clone());
    config.parallel.set_grid(GridShape::from_sizes(|_| 1));
    (config.memory.limit_bytes, config.memory.allocator) = (0, String::new());
    config.train.graphs = Graphs::Off;
    config
}
