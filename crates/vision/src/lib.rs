//! Models for images: residual networks and their layers.
//!
//! The one idea: **this crate registers its family like an external crate**. No other crate depends on it.
//! The command line passes [`RESNET`] to [`nn::Families::register`] before it reads a configuration. Plans,
//! grids, checkpoints and folders then use the family through its record. Operators come from `autograd`.
//!
//! ```
//! use device::{DType, Description, Device, DeviceOptions};
//! use nn::{Model, ModelSpec, Parameters, Stage};
//! use vision::{ResNet, ResNetSizes, StemKind};
//!
//! let (width, stem) = (1.0, StemKind::ImageNet);
//! let sizes = ResNetSizes { depth: 50, width, classes: 1000, image_size: 224, stem, channels: 3 };
//! let device = Device::meta(0, Description::host(), &DeviceOptions::default())?;
//! let parameters = Parameters::new(&device, 1, DType::F32);
//! let model = ResNet::new(parameters, &sizes, &Stage::whole(sizes.layers()))?;
//! assert_eq!(model.parameters().elements(), 25_557_032);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod layers;
mod resnet;

pub use resnet::{RESNET, ResNet, ResNetSizes, StemKind};

use std::sync::LazyLock;

use nn::Families;
use system::readers::Reader;

/// The keys of the files that this crate reads.
pub const READERS: &[&Reader] = &[&resnet::CONFIG];

/// Registers this crate's family, in a program that has no family of its own. Later calls do nothing.
///
/// # Errors
/// The program has already read a configuration.
pub fn register() -> Result<(), String> {
    static REGISTERED: LazyLock<Result<(), String>> = LazyLock::new(|| Families::register([RESNET]));
    REGISTERED.clone()
}
