//! Construction of model, data source and optimizer from the configuration.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use autograd::precision::Autocast;
use checkpoint::CorpusMark;
use collective::RankGrid;
use data::{ChatSource, Component, Corpus, CorpusIdentity, Documents};
use data::{FileContents, ImageSource, PairSource, Prefetcher, Slice, Source, Split};
use data::{
    SyntheticKind, SyntheticOptions, SyntheticSource, TokenOptions, TokenShapes, TokenSource, Tokenizer,
};
use device::{DType, Device};
use nn::{Examples, Fp8Weights, Model, Parameters, Recompute, Stage};
use optim::{Decay, ScaleRule, Schedule};
use parallel::data::{BucketEnd, BucketLayout, UnitOptions, WeightLayout, WeightUnits};
use sha2::{Digest, Sha256};
use telemetry::units::grouped;
use tensor::ops::preference::{self, Objective};
use tokenize::Job;

use crate::conversations;
use crate::error::{Result, WorkerError};
use crate::image_source;
use config::{
    self, Data, DataKind, MixtureSource, OffloadPolicy, Preference, PreferenceLoss, RunConfig, ScheduleName,
};

/// The directory beside runs that caches tokenized text.
pub const CACHE: &str = ".tokens";

/// The part of a configuration's data that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataScope {
    /// All of it, to be trained on: text is tokenized, documents are packed, conversations are rendered.
    All,
    /// The files and the shapes of micro-batches, which a plan needs: nothing that takes long is read.
    Shapes,
}

/// The data of a run.
#[derive(Clone)]
pub struct Dataset {
    /// Source of micro-batches by index.
    pub source: Arc<dyn Source>,
    /// The token source; `None` for synthetic data.
    pub tokens: Option<Arc<TokenSource>>,
    mark: Arc<OnceLock<CorpusMark>>,
    /// Whether the corpus mark contains a hash of the whole corpus.
    is_hashed: bool,
}

impl Dataset {
    fn of_tokens(source: TokenSource, is_hashed: bool) -> Self {
        let source = Arc::new(source);
        let tokens = Some(Arc::clone(&source));
        Dataset { source, tokens, mark: Arc::default(), is_hashed }
    }

    /// The same corpus by other micro-batches.
    #[must_use]
    pub fn through(self, source: Arc<dyn Source>) -> Self {
        Dataset { source, ..self }
    }

    /// Data that is neither tokens of a corpus nor identified by a mark.
    pub fn of_source(source: Arc<dyn Source>) -> Self {
        Dataset { source, tokens: None, mark: Arc::default(), is_hashed: false }
    }

    fn of_chat(source: ChatSource) -> Self {
        let (tokens, sha256) = source.identity();
        let mark = CorpusMark { tokens, modified: 0, samples_sha256: sha256, sha256: None };
        Dataset {
            source: Arc::new(source),
            tokens: None,
            mark: Arc::new(OnceLock::from(mark)),
            is_hashed: true,
        }
    }

    fn of_pairs(source: PairSource) -> Self {
        let (tokens, samples_sha256) = source.identity();
        let mark = CorpusMark { tokens, modified: 0, samples_sha256, sha256: None };
        Dataset { mark: Arc::new(OnceLock::from(mark)), ..Self::of_source(Arc::new(source)) }
    }

    fn of_images(source: ImageSource) -> Self {
        let split = source.split();
        let images = split.training_images() + split.validation_images();
        let mark = CorpusMark { tokens: images, modified: 0, samples_sha256: split.identity(), sha256: None };
        Dataset { mark: Arc::new(OnceLock::from(mark)), ..Self::of_source(Arc::new(source)) }
    }

    fn synthetic(source: SyntheticSource) -> Self {
        Self::of_source(Arc::new(source))
    }

    /// Bytes of host memory for the micro-batches of a rank that prefetches `prefetch` of them, for training
    /// and again for validation.
    pub fn micro_batch_bytes(&self, prefetch: usize, marks_tokens: bool) -> u64 {
        let arrays = self.source.shape().bytes();
        // Borders of documents, and marks of tokens, are an array like the inputs each.
        let more = u64::from(self.source.packs_documents()) + u64::from(marks_tokens);
        let bytes = arrays / 2 * (2 + more);
        bytes.saturating_mul(2 * Prefetcher::micro_batches(prefetch) as u64)
    }

