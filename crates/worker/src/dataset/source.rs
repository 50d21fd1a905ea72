//! The data of a run: its source of micro-batches, and the identity of its corpus.

use std::sync::{Arc, OnceLock};

use checkpoint::CorpusMark;
use config::RunConfig;
use data::{
    ChatSource, CorpusIdentity, ImageSource, PairSource, Prefetcher, Shapes, Source, StepLengths,
    SyntheticSource, TokenSource,
};
use telemetry::units::grouped;

/// Name of the token cache directory, beside runs.
pub const CACHE: &str = ".tokens";

/// How much of the configured data is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataScope {
    /// Everything needed for training: text is tokenized, documents are packed, conversations are rendered.
    All,
    /// The files and the shapes of micro-batches, for a plan. Nothing that takes long is read.
    Shapes,
}

/// Sizes of samples, for plans that read no data.
#[derive(Clone, Debug)]
pub struct SampleSizes {
    /// Fraction of training positions that hold tokens instead of padding.
    token_share: f64,
    /// Sequence length of each training step; `None` if all are equal.
    lengths: Option<Arc<StepLengths>>,
}

/// The data of a run.
#[derive(Clone)]
pub struct Dataset {
    /// The source of micro-batches by index.
    pub source: Arc<dyn Source>,
    /// The token source; `None` for synthetic data.
    pub tokens: Option<Arc<TokenSource>>,
    mark: Arc<OnceLock<CorpusMark>>,
    /// Whether the corpus identity contains a hash of the whole corpus.
    is_hashed: bool,
    /// The fraction of sequence positions that hold tokens, if a plan knows it.
    token_share: Option<f64>,
}

impl Dataset {
    pub(super) fn of_tokens(source: TokenSource, is_hashed: bool) -> Self {
        let source = Arc::new(source);
        let tokens = Some(Arc::clone(&source));
        Dataset { source, tokens, mark: Arc::default(), is_hashed, token_share: None }
    }

    /// Returns the same corpus with another source of micro-batches.
    #[must_use]
    pub fn through(self, source: Arc<dyn Source>) -> Self {
        Dataset { source, ..self }
    }

    /// Returns the fraction of training positions that hold tokens instead of padding.
    #[must_use]
    pub fn token_share(&self) -> f64 {
        self.token_share.unwrap_or_else(|| self.source.token_share())
    }

    /// Returns a dataset without a corpus of tokens or a corpus identity.
    pub fn of_source(source: Arc<dyn Source>) -> Self {
        Dataset { source, tokens: None, mark: Arc::default(), is_hashed: false, token_share: None }
    }

    pub(super) fn of_chat(source: ChatSource) -> Self {
        let (tokens, sha256) = source.identity();
        let mark = CorpusMark { tokens, modified: 0, samples_sha256: sha256, sha256: None };
        Dataset {
            source: Arc::new(source),
            tokens: None,
            mark: Arc::new(OnceLock::from(mark)),
            is_hashed: true,
            token_share: None,
        }
    }

    pub(super) fn of_pairs(source: PairSource) -> Self {
        let (tokens, samples_sha256) = source.identity();
        let mark = CorpusMark { tokens, modified: 0, samples_sha256, sha256: None };
        Dataset { mark: Arc::new(OnceLock::from(mark)), ..Self::of_source(Arc::new(source)) }
    }

    pub(super) fn of_images(source: ImageSource) -> Self {
        let split = source.split();
        let images = split.training_images() + split.validation_images();
        let mark = CorpusMark { tokens: images, modified: 0, samples_sha256: split.identity(), sha256: None };
        Dataset { mark: Arc::new(OnceLock::from(mark)), ..Self::of_source(Arc::new(source)) }
    }

    pub(super) fn synthetic(source: SyntheticSource) -> Self {
        Self::of_source(Arc::new(source))
    }

    /// Returns a source with only the shapes of the micro-batches, for ranks on Meta.
    #[must_use]
    pub fn shapes(&self) -> Shapes {
        Shapes::new(Arc::clone(&self.source))
    }

    /// Returns the same data with only shapes, in which all training sequences have `length` tokens.
    #[must_use]
    pub fn at_length(&self, length: usize) -> Self {
        let source = Arc::new(Shapes::of_length(Arc::clone(&self.source), length));
        let token_share = Some(self.token_share());
        Dataset { source, token_share, ..self.clone() }
    }

    /// Returns the sizes of its samples, for a plan that reads no data.
    #[must_use]
    pub fn sample_sizes(&self) -> SampleSizes {
        SampleSizes { token_share: self.token_share(), lengths: self.source.lengths().cloned() }
    }

    /// Returns the same data with only shapes, for samples of these sizes in the steps of `config`.
    #[must_use]
    pub fn with_sample_sizes(self, sizes: &SampleSizes, config: &RunConfig) -> Self {
        let token_share = Some(sizes.token_share);
        let lengths = sizes.lengths.as_ref().filter(|_| config.data.group_by_length);
        let Some(lengths) = lengths else { return Dataset { token_share, ..self } };
        let step_samples = config.train.global_batch_size;
        let regrouped = lengths.regrouped(step_samples, config.model.examples().units(), config.train.seed);
        let source = Arc::new(Shapes::of_lengths(Arc::clone(&self.source), Arc::new(regrouped)));
        Dataset { source, token_share, ..self }
    }

    /// Returns a source with the shapes of its longest micro-batches.
    #[must_use]
    pub fn longest_shapes(&self) -> Shapes {
        match self.source.lengths().and_then(|lengths| lengths.longest()) {
            Some(length) => Shapes::of_length(Arc::clone(&self.source), length),
            None => self.shapes(),
        }
    }

    /// Returns the bytes of host memory for the micro-batches of a rank that reads `prefetch` of them ahead,
    /// for training and, if there is validation data, also for validation.
    pub fn micro_batch_bytes(&self, prefetch: usize, marks_tokens: bool) -> u64 {
        let arrays = self.source.shape().bytes();
        // Borders of documents, and marks of tokens, are an array like the inputs each.
        let more = u64::from(self.source.packs_documents()) + u64::from(marks_tokens);
        let bytes = arrays / 2 * (2 + more);
        let readers = 1 + u64::from(self.source.validation_micro_batches() > 0);
        bytes.saturating_mul(readers * Prefetcher::micro_batches(prefetch) as u64)
    }

    /// Returns the identity of the corpus; `None` for synthetic data. The first call reads a few megabytes,
    /// or the whole corpus with `data.full_hash`.
    ///
    /// # Errors
    /// A file has changed or cannot be read.
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

    /// Reads the whole corpus and returns its SHA-256; `None` for synthetic data.
    ///
    /// # Errors
    /// A file has changed or cannot be read.
    pub fn sha256(&self) -> std::result::Result<Option<String>, data::Error> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let count = tokens.splits().map(|split| split.training.corpus.len()).sum();
        tracing::info!("reading all {} tokens of the corpus for their hash", grouped(count));
        tokens.fingerprint().map(Some)
    }
}
