//! The norms of Llama-like blocks, of one of several kinds.

use autograd::{Tape, Var};

use super::{LayerNorm, Norm, RmsNorm};
use crate::error::Result;
use crate::parameters::Parameters;

system::names! {
    /// Kind of a norm.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NormKind {
        /// RMS norm.
        Rms = "rms",
        /// Layer norm without a bias.
        Layer = "layer",
    }
}

/// Options of the norms of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormOptions {
    /// Kind of the norms between layers.
    pub kind: NormKind,
    /// Whether norms have weights.
    pub has_weight: bool,
    /// Whether norms store their weights minus 1.
    pub is_less_one: bool,
    /// Epsilon added to mean squares or variances.
    pub epsilon: f32,
}

impl NormOptions {
    /// Creates a norm between layers; with a weight, registers `{name}.weight`, `[width]`.
    ///
    /// # Errors
    /// Memory is exhausted, or the name exists.
    pub fn norm(&self, parameters: &mut Parameters, name: &str, width: usize) -> Result<BlockNorm> {
        Ok(match self.kind {
            NormKind::Rms => BlockNorm::Rms(self.rms(parameters, name, width)?),
            NormKind::Layer if self.has_weight => {
                let norm = LayerNorm::without_bias(parameters, name, width)?;
                BlockNorm::Layer(norm.with_epsilon(self.epsilon))
            }
            NormKind::Layer => BlockNorm::Layer(
                LayerNorm::without_weight(parameters, name, width)?.with_epsilon(self.epsilon),
            ),
        })
    }

    /// Creates an RMS norm, as [`NormOptions::norm`] does.
    ///
    /// # Errors
    /// Errors of [`NormOptions::norm`].
    pub fn rms(&self, parameters: &mut Parameters, name: &str, width: usize) -> Result<RmsNorm> {
        let create = match (self.has_weight, self.is_less_one) {
            (false, _) => RmsNorm::without_weight,
            (true, false) => RmsNorm::new,
            (true, true) => RmsNorm::less_one,
        };
        create(parameters, name, width, self.epsilon)
    }
}

/// A norm between layers.
#[derive(Debug)]
pub enum BlockNorm {
    /// RMS norm.
    Rms(RmsNorm),
    /// Layer norm without a bias.
    Layer(LayerNorm),
}

impl Norm for BlockNorm {
    fn forward_residual(&self, tape: &Tape, residual: Var, branch: Option<Var>) -> Result<(Var, Var)> {
        match self {
            BlockNorm::Rms(norm) => norm.forward_residual(tape, residual, branch),
            BlockNorm::Layer(norm) => norm.forward_residual(tape, residual, branch),
        }
    }

    fn forward(&self, tape: &Tape, x: Var) -> Result<Var> {
        match self {
            BlockNorm::Rms(norm) => norm.forward(tape, x),
            BlockNorm::Layer(norm) => norm.forward(tape, x),
        }
    }
}