    /// Returns the mark that identifies the corpus; `None` for synthetic data. The first call reads a few
    /// megabytes, with `data.full_hash` the whole corpus.
    ///
    /// # Errors
    /// A file that was changed or cannot be read.
    pub fn mark(&self) -> std::result::Result<Option<&CorpusMark>, data::Error> {
        if let Some(mark) = self.mark.get() {
            return Ok(Some(mark));
        }
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let CorpusIdentity { tokens: count, modified, samples_sha256 } = tokens.identity()?;
        let sha256 = if self.is_hashed { self.sha256()? } else { None };
        let mark = CorpusMark { tokens: count, modified, samples_sha256, sha256 };
        Ok(Some(self.mark.get_or_init(|| mark)))
    }

    /// Computes the SHA-256 of the whole corpus, which it reads; `None` for synthetic data.
    ///
    /// # Errors
    /// A file that was changed or cannot be read.
    pub fn sha256(&self) -> std::result::Result<Option<String>, data::Error> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let count = tokens.splits().map(|split| split.training.corpus.len()).sum();
        tracing::info!("reading all {} tokens of the corpus for their hash", grouped(count));
        tokens.fingerprint().map(Some)
    }
}

/// Opens the data of a configuration.
///
/// # Errors
/// Wrong data, with its key.
pub fn dataset(config: &RunConfig, scope: DataScope) -> Result<Dataset> {
    let (data, train) = (&config.data, &config.train);
    let kind = match (data.kind, config.model.examples()) {
        (DataKind::Synthetic, Examples::Numbers { inputs, outputs }) => {
            SyntheticKind::Regression { inputs, outputs }
        }
        (DataKind::Synthetic, Examples::Tokens { vocabulary, context }) => {
            SyntheticKind::Tokens { vocabulary, context }
        }
        (DataKind::Synthetic, Examples::Images { channels, size, classes }) => {
            SyntheticKind::Images { channels, size, classes }
        }
        (DataKind::Text | DataKind::Tokens, _) => return token_dataset(config, scope),
        (DataKind::Chat | DataKind::Preference, _) if scope == DataScope::Shapes => {
            conversations::check_files(config)?;
            let shapes = token_shapes(config, data.document_mask);
            return shapes.map_err(|source| conversations::refused(config, Data::paths, source));
        }
        (DataKind::Chat, _) => return Ok(Dataset::of_chat(conversations::open(config)?)),
        (DataKind::Preference, _) => return Ok(Dataset::of_pairs(conversations::open_pairs(config)?)),
        (DataKind::Images, _) => return Ok(Dataset::of_images(image_source::open(config)?)),
    };
    Ok(Dataset::synthetic(SyntheticSource::new(SyntheticOptions {
        kind,
        micro_batch: train.micro_batch_size,
        seed: train.seed,
        validation_micro_batches: train.validation_micro_batches,
    })?))
}

/// The shapes of micro-batches of tokens.
///
/// # Errors
/// Sizes that are too large.
fn token_shapes(config: &RunConfig, masks: bool) -> std::result::Result<Dataset, data::Error> {
    let train = &config.train;
    let sizes = [config.micro_batch_rows(), config.model.examples().units()];
    let shapes = TokenShapes::new(sizes, train.validation_micro_batches, masks)?;
    let shapes = match config.data.kind {
        DataKind::Preference => shapes.of_pairs(planned_pairs(config)),
        _ => shapes,
    };
    Ok(Dataset::of_source(Arc::new(shapes)))
}

/// Pairs of answers in a plan that does not read them: so many micro-batches on each replica that more would
/// repeat them.
fn planned_pairs(config: &RunConfig) -> u64 {
    (4 * config.parallel.data * config.train.micro_batch_size) as u64
}

