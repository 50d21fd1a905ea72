//! Model families: one record holds everything about a kind of model.

use std::fmt::Debug;
use std::sync::Arc;

use autograd::precision::PrecisionTable;
use device::DType;
use keys::{Key, KeyValues, RawValues, Section};
use tensor::ops::attention::Heads;
use tensor::ops::cached_attention::CachedHeads;

use crate::error::Result;
use crate::hugging_face::{HuggingFaceConfig, HuggingFaceModel};
use crate::model::{Model, Stage};
use crate::parameters::Parameters;
use crate::placements::PlacementTable;
use crate::recompute::Recompute;

/// The largest size of a tensor's dimension that a key accepts.
pub const MOST_EXTENT: u64 = 1 << 24;
/// The largest number of layers.
pub const MOST_LAYERS: u64 = 10_000;

/// A function that reads the sizes of a model, with its default vocabulary and the least one.
type Read = fn(&RawValues, [usize; 2]) -> keys::Result<Arc<dyn ModelSpec>>;

/// A model family: its name in the configuration, its keys, and how they are read.
///
/// A new family is a file of its own in `models/` and its name in [`crate::Families::standard`], or a record
/// of another crate that the program registers ([`crate::Families::register`]).
#[derive(Clone, Copy, Debug)]
pub struct Family {
    name: &'static str,
    keys: fn() -> Vec<&'static Key>,
    read: Read,
    takes_tokens: bool,
    hugging_face: Option<HuggingFaceConfig>,
}

impl Family {
    /// Returns the family that `model.kind = "name"` chooses, with the sizes `S`. Its models take numbers or
    /// images.
    #[must_use]
    pub const fn new<S: Section + ModelSpec + 'static>(name: &'static str) -> Self {
        Self { name, keys: S::keys, read: read::<S>, takes_tokens: false, hugging_face: None }
    }

    /// Returns the same family, whose models take tokens.
    #[must_use]
    pub const fn of_tokens(self) -> Self {
        Self { takes_tokens: true, ..self }
    }

    /// Returns the same family, into whose keys `config` translates Hugging Face's `config.json`.
    #[must_use]
    pub const fn with_hugging_face(self, config: HuggingFaceConfig) -> Self {
        Self { hugging_face: Some(config), ..self }
    }

    /// The value of `model.kind` that chooses the family.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The keys of `[model]` that belong to the family.
    #[must_use]
    pub fn keys(&self) -> Vec<&'static Key> {
        (self.keys)()
    }

    /// Returns whether its models take tokens.
    #[must_use]
    pub const fn takes_tokens(&self) -> bool {
        self.takes_tokens
    }

    /// Reads the keys. `tokens` is the default vocabulary size: that of the configured tokenizer, rounded up;
    /// 0 if there is none. It replaces a configured size below `needed`.
    ///
    /// # Errors
    /// A value that its key does not accept.
    pub fn read(&self, raw: &RawValues, tokens: usize, needed: usize) -> keys::Result<Arc<dyn ModelSpec>> {
        (self.read)(raw, [tokens, needed])
    }

    /// The translation of Hugging Face's `config.json` into the family's keys; `None` if Hugging Face has no
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

/// A model of one family with its sizes, which are the values of the family's keys.
pub trait ModelSpec: KeyValues + Debug + Send + Sync {
    /// Returns the model with `tokens` as its vocabulary size, if that is left to the tokenizer.
    #[must_use]
    fn with_default_vocabulary(self, _tokens: usize) -> Self
    where
        Self: Sized,
    {
        self
    }

    /// Returns the model with a vocabulary of `tokens` if its own is below `needed`.
    #[must_use]
    fn with_vocabulary_for(self, _needed: usize, _tokens: usize) -> Self
    where
        Self: Sized,
    {
        self
    }

    /// The number of layers, which are divided over pipeline stages.
    fn layers(&self) -> usize;

    /// The path of the key that determines the number of layers.
    fn layers_key(&self) -> &'static str;

    /// The training examples of the model.
    fn examples(&self) -> Examples;

    /// Returns whether the model has convolutions, for which GPUs need cuDNN.
    fn convolves(&self) -> bool {
        false
    }

    /// The experts of its layers, if they have some.
    fn experts(&self) -> Option<Experts> {
        None
    }

    /// The placements of the parameters on ranks that share layers; by default none can be divided, nor
    /// sequences.
    fn placements(&self) -> PlacementTable {
        PlacementTable::new()
    }

    /// The dimensions that shards divide, each with the path of its key, so that a refusal names it.
    fn divided_dimensions(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }

