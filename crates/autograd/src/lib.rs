//! Reverse-mode differentiation over `tensor`'s operators. It records and calls; it computes nothing.
//!
//! The one idea: **a backward rule is a named struct whose fields are what it saved** (a closure would hide what it
//! keeps alive), and a [`Tape`] is a list of them that backward *consumes*: each rule, with its saved tensors, is
//! dropped the moment it has run, so nothing of a step's graph outlives the step.
//!
//! A rule has two halves, [`Rule::backward_input`] and [`Rule::backward_weight`]. Usually one follows the other;
//! a pipeline schedule may run the first halves of a whole stage and the second ones later, with equal bits.
//! Weight gradients go where a [`GradientSink`] says (a bucket, a tensor), one place per *use* of a parameter,
//! and the sink is told when each is ready: that is the hook that lets reduction overlap backward.
//!
//! A [`Segment`] of a model that runs through [`recompute`] is one rule on the tape, which keeps the segment's inputs
//! and records its operators when backward comes to them.
//!
//! ```
//! use autograd::{Gradients, Mode, Tape, UseId, Weight, ops};
//! use device::{Category, Device, DeviceOptions};
//! use tensor::{Tensor, ops::Activation};
//! let device = Device::cpu(0, &DeviceOptions::default())?;
//! let weight = Weight::new(Tensor::from_host(&device, &[3.0f32], [1, 1], Category::Parameter)?, UseId(0));
//! let x = Tensor::from_host(&device, &[2.0f32], [1, 1], Category::Input)?;
//! let y = Tensor::from_host(&device, &[5.0f32], [1, 1], Category::Input)?;
//! let tape = Tape::new(&device, Mode::Train);
//! let prediction = ops::linear(&tape, tape.constant(x), &weight, None, Activation::None)?;
//! let loss = ops::mse(&tape, prediction, &y, 1.0)?; // (3 · 2 − 5)²
//! let mut gradients = Gradients::default();
//! tape.backward(loss, &mut gradients)?;
//! assert_eq!(gradients.get(UseId(0)).unwrap().to_vec::<f32>()?, [4.0]); // 2 · (6 − 5) · 2
//! # Ok::<(), autograd::AutogradError>(())
//! ```

mod backward;
mod error;
mod mode;
pub mod ops;
mod recompute;
mod rule;
mod sink;
mod tape;
mod weight;

pub use backward::{LeafGradients, PendingWeights};
pub use error::{AutogradError, Result};
pub use mode::Mode;
pub use recompute::{RecomputeRule, Segment, recompute};
pub use rule::{Rule, Saved};
pub use sink::{GradientSink, Gradients, Target};
pub use tape::{SavedBytes, Source, Tape, Var};
pub use weight::{UseId, Weight};