/// The loss of pairs of answers, if the data is pairs.
pub fn objective(config: &RunConfig) -> Option<Objective> {
    let Preference { loss, beta, label_smoothing, lambda } = config.preference;
    let [beta, label_smoothing, lambda] = [beta, label_smoothing, lambda].map(|value| value as f32);
    (config.data.kind == DataKind::Preference).then_some(match loss {
        PreferenceLoss::Dpo => Objective::Dpo { beta, label_smoothing },
        PreferenceLoss::Ipo => Objective::Ipo { beta },
        PreferenceLoss::Orpo => Objective::Orpo { lambda },
    })
}

/// Values of a micro-batch's loss: that of pairs of answers has figures.
pub fn loss_values(config: &RunConfig) -> usize {
    objective(config).map_or(1, |_| preference::VALUES)
}

/// Opens files of text or tokens.
fn token_dataset(config: &RunConfig, scope: DataScope) -> Result<Dataset> {
    let (data, train) = (&config.data, &config.train);
    let is_read = scope == DataScope::All;
    // Its tokens are those that a tokenizer makes.
    let is_text = data.kind == DataKind::Text && config.tokenizer != Tokenizer::Bytes;
    let at = |key: &'static str| {
        let origin = config.origins.of(key);
        move |source: tokenize::Error| WorkerError::Data { origin, key, source }
    };
    let of_data = |key| move |source: data::Error| at(key)(source.into());
    let open = |patterns: &[String]| match data.kind {
        DataKind::Tokens => Ok(Corpus::open_shards(&data.base, patterns)?),
        _ => text_corpus(config, patterns, scope),
    };
    let split = |paths: &[String], validation_paths: &[String], key| {
        let training = Arc::new(open(paths).map_err(at(key))?);
        if validation_paths.is_empty() {
            let split = Split::at_end(training, data.validation_fraction);
            return split.map_err(of_data(Data::validation_fraction));
        }
        let validation = Arc::new(open(validation_paths).map_err(at(Data::validation_paths))?);
        Ok(Split { training: Slice::all(training), validation: Slice::all(validation) })
    };
    let components = if data.mixture.is_empty() {
        let split = split(&data.paths, &data.validation_paths, Data::paths)?;
        vec![Component { split, weight: 1.0 }]
    } else {
        let component = |source: &MixtureSource| -> Result<Component> {
            let split = split(&source.paths, &source.validation_paths, Data::mixture)?;
            Ok(Component { split, weight: source.weight })
        };
        data.mixture.iter().map(component).collect::<Result<_>>()?
    };
    let documents = config.separator().filter(|_| data.pack_documents || data.document_mask);
    if !is_read && (is_text || data.pack_documents) {
        return token_shapes(config, documents.is_some() && data.document_mask).map_err(of_data(Data::paths));
    }
    let vocabulary = match config.model.examples() {
        Examples::Tokens { vocabulary, .. } => vocabulary,
        Examples::Numbers { .. } | Examples::Images { .. } => config.tokenizer.vocabulary(),
    };
    let options = TokenOptions {
        context: config.model.examples().units(),
        micro_batch: train.micro_batch_size,
        seed: train.seed,
        order: data.order,
        validation_micro_batches: train.validation_micro_batches,
        vocabulary,
        documents: documents.map(|separator| Documents {
            separator,
            packs: data.pack_documents,
            masks: data.document_mask,
            marks_tokens: config.masks_padding(),
        }),
        ignored: data.ignore,
    };
    let source =
        TokenSource::new(components, config.tokenizer.clone(), &options).map_err(of_data(Data::paths))?;
    Ok(Dataset::of_tokens(source, data.full_hash))
}

