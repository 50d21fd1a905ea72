//! Model families: one record describes a kind of model completely.

use std::fmt::Debug;
use std::sync::Arc;

use autograd::precision::PrecisionTable;
use device::DType;
use keys::{Key, KeyValues, RawValues, Section};
use tensor::ops::attention::Heads;
use tensor::ops::cached_attention::CachedHeads;

use crate::error::Result;
use crate::hugging_face::{HuggingFaceConfig, HuggingFaceModel};
use crate::layer_cache::LayerCache;
use crate::model::{Model, Stage};
use crate::parameters::Parameters;
use crate::placements::PlacementTable;
use crate::recompute::Recompute;
use crate::width_scaling::WidthScaling;

/// Maximum size of a tensor dimension that a key accepts.
pub const MOST_EXTENT: u64 = 1 << 24;
/// Maximum number of layers.
pub const MOST_LAYERS: u64 = 10_000;

/// Reads the sizes of a model; the array holds the default and the minimum vocabulary size.
type Read = fn(&RawValues, [usize; 2]) -> keys::Result<Arc<dyn ModelSpec>>;

/// A model family: its name in the configuration, its keys, and a function that reads them.
///
/// A new family is a file in `models/` and an entry in [`crate::Families::standard`], or a record of another
/// crate that the program registers ([`crate::Families::register`]).
#[derive(Clone, Copy, Debug)]
pub struct Family {
    name: &'static str,
    keys: fn() -> Vec<&'static Key>,
    read: Read,
    takes_tokens: bool,
    hugging_face: Option<HuggingFaceConfig>,
}

impl Family {
    /// Creates the family selected by `model.kind = "name"`, with sizes of type `S`. Its models take numbers
    /// or images.
    #[must_use]
    pub const fn new<S: Section + ModelSpec + 'static>(name: &'static str) -> Self {
        Self { name, keys: S::keys, read: read::<S>, takes_tokens: false, hugging_face: None }
    }

    /// Marks the family's models as taking tokens.
    #[must_use]
    pub const fn of_tokens(self) -> Self {
        Self { takes_tokens: true, ..self }
    }

    /// Sets the translation from Hugging Face's `config.json` to the family's keys.
    #[must_use]
    pub const fn with_hugging_face(self, config: HuggingFaceConfig) -> Self {
        Self { hugging_face: Some(config), ..self }
    }

    /// The value of `model.kind` that selects the family.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The family's keys in `[model]`.
    #[must_use]
    pub fn keys(&self) -> Vec<&'static Key> {
        (self.keys)()
    }

    /// Returns whether the family's models take tokens.
    #[must_use]
    pub const fn takes_tokens(&self) -> bool {
        self.takes_tokens
    }

    /// Reads the values of the keys. `tokens` is the default vocabulary size (the configured tokenizer's,
    /// rounded up), or 0 without a tokenizer. It also replaces a configured size below `needed`.
    ///
    /// # Errors
    /// A key does not accept its value.
    pub fn read(&self, raw: &RawValues, tokens: usize, needed: usize) -> keys::Result<Arc<dyn ModelSpec>> {
        (self.read)(raw, [tokens, needed])
    }

    /// The translation from Hugging Face's `config.json` to the family's keys; `None` if Hugging Face has no
    /// such family.
    #[must_use]
    pub const fn hugging_face(&self) -> Option<HuggingFaceConfig> {
        self.hugging_face
    }
}

fn read<S: Section + ModelSpec + 'static>(
    raw: &RawValues,
    [tokens, needed]: [usize; 2],
) -> keys::Result<Arc<dyn ModelSpec>> {
    Ok(Arc::new(S::read(raw)?.with_default_vocabulary(tokens).with_vocabulary_for(needed, tokens)))
}

/// Sizes and options of a model of one family: the values of the family's keys.
pub trait ModelSpec: KeyValues + Debug + Send + Sync {
    /// Sets the vocabulary size to `tokens` if the configuration leaves it to the tokenizer.
    #[must_use]
    fn with_default_vocabulary(self, _tokens: usize) -> Self
    where
        Self: Sized,
    {
        self
    }

    /// Sets the vocabulary size to `tokens` if it is below `needed`.
    #[must_use]
    fn with_vocabulary_for(self, _needed: usize, _tokens: usize) -> Self
    where
        Self: Sized,
    {
        self
    }

    /// Number of layers, which are divided over pipeline stages.
    fn layers(&self) -> usize;

    /// Scaling of the model by its width.
    fn width_scaling(&self) -> WidthScaling {
        WidthScaling::NONE
    }

    /// Path of the key that determines the number of layers.
    fn layers_key(&self) -> &'static str;

    /// Kind and sizes of the training examples.
    fn examples(&self) -> Examples;

    /// Returns whether the model has convolutions; these need cuDNN on GPUs.
    fn convolves(&self) -> bool {
        false
    }

    /// The experts of the model's layers, if any.
    fn experts(&self) -> Option<Experts> {
        None
    }

    /// The sharding of parameters over tensor ranks; by default parameters and sequences cannot be divided.
    fn placements(&self) -> PlacementTable {
        PlacementTable::new()
    }

    /// The sizes that `lanes` shards must divide, each with the path of its key, for error messages.
    fn divided_dimensions(&self, _lanes: usize) -> Vec<(&'static str, usize)> {
        Vec::new()
    }

    /// Checks the sizes for consistency, also with `conditions`.
    ///
    /// # Errors
    /// The first inconsistent values, with their keys.
    fn check(&self, raw: &RawValues, conditions: &Conditions) -> keys::Result<()>;

