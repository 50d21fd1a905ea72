//! A convolution followed by a batch norm.

use autograd::{Mode, Tape, Var, ops};
use nn::layers::{short, within};
use nn::{Parameters, Result};

use super::{BatchNorm, Convolution, ConvolutionSizes};

/// A convolution followed by a batch norm. Training computes one after the other; evaluation folds the norm
/// into the convolution's weight and bias, under the convolution's name.
#[derive(Debug)]
pub struct NormedConvolution {
    convolution: Convolution,
    norm: BatchNorm,
}

impl NormedConvolution {
    /// Registers the parameters of the convolution and of the norm under their names.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub fn new(
        parameters: &mut Parameters,
        [convolution, norm]: [&str; 2],
        sizes: ConvolutionSizes,
    ) -> Result<Self> {
        let convolution = Convolution::new(parameters, convolution, sizes)?;
        Ok(NormedConvolution { convolution, norm: BatchNorm::new(parameters, norm, sizes.outputs)? })
    }

    /// Computes norm(convolution(x)) for `x_nhwc [batch, height, width, inputs]`.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    pub fn forward(&self, tape: &Tape, x_nhwc: Var) -> Result<Var> {
        if tape.mode() == Mode::Evaluate {
            return self.folded(tape, x_nhwc, None, false);
        }
        self.norm.forward(tape, self.convolution.forward(tape, x_nhwc)?)
    }

    /// Computes relu(norm(convolution(x))).
    pub fn forward_relu(&self, tape: &Tape, x_nhwc: Var) -> Result<Var> {
        if tape.mode() == Mode::Evaluate {
            return self.folded(tape, x_nhwc, None, true);
        }
        self.norm.forward_relu(tape, self.convolution.forward(tape, x_nhwc)?, None)
    }

    /// Computes relu(norm(convolution(x)) + residual). In training, the residual is computed after the
    /// convolution.
    ///
    /// # Errors
    /// Errors of [`NormedConvolution::forward`] and of the residual.
    pub fn forward_residual(
        &self,
        tape: &Tape,
        x_nhwc: Var,
        residual: impl FnOnce() -> Result<Var>,
    ) -> Result<Var> {
        if tape.mode() == Mode::Evaluate {
            let residual = residual()?;
            return self.folded(tape, x_nhwc, Some(residual), true);
        }
        let output_nhwc = self.convolution.forward(tape, x_nhwc)?;
        self.norm.forward_relu(tape, output_nhwc, Some(residual()?))
    }

    fn folded(&self, tape: &Tape, x_nhwc: Var, residual: Option<Var>, relu: bool) -> Result<Var> {
        let Convolution { name, weight, options } = &self.convolution;
        let norm = self.norm.operands(relu);
        within(tape, short(name), || {
            let averages = self.norm.averages()?;
            let norm = (&norm, averages.each_ref());
            Ok(ops::folded_convolution(tape, x_nhwc, residual, (weight, *options), norm)?)
        })
    }
}