/// Opens text files as the tokenizer's output, which is cached by content; for shapes alone, as their bytes.
fn text_corpus(
    config: &RunConfig,
    patterns: &[String],
    scope: DataScope,
) -> std::result::Result<Corpus, tokenize::Error> {
    let (data, tokenizer) = (&config.data, &config.tokenizer);
    let text = Corpus::open(&data.base, patterns)?;
    text.check_plain()?;
    warn_of_json(&text);
    if *tokenizer == Tokenizer::Bytes || scope == DataScope::Shapes {
        return Ok(text);
    }
    let borders: Vec<u64> = text.starts().collect();
    let separator = config.separator();
    let contents = format!("{} {separator:?} {} {borders:?}", tokenizer.identity(), text.fingerprint()?);
    let cache = match data.cache.as_os_str().is_empty() {
        true => Path::new("runs").join(CACHE),
        false => data.cache.clone(),
    };
    let tokens = cache.join(format!("{:x}", Sha256::digest(contents)));
    if !tokens.exists() {
        if !system::output::is_writable(&cache) {
            let text =
                format!("{}: it cannot be written: data.cache names another directory", cache.display());
            return Err(tokenize::Error::Refused(text));
        }
        let files = text.files().map(Path::to_path_buf).collect();
        let job = Job::new(files, tokenizer.clone(), tokens.clone())?;
        let job = Job { show_progress: true, is_plain_text: true, has_hash: true, ..job };
        tokenize::tokenize(&Job { separator, ..job })?;
    }
    let (corpus, is_verified) = tokenize::open_verified(&tokens)?;
    if !is_verified {
        let tokens = tokens.display();
        tracing::warn!(
            "{tokens}: it cannot be verified: an earlier version wrote these tokens, without a hash"
        );
    }
    Ok(corpus)
}

/// Texts that were warned of: an evaluation opens its data several times.
static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Warns of a text that consists of JSON, whose keys and braces are tokens too.
fn warn_of_json(text: &Corpus) {
    let instead = |path: &Path| {
        Some(match FileContents::of(path).ok()? {
            FileContents::Text => return None,
            FileContents::Conversations => "data.kind = \"chat\" takes them as conversations",
            FileContents::Pairs => "data.kind = \"preference\" takes them as pairs of answers",
            FileContents::Questions => "`plimsoll eval --choices` takes them as questions of multiple choice",
            FileContents::Texts => "`plimsoll tokenize` makes token shards of their texts",
            FileContents::Json => {
                "`plimsoll tokenize --text-key KEY` makes token shards of the texts of a key"
            }
        })
    };
    if let Some((path, instead)) = text.files().find_map(|path| Some((path, instead(path)?)))
        && WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_path_buf())
    {
        tracing::warn!(
            "{}: it is JSON, of which data.kind = \"text\" takes keys and braces as text: {instead}",
            path.display()
        );
    }
}

/// Builds the layers of `stage` on `device`, with all weights of a rank of `grid`, even if those are sharded.
///
/// # Errors
/// Sizes of which no model can be built, out of memory.
pub fn model(config: &RunConfig, device: &Device, grid: RankGrid, stage: &Stage) -> Result<Box<dyn Model>> {
    build_in(empty_parameters(config, device, grid), config, stage)
}

/// Builds the layers of `stage` on `device`, with the weights that a rank of `grid` holds between their uses,
/// which are parts of units if weights are sharded, or are in the pool `host` if they are offloaded.
///
/// # Errors
/// As for [`model`].
pub fn sharded_model(
    config: &RunConfig,
    (device, host): (&Device, Option<&Device>),
    grid: RankGrid,
    stage: &Stage,
) -> Result<(Box<dyn Model>, Option<WeightUnits>)> {
    if !config.gathers_weights() {
        return Ok((model(config, device, grid, stage)?, None));
    }
    let model = build_in(empty_parameters(config, device, grid).released(), config, stage)?;
    let parameters = model.parameters();
    let index = grid.coordinate_over(config.parallel.replica_axes()) % config.weight_owners();
    let options = UnitOptions { rank: index, prefetch: config.parallel.prefetch };
    let host = host.filter(|_| config.memory.offload_weights);
    let units = WeightUnits::new((device, host), parameters, weight_layout(config, parameters), options)?;
    Ok((model, Some(units)))
}

fn empty_parameters(config: &RunConfig, device: &Device, grid: RankGrid) -> Parameters {
    let parameters = Parameters::new(device, config.train.seed, config.precision.weight_dtype());
    parameters.on_grid(grid).in_lanes(config.parallel.layer_lanes())
}

fn build_in(parameters: Parameters, config: &RunConfig, stage: &Stage) -> Result<Box<dyn Model>> {
    let parameters = parameters.tuned(Arc::clone(&config.tuning));
    let parameters = parameters.in_fp8(Fp8Weights::new(config.fp8.clone(), stage.is_first()));
    Ok(config.model.build(parameters, stage, recompute(config))?)
}