    /// Builds the layers of `stage`. `parameters` is an empty list with device, dtype and initial values.
    ///
    /// # Errors
    /// The model has no such stage, or memory is exhausted.
    fn build(&self, parameters: Parameters, stage: &Stage, recompute: Recompute) -> Result<Box<dyn Model>>;

    /// Returns the setting that excludes modules that predict later tokens; `None` if
    /// [`ModelSpec::build`] adds the modules of [`Parameters::predicting`].
    fn without_modules(&self) -> Option<String> {
        Some("this model.kind".to_owned())
    }

    /// The attention heads of every layer, if tokens interact only in attention; text is then generated with
    /// a cache of keys and values. `None` if generation must run the model on all tokens again for each new
    /// one.
    fn cached_heads(&self) -> Option<Heads> {
        None
    }

    /// The key of the widest causal convolution, and its width, if the model has any. Where sequences are
    /// divided, a convolution reads tokens of the piece before its own, and no others.
    fn widest_convolution(&self) -> Option<(&'static str, usize)> {
        None
    }

    /// The heads as stored in the cache: by default the keys and values of [`ModelSpec::cached_heads`].
    fn cache(&self) -> Option<CachedHeads> {
        self.cached_heads().map(CachedHeads::from)
    }

    /// The memory of `layer` for each sequence when text is generated, in the order of operators' calls: a
    /// list for each part of the layer whose shards are computed one after another. By default the heads of
    /// [`ModelSpec::cache`].
    fn layer_caches(&self, _layer: usize) -> Vec<Vec<LayerCache>> {
        self.cache().map(|heads| vec![LayerCache::Attention(heads)]).into_iter().collect()
    }

    /// The model in Hugging Face's format; `None` if Hugging Face has no such model.
    fn hugging_face(&self) -> Option<HuggingFaceModel> {
        None
    }

    /// [`ModelSpec::hugging_face`] of the model with `modules` modules that predict later tokens.
    fn hugging_face_with(&self, modules: usize) -> Option<HuggingFaceModel> {
        self.hugging_face().filter(|_| modules == 0)
    }

    /// A short description of the family and sizes.
    fn summary(&self) -> String;

    /// Keys whose largest fitting value `plan --largest` can search.
    fn searchable(&self) -> Vec<Searchable> {
        Vec::new()
    }

    /// Returns settings (`section.key=value`) with which the same weights accept sequences of `context`
    /// tokens.
    fn with_context(&self, context: usize) -> Vec<String> {
        vec![format!("model.context={context}")]
    }

    /// The autocast table of the model's operators; by default this crate's operators only. A family with
    /// operators of its own adds rows.
    fn autocast(&self) -> PrecisionTable {
        PrecisionTable::default()
    }
}

/// The experts of a model's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Path of the key with the number of experts.
    pub key: &'static str,
    /// Whether adjustable corrections are added to the experts' scores.
    pub is_corrected: bool,
}

/// Kind and sizes of a model's training examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Examples {
    /// Sequences of `context` tokens below `vocabulary`; each target is the token after its input.
    Tokens {
        /// Number of distinct tokens.
        vocabulary: usize,
        /// Number of tokens per sequence.
        context: usize,
    },
    /// Samples of `inputs` numbers; each target is `outputs` numbers.
    Numbers {
        /// Number of inputs per sample.
        inputs: usize,
        /// Number of targets per sample.
        outputs: usize,
    },
    /// Square images, \[images, size, size, channels\] in the compute dtype; each target is a class.
    Images {
        /// Number of values per pixel.
        channels: usize,
        /// Height and width in pixels.
        size: usize,
        /// Number of classes.
        classes: usize,
    },
}

impl Examples {
    /// Returns the plural of the counted unit, capitalised: Tokens, Samples or Images.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Tokens { .. } => "Tokens",
            Self::Numbers { .. } => "Samples",
            Self::Images { .. } => "Images",
        }
    }

    /// Returns the unit of speed: tokens/s, samples/s or images/s.
    #[must_use]
    pub fn rate(&self) -> &'static str {
        match self {
            Self::Tokens { .. } => "tokens/s",
            Self::Numbers { .. } => "samples/s",
            Self::Images { .. } => "images/s",
        }
    }

    /// Returns the unit of losses with a leading space: nats for tokens and classes, otherwise empty.
    #[must_use]
    pub fn loss_unit(&self) -> &'static str {
        match self {
            Self::Tokens { .. } | Self::Images { .. } => " nats",
            Self::Numbers { .. } => "",
        }
    }

    /// Returns the number of counted units per example: a sequence's tokens, or 1 for a sample or image.
    #[must_use]
    pub fn units(&self) -> usize {
        match self {
            Self::Tokens { context, .. } => *context,
            Self::Numbers { .. } | Self::Images { .. } => 1,
        }
    }
}

/// Settings outside `[model]` that a model's check needs.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Value of `precision.compute`.
    pub compute: DType,
    /// Value of `train.micro_batch_size`.
    pub micro_batch_size: usize,
}

/// A key whose largest fitting value can be searched.
#[derive(Clone, Debug)]
pub struct Searchable {
    /// Path of the key.
    pub key: &'static str,
    /// Configured value of the key.
    pub value: usize,
    /// Granularity of the search: values are multiples of it.
    pub step: usize,
    /// Returns settings (`section.key=value`) that depend on the searched value.
    pub follows: fn(value: usize, step: usize) -> Vec<String>,
}
