//! Tensors and every operator on them, forward and backward, on every device. Gradients are recorded by the
//! crate `autograd`.
//!
//! The one idea: **an operator is a pair of plain functions over tensors** (`ops::linear::forward`,
//! `ops::linear::backward_input`, …) that allocate their outputs, the same on each backend, and then compute
//! on the backend at hand; [`Backend::Meta`] stops after allocating. What an operator allocates is a function
//! of shapes and types alone.
//!
//! A [`Tensor`] is a dense row-major view into a reference-counted storage; the last owner returns the
//! storage to the caching allocator.
//!
//! Every operator refuses operands whose shapes or types do not agree, before it computes, and returns the
//! device's errors, among them out of memory. A section *Errors* names only what else can fail.
//!
//! ```
//! use device::{Category, Device, DeviceOptions};
//! use tensor::{Tensor, ops};
//! let device = Device::cpu(0, &DeviceOptions::default())?;
//! let x = Tensor::from_host(&device, &[1.0f32, 2.0], [1, 2], Category::Input)?;
//! let w = Tensor::from_host(&device, &[3.0f32, 4.0], [1, 2], Category::Parameter)?;
//! let y = ops::linear::forward(&x, &w, None, ops::Activation::None)?;
//! assert_eq!(y.output.to_vec::<f32>()?, [11.0]);
//! # Ok::<(), tensor::TensorError>(())
//! ```

mod error;
mod host_values;
pub mod ops;
mod shape;
mod tensor;

pub use device::{Backend, Category, DType, Device, Element};
pub use error::{Result, TensorError};
pub use shape::Shape;
pub use tensor::Tensor;
