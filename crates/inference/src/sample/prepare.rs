//! Prepares sampling: model, prompts and sizes, checked before anything is allocated.

use std::sync::Arc;

use config::{DataKind, RunConfig, WeightType};
use data::Tokenizer;
use device::{DType, Kind};
use generation::{Generator, GeneratorOptions};
use nn::Examples;
use worker::{Placement, Setup, Weights};

use super::generate::{self, Job};
use super::options::SampleOptions;
use super::talk::Talk;
use super::text::tail;
use super::{ends, prompts};
use crate::trained::Trained;
use run::ChosenPlacement;
use run::Startup;
use run::{Result, RunError};

/// The prepared sampling, equal on all ranks.
pub(super) struct Prepared {
    pub(super) setup: Setup,
    pub(super) weights: Arc<dyn Weights>,
    pub(super) job: Job,
    pub(super) talk: Option<Talk>,
    pub(super) generator: GeneratorOptions,
}

impl Prepared {
    pub(super) fn new(startup: &Startup, options: &SampleOptions) -> Result<Self> {
        let choice = options.choice()?;
        let trained = Trained::find(options.location(), &options.sets, startup.share())?;
        let refused = |what: &str| Err(RunError::Refused(format!("{}: {what}", options.model.display())));
        let Examples::Tokens { vocabulary, .. } = trained.config.model.examples() else {
            return refused("it trained no model of text");
        };
        let context = trained.config.longest_text();
        if trained.config.data.kind == DataKind::Synthetic && trained.is_run() {
            return refused("it trained no model of text");
        }
        let tokenizer = match options.needs_tokenizer() {
            true => trained.tokenizer()?,
            false => trained.tokenizer().unwrap_or(Tokenizer::None),
        };
        let ends = ends::end_tokens(&trained, &tokenizer)?;
        let texts = prompts::texts(options)?;
        if options.messages.is_some() && startup.is_in_job() {
            let text = "--chat: it needs a message: --prompt; a job's ranks read no standard input";
            return Err(RunError::Refused(text.to_owned()));
        }
        let talk = match options.chat {
            true => Some(Talk::new(options, &texts, trained.chat_template(&tokenizer)?)?),
            false => None,
        };
        let seed = trained.config.train.seed;
        let conversations = talk.as_ref().map(|talk| talk.prompts(&tokenizer)).transpose()?;
        let prompts = prompts::read(options, texts, &tokenizer, conversations, vocabulary, seed)?;
        prompts::check(&prompts, context)?;
        let mut stop: Vec<_> = options.stop.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        let [space, answer_end] = talk.as_ref().map(Talk::around_answer).unwrap_or_default();
        stop.extend(Some(answer_end).filter(|end| !end.is_empty()));
        let Trained { config, weights, .. } = trained;
        let mut config = with_whole_sequences(config);
        startup.check_ranks(&config, options.ranks)?;
        let ChosenPlacement { placement, reason } =
            ChosenPlacement::find(options.device, &mut config, startup, options.ranks)?;
        tracing::info!("computing on {reason}");
        let is_gpu = placement.description().kind == Kind::Cuda;
        let most = Generator::most_slots(is_gpu);
        if options.batch == Some(0) {
            return Err(RunError::Refused("--batch 0: at least one prompt is continued at once".to_owned()));
        }
        let each = generate::assignment(prompts.len(), config.parallel.data).count(0);
        let slots = options.batch.unwrap_or(most).min(most).min(each).max(1);
        let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(1);
        let room =
            talk.as_ref().map(|talk| talk.room(longest, options.tokens, &tokenizer)).transpose()?.flatten();
        let capacity = context.min(room.unwrap_or(longest + options.tokens));
        let longest = match room {
            Some(_) => capacity,
            None if longest + options.tokens > capacity => longest.max(tail(capacity)),
            None => longest,
        };
        let generator = GeneratorOptions { slots, capacity, longest, choice };
        let setup = Setup { reason, ..setup_of(config, placement, capacity)? };
        let job = Job { prompts, tokens: options.tokens, space, stop, ends, tokenizer, limit: None };
        Ok(Prepared { setup, weights, job, talk, generator })
    }
}

/// Returns the configuration without context parallelism, because texts grow by one token at a time, and
/// without modules that predict later tokens.
pub(super) fn with_whole_sequences(mut config: RunConfig) -> RunConfig {
    config.train.predict_tokens = 1;
    (config.parallel.context, config.parallel.context_lanes) = (1, 1);
    config
}

/// Returns the setup of a model that generates texts of at most `context` tokens, without data; on a CPU in
/// f32. A model without a cache keeps its context, on which its buffers may depend.
pub(super) fn setup_of(config: RunConfig, placement: Placement, context: usize) -> Result<Setup> {
    let caches = config.model.cached_heads().is_some();
    // Ranks divide the rows that a stage sends in training.
    let context = match config.stages() {
        1 => context,
        _ => context.next_multiple_of(config.parallel.layer_shards().all),
    };
    let shorter = match caches && config.model.examples().units() != context {
        true => config.with(&config.model.with_context(context)),
        false => Ok(config.clone()),
    };
    let mut config = shorter.unwrap_or(config);
    if placement.description().kind != Kind::Cuda {
        (config.precision.compute, config.precision.gradients) = (DType::F32, DType::F32);
    }
    // A trained model's matmuls use its weights' dtype.
    config.precision.weights = WeightType::Compute;
    config.fp8 = None;
    config.data.kind = DataKind::Synthetic;
    config.train.micro_batch_size = 1;
    config.train.validation_micro_batches = 0;
    // Times of layers in training are irrelevant for generation.
    config.parallel.profile = None;
    Ok(plan::prepare(config, placement)?)
}
