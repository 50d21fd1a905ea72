//! Optimizers, the gradient norm, and learning-rate schedules. This crate knows parameters and gradients, but
//! no ranks.
//!
//! The one idea: **everything an update needs is on the device before the update starts**. Learning rate,
//! norm, clipping factor, skip flag and number of updates are one device tensor, the [`StepState`], so the
//! host never waits.
//!
//! ```
//! use device::{Category, Device, DeviceOptions};
//! use optim::{GradientNorm, Optimizer, Slot, UpdateRule};
//! use tensor::Tensor;
//! let device = Device::cpu(0, &DeviceOptions::default())?;
//! let weight = Tensor::from_host(&device, &[1.0f32, 2.0], [2], Category::Parameter)?;
//! let gradient = Tensor::from_host(&device, &[3.0f32, 4.0], [2], Category::Gradient)?;
//! let slots = [Slot { name: "w".into(), weight: weight.clone(), decay: false }];
//! let norm = GradientNorm::new(&device, &slots, 1.0)?;
//! norm.measure(&[gradient.clone()])?;
//! assert_eq!(norm.state().norm()?, 5.0);
//! let sgd = Optimizer::new(&device, &slots, UpdateRule::Sgd { momentum: 0.0, weight_decay: 0.0 })?;
//! norm.state().set_learning_rate(0.1)?;
//! sgd.step(&[gradient], norm.state())?;
//! assert!((weight.to_vec::<f32>()?[0] - (1.0 - 0.1 * 3.0 / 5.0)).abs() < 1e-6);
//! assert_eq!(norm.state().updates()?, 1);
//! # Ok::<(), tensor::TensorError>(())
//! ```

mod average;
mod group;
mod kept;
mod matrix_group;
mod member;
mod norm;
mod offload;
mod optimizer;
mod schedule;
mod slot;
mod state_array;

pub use average::{AverageSchedule, ComputeValues};
pub use group::GroupOptions;
pub use matrix_group::MatrixGroupOptions;
pub use member::StateOptions;
pub use norm::GradientNorm;
pub use optimizer::Optimizer;
pub use schedule::{Decay, Schedule};
pub use slot::Slot;
pub use state_array::{AVERAGE_PREFIX, NamedState, StateArray};
pub use tensor::ops::StepState;
pub use tensor::ops::loss_scale::{ScaleRule, adapt as adapt_loss_scale};
pub use tensor::ops::optimizer::{StateTensor, UpdateRule};
