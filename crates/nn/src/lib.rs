//! Layers and models: their parameters, and their division into pipeline stages. Training is in other crates.
//!
//! The one idea: **building a layer registers its parameters, and each *use* of one, in a [`Parameters`]
//! list**. Everything downstream follows the list's fixed order: gradient buckets, the norm, the optimizer,
//! checkpoints. Running a layer is a plain function from variables to a variable on a tape.
//!
//! Layers in a [`layers::Stack`] may discard their activations and recompute them in backward
//! ([`Recompute`]).
//!
//! A user's own model is a struct of layers:
//!
//! ```
//! use autograd::{Gradients, Mode, Tape, Var};
//! use device::{Category, DType, Device, DeviceOptions};
//! use nn::layers::{Activation, Linear};
//! use nn::{Init, Parameters};
//! use tensor::Tensor;
//!
//! struct TwoLayers { first: Linear, second: Linear }
//!
//! impl TwoLayers {
//!     fn new(parameters: &mut Parameters) -> nn::Result<Self> {
//!         let first = Linear::new(parameters, "first", 3, 8, Init::uniform_fan_in(3), Activation::Gelu)?;
//!         let second = Linear::new(parameters, "second", 8, 1, Init::uniform_fan_in(8), Activation::None)?;
//!         Ok(TwoLayers { first, second })
//!     }
//!     fn forward(&self, tape: &Tape, x: Var) -> nn::Result<Var> {
//!         let hidden = self.first.forward(tape, x)?;
//!         self.second.forward(tape, hidden)
//!     }
//! }
//!
//! let device = Device::cpu(0, &DeviceOptions::default())?;
//! let mut parameters = Parameters::new(&device, 1, DType::F32);
//! let model = TwoLayers::new(&mut parameters)?;
//! let x = Tensor::from_host(&device, &[0.5f32; 6], [2, 3], Category::Input)?;
//! let y = Tensor::from_host(&device, &[1.0f32; 2], [2, 1], Category::Input)?;
//! let tape = Tape::new(&device, Mode::Train);
//! let prediction = model.forward(&tape, tape.constant(x))?;
//! let loss = autograd::ops::mse(&tape, prediction, &y, 1.0)?;
//! let mut gradients = Gradients::default();
//! tape.backward(loss, &mut gradients)?;
//! assert_eq!(gradients.iter().count(), parameters.uses().len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffers;
mod error;
mod expert_loads;
mod families;
mod family;
mod fp8;
mod hugging_face;
mod init;
mod layer_cache;
pub mod layers;
mod lora;
mod lora_terms;
mod model;
pub mod models;
mod parameters;
mod placements;
mod readers;
mod recompute;
mod running_statistics;
mod saved_modules;
mod sharding;
mod shards;
mod targets;
mod tuning;
mod width_scaling;

pub use autograd::ops::Fp8Recipe;
pub use buffers::ModelBuffer;
pub use error::{NnError, Result};
pub use expert_loads::{ExpertLoads, LayerLoads};
pub use families::Families;
pub use family::{Conditions, Examples, Experts, Family, MOST_EXTENT, MOST_LAYERS, ModelSpec, Searchable};
pub use fp8::{Fp8Layers, Fp8Weights, LinearRole};
pub use hugging_face::readers::CONFIG as CONFIG_READER;
pub use hugging_face::{
    AdapterConfig, FolderConfig, FolderKeys, FolderTensor, HuggingFaceConfig, HuggingFaceModel,
    LANGUAGE_PART, TiedHead, nearest_family,
};
pub use init::Init;
pub use layer_cache::LayerCache;
pub use lora::{Adapters, Lora};
pub use lora_terms::LoraScaling;
pub use model::{Input, Model, Stage};
pub use parameters::{
    CodedValues, MOST_MODULES, MatrixCodes, Parameter, ParameterId, ParameterRole, Parameters,
    PredictionModules, Use,
};
pub use placements::{ParallelStyle, PlacementTable};
pub use readers::READERS;
pub use recompute::{LayerGroup, Recompute};
pub use running_statistics::{ChannelStatistics, RunningStatistics};
pub use sharding::{Division, ElementRun, Sharding};
pub use shards::Shards;
pub use tensor::ops::block_codes::Alphabet;
pub use tuning::Tuning;
pub use width_scaling::WidthScaling;
