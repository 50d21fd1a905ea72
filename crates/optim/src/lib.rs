//! Optimizers, the gradient's norm, and learning-rate schedules. They know parameters and gradients, not ranks.
//!
//! The one idea: **everything an update needs is on the device before the update starts**. The norm and the clipping
//! factor are a device tensor that the update reads, so nothing waits for the host.
//!
//! ```
//! use device::{Category, Device, DeviceOptions};
//! use optim::{GradientNorm, Kind, Optimizer, Slot};
//! use tensor::Tensor;
//! let device = Device::cpu(0, &DeviceOptions::default())?;
//! let weight = Tensor::from_host(&device, &[1.0f32, 2.0], [2], Category::Parameter)?;
//! let gradient = Tensor::from_host(&device, &[3.0f32, 4.0], [2], Category::Gradient)?;
//! let slots = [Slot { name: "w".into(), weight: weight.clone(), decay: false }];
//! let norm = GradientNorm::new(&device, &slots, 1.0)?;
//! norm.measure(&[gradient.clone()])?;
//! assert_eq!(norm.value()?, 5.0);
//! let mut sgd = Optimizer::new(&device, &slots, Kind::Sgd { momentum: 0.0 }, 0.0)?;
//! sgd.step(&[gradient], 0.1, Some(&norm))?;
//! assert!((weight.to_vec::<f32>()?[0] - (1.0 - 0.1 * 3.0 / 5.0)).abs() < 1e-6);
//! # Ok::<(), tensor::TensorError>(())
//! ```

mod norm;
mod optimizer;
mod schedule;

pub use norm::GradientNorm;
pub use optimizer::{Kind, Optimizer, Slot, State};
pub use schedule::Schedule;
