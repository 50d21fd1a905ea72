//! The blocks of residual networks (He, Zhang, Ren, Sun, *Deep Residual Learning for Image Recognition*,
//! 2015).

use autograd::{Tape, Var};
use nn::layers::{Layer, within};
use nn::{Parameters, Result};

use super::{ConvolutionSizes, NormedConvolution};

/// Sizes of a [`ResidualBlock`].
#[derive(Clone, Copy, Debug)]
pub struct ResidualBlockSizes {
    /// Number of input channels.
    pub inputs: usize,
    /// Number of channels of the inner convolutions.
    pub channels: usize,
    /// Stride of the first 3 × 3 convolution.
    pub stride: usize,
    /// Whether the block is a bottleneck, in which 1 × 1 convolutions reduce the channels by four and restore
    /// them. Otherwise it has two 3 × 3 convolutions.
    pub bottleneck: bool,
}

impl ResidualBlockSizes {
    /// Number of output channels.
    #[must_use]
    pub fn outputs(&self) -> usize {
        if self.bottleneck { 4 * self.channels } else { self.channels }
    }

    /// Returns kernel size and stride of each convolution. The stride is at a 3 × 3 convolution, as in
    /// torchvision.
    fn kernels(&self) -> Vec<[usize; 2]> {
        match self.bottleneck {
            true => vec![[1, 1], [3, self.stride], [1, 1]],
            false => vec![[3, self.stride], [3, 1]],
        }
    }
}

/// Computes relu(branch(x) + x), where the branch consists of convolutions with norms, and ReLU in between.
/// If the branch changes the shape, x passes through a 1 × 1 convolution and a norm.
#[derive(Debug)]
pub struct ResidualBlock {
    name: String,
    branch: Vec<NormedConvolution>,
    shortcut: Option<NormedConvolution>,
}

impl ResidualBlock {
    /// Registers the parameters under torchvision's names: `{name}.conv1`, `{name}.bn1`, …,
    /// `{name}.downsample.0`, `{name}.downsample.1`.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub fn new(parameters: &mut Parameters, name: &str, sizes: ResidualBlockSizes) -> Result<Self> {
        parameters.begin_unit();
        let kernels = sizes.kernels();
        let mut branch = Vec::new();
        let mut inputs = sizes.inputs;
        for (index, [kernel, stride]) in kernels.iter().copied().enumerate() {
            let outputs = if index + 1 == kernels.len() { sizes.outputs() } else { sizes.channels };
            let number = index + 1;
            let names = [format!("{name}.conv{number}"), format!("{name}.bn{number}")];
            let [convolution, norm] = names.each_ref().map(String::as_str);
            let sizes = ConvolutionSizes { inputs, outputs, kernel, stride };
            branch.push(NormedConvolution::new(parameters, [convolution, norm], sizes)?);
            inputs = outputs;
        }
        let keeps_shape = sizes.stride == 1 && sizes.inputs == sizes.outputs();
        let shortcut = (!keeps_shape).then(|| shortcut(parameters, name, sizes)).transpose()?;
        Ok(ResidualBlock { name: name.to_owned(), branch, shortcut })
    }
}

fn shortcut(parameters: &mut Parameters, name: &str, sizes: ResidualBlockSizes) -> Result<NormedConvolution> {
    let names = [format!("{name}.downsample.0"), format!("{name}.downsample.1")];
    let [convolution, norm] = names.each_ref().map(String::as_str);
    let inputs = sizes.inputs;
    let outputs = sizes.outputs();
    let stride = sizes.stride;
    let sizes = ConvolutionSizes { inputs, outputs, kernel: 1, stride };
    NormedConvolution::new(parameters, [convolution, norm], sizes)
}

impl Layer for ResidualBlock {
    type Stream = Var;

    fn forward(&self, tape: &Tape, x_nhwc: Var) -> Result<Var> {
        within(tape, &self.name, || {
            let mut hidden_nhwc = x_nhwc.clone();
            let last = self.branch.len() - 1;
            for convolution in &self.branch[..last] {
                hidden_nhwc = convolution.forward_relu(tape, hidden_nhwc)?;
            }
            let residual = || match &self.shortcut {
                Some(projection) => projection.forward(tape, x_nhwc),
                None => Ok(x_nhwc),
            };
            self.branch[last].forward_residual(tape, hidden_nhwc, residual)
        })
    }
}
