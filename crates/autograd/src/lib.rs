//! Reverse-mode differentiation over `tensor`'s operators: records calls, and computes nothing itself.
//!
//! The one idea: **a backward rule is a named struct whose fields are its saved tensors** (a closure would
//! hide them). A [`Tape`] is a list of rules that backward *consumes*: each rule is dropped with its saved
//! tensors as soon as it has run, so that a step's graph does not outlive the step.
//!
//! A rule has two halves, [`Rule::backward_input`] and [`Rule::backward_weight`]. Usually the second directly
//! follows the first. A pipeline schedule may run the input halves of a whole stage first and the weight
//! halves later, with the same bits. A [`GradientSink`] provides memory for the weight gradient of each *use*
//! of a parameter and is notified when the gradient is ready, so that reduction can overlap backward.
//!
//! A [`Segment`] of a model that runs through [`recompute`] is one rule on the tape. It keeps only the
//! segment's inputs. When backward reaches it, it runs and records the segment again.
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
//!
//! [`example`] is a program that adds an operator.

mod backward;
mod error;
mod mode;
mod observer;
mod offload;
pub mod ops;
mod pass;
pub mod precision;
mod recompute;
mod rule;
mod sharded;
mod sink;
mod tape;
mod weight;

/// An operator of a program, with a test of its gradients: `examples/operator.rs`.
///
#[doc = concat!("```no_run\n", include_str!("../examples/operator.rs"), "```")]
#[cfg(doc)]
pub mod example {}

pub use backward::{LeafGradients, PendingWeights};
pub use error::{AutogradError, Result};
pub use mode::Mode;
pub use observer::{Call, Direction, Observer, ObserverError, Observers};
pub use offload::Offload;
pub use pass::{CachedPass, LaterTokens, LossScale, Pass, PreferencePass, SequenceState};
pub use recompute::{RECOMPUTE, RecomputeRule, Segment, recompute};
pub use rule::{Rule, Saved, ValueGradients};
pub use sharded::{
    BlockIndex, Dimension, FromBlocks, Pieces, Placement, Placements, SequencePiece, Source, Var, each_shard,
    map,
};
pub use sink::{GradientSink, Gradients, Target, ready, target};
pub use tape::{SavedBytes, Tape};
pub use weight::{UseId, Weight, WeightHandle, WeightSource};