/// The casts of operands; `None` if weights are in the compute type.
pub fn autocast(config: &RunConfig) -> Option<Arc<Autocast>> {
    let table = || Autocast { half: config.precision.compute, table: config.model.autocast() };
    config.precision.is_autocast().then(|| Arc::new(table()))
}

/// The end of a bucket of gradients: that of a unit of weights, if those are gathered.
pub fn bucket_end(config: &RunConfig) -> BucketEnd {
    match config.gathers_weights() {
        true => BucketEnd::Unit,
        false => BucketEnd::Bytes(usize::try_from(config.parallel.bucket_bytes).unwrap_or(usize::MAX)),
    }
}

/// Returns the buckets of a stage's gradients.
pub fn bucket_layout(config: &RunConfig, parameters: &Parameters) -> BucketLayout {
    BucketLayout::of(parameters, config.precision.gradients, bucket_end(config), config.parallel.replicas())
}

/// Returns the parts of a stage's weights on all ranks that share them between their uses.
pub fn weight_layout(config: &RunConfig, parameters: &Parameters) -> WeightLayout {
    WeightLayout::new(parameters, &bucket_layout(config, parameters), config.weight_owners())
}

/// The layers of a stage that are recomputed; none while `"auto"` is unresolved.
fn recompute(config: &RunConfig) -> Recompute {
    let layers = match config.memory.recompute_layers {
        0 => usize::MAX,
        layers => layers,
    };
    match config.memory.recompute {
        config::RecomputePolicy::None | config::RecomputePolicy::Auto => Recompute::NONE,
        config::RecomputePolicy::Block => Recompute::first(layers, usize::MAX),
        config::RecomputePolicy::Segments(count) => Recompute::first(layers, count),
    }
}

/// Creates the host pool of what a rank offloads, if the configuration offloads something.
///
/// # Errors
/// Errors of [`Device::host_pool`].
pub fn host_pool(device: &Device, config: &RunConfig) -> Result<Option<Device>> {
    let offloads = config.optim.offload || config.memory.offload != OffloadPolicy::None;
    Ok(if offloads { Some(device.host_pool()?) } else { None })
}

/// The type of the tensors that the optimizer's rule keeps.
pub fn state_dtype(config: &RunConfig) -> DType {
    match config.optim.state {
        config::StateType::F32 => DType::F32,
        config::StateType::Bf16 => DType::Bf16,
        config::StateType::EightBit => DType::U8,
    }
}

/// The rule of the loss scale; `None` for types that need none.
pub fn scale_rule(config: &RunConfig) -> Option<ScaleRule> {
    let config::Scaler { growth_factor, backoff_factor, growth_interval, .. } = config.scaler;
    (config.precision.compute == DType::F16).then(|| ScaleRule {
        growth: growth_factor as f32,
        backoff: backoff_factor as f32,
        interval: u32::try_from(growth_interval).unwrap_or(u32::MAX),
    })
}

/// The learning-rate schedule.
pub fn schedule(config: &RunConfig) -> Schedule {
    let (optim, steps) = (&config.optim, config.train.steps);
    let line = |start: u64| Decay::Linear { start, end: steps, minimum: optim.min_learning_rate };
    let decay = match optim.schedule {
        ScheduleName::Cosine => Decay::Cosine { minimum: optim.min_learning_rate, steps },
        ScheduleName::Linear => line(0),
        ScheduleName::Constant => Decay::Constant,
        ScheduleName::Wsd => line(steps.saturating_sub(optim.decay_steps)),
        ScheduleName::Step if !optim.milestones.is_empty() => {
            let steps = optim.milestones.iter().map(|step| *step as u64).collect();
            Decay::Milestones { steps, gamma: optim.gamma }
        }
        ScheduleName::Step => Decay::Every { step_size: optim.step_size, gamma: optim.gamma },
    };
    Schedule { peak: optim.learning_rate, warmup_steps: optim.warmup_steps, decay }
}

/// Tokens in a step, over all ranks; samples for a model without tokens.
pub fn tokens_per_step(config: &RunConfig) -> u64 {
    (config.train.global_batch_size * config.rows_of_sample() * config.model.examples().units()) as u64
}