    /// Checks the sizes against each other and against `conditions`.
    ///
    /// # Errors
    /// The first values that contradict each other, named by their keys.
    fn check(&self, raw: &RawValues, conditions: &Conditions) -> keys::Result<()>;

    /// Builds the layers of `stage` in `parameters`, an empty list with their device, type and initial
    /// values.
    ///
    /// # Errors
    /// A stage that the model does not have; out of memory.
    fn build(&self, parameters: Parameters, stage: &Stage, recompute: Recompute) -> Result<Box<dyn Model>>;

    /// The heads of every layer's attention, if tokens see each other there alone, so that text is generated
    /// with a cache of keys and values; `None` for a model that is run on all tokens again for each one.
    fn cached_heads(&self) -> Option<Heads> {
        None
    }

    /// The heads as a cache has them: by default keys and values of [`ModelSpec::cached_heads`].
    fn cache(&self) -> Option<CachedHeads> {
        self.cached_heads().map(CachedHeads::from)
    }

    /// The model in Hugging Face's format; `None` if they have no such model.
    fn hugging_face(&self) -> Option<HuggingFaceModel> {
        None
    }

    /// A short description of family and sizes.
    fn summary(&self) -> String;

    /// The keys that `plan --largest` can search for the largest value that fits.
    fn searchable(&self) -> Vec<Searchable> {
        Vec::new()
    }

    /// The settings, each as `section.key=value`, with which the same weights accept sequences of `context`
    /// tokens.
    fn with_context(&self, context: usize) -> Vec<String> {
        vec![format!("model.context={context}")]
    }

    /// The types in which operators take their operands under autocast: by default the operators of
    /// `autograd`. A family with operators of its own adds rows.
    fn autocast(&self) -> PrecisionTable {
        PrecisionTable::default()
    }

    /// A sentence about sizes that are slow in `compute`, with faster ones.
    fn advice(&self, _compute: DType) -> Option<String> {
        None
    }
}

/// The experts of a model's layers, which a router chooses from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// The path of the key with their number.
    pub key: &'static str,
    /// Whether corrections, which a run may move, are added to their scores.
    pub is_corrected: bool,
}

/// The training examples of a model: their kind and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Examples {
    /// Sequences of `context` tokens below `vocabulary`; each target is the token after its input.
    Tokens {
        /// Distinct tokens.
        vocabulary: usize,
        /// Tokens per sequence.
        context: usize,
    },
    /// Samples of `inputs` numbers; each target is `outputs` numbers.
    Numbers {
        /// Numbers in an input.
        inputs: usize,
        /// Numbers in a target.
        outputs: usize,
    },
    /// Square images, \[images, size, size, channels\] in the type of compute; each target is a class.
    Images {
        /// Values of a pixel.
        channels: usize,
        /// Height and width in pixels.
        size: usize,
        /// Number of classes.
        classes: usize,
    },
}

impl Examples {
    /// The unit of speeds, as a title: tokens, samples or images.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Tokens { .. } => "Tokens",
            Self::Numbers { .. } => "Samples",
            Self::Images { .. } => "Images",
        }
    }

    /// Unit of speeds, as after a number: tokens/s, samples/s or images/s.
    #[must_use]
    pub fn rate(&self) -> &'static str {
        match self {
            Self::Tokens { .. } => "tokens/s",
            Self::Numbers { .. } => "samples/s",
            Self::Images { .. } => "images/s",
        }
    }

    /// Unit of losses, with a space before it: nats for tokens and classes; none for other numbers.
    #[must_use]
    pub fn loss_unit(&self) -> &'static str {
        match self {
            Self::Tokens { .. } | Self::Images { .. } => " nats",
            Self::Numbers { .. } => "",
        }
    }

    /// Units in one example: the tokens of a sequence; 1 for a sample or an image.
    #[must_use]
    pub fn units(&self) -> usize {
        match self {
            Self::Tokens { context, .. } => *context,
            Self::Numbers { .. } | Self::Images { .. } => 1,
        }
    }
}

/// The settings outside `[model]` against which a model is checked.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// `precision.compute`.
    pub compute: DType,
    /// `train.micro_batch_size`.
    pub micro_batch_size: usize,
}

/// A key that can be searched for the largest value that fits.
#[derive(Clone, Debug)]
pub struct Searchable {
    /// The path of the key.
    pub key: &'static str,
    /// The key's configured value.
    pub value: usize,
    /// Searched values are multiples of this.
    pub step: usize,
    /// Other keys that depend on a value and the step, each as `section.key=value`.
    pub follows: fn(value: usize, step: usize) -> Vec<String>,
}
