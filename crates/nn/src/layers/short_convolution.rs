//! The gated short convolution of LFM2.

use autograd::ops::CausalConvolution;
use autograd::{Tape, Var, map, ops};
use tensor::ops::Activation;

use super::{Layer, Linear, within};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::parameters::Parameters;

/// Sizes and options of a [`ShortConvolution`].
#[derive(Clone, Copy, Debug)]
pub struct ShortConvolutionSizes {
    /// Number of tokens that each output reads, its own included.
    pub taps: usize,
    /// Whether the convolution and the linear layers have biases.
    pub bias: bool,
}

/// A causal convolution of each channel between two gates: `out(c · convolution(b · x))`, where `b`, `c` and
/// `x` are the outputs of one linear layer. Shards have equal parts of the channels.
#[derive(Debug)]
pub struct ShortConvolution {
    input: Linear,
    /// The convolution of each local shard.
    convolutions: Vec<CausalConvolution>,
    output: Linear,
    /// Channels of a shard.
    channels: usize,
}

impl ShortConvolution {
    /// Registers `{prefix}.in_proj.weight` `[3 · width, width]` with the rows of b, c and x,
    /// `{prefix}.conv.weight` `[width, 1, taps]`, and `{prefix}.out_proj.weight` `[width, width]`; with
    /// biases, also `.bias` of each.
    ///
    /// # Errors
    /// Memory is exhausted, a name exists, or the shards do not divide the channels.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        width: usize,
        sizes: ShortConvolutionSizes,
        [init, projection]: [Init; 2],
    ) -> Result<Self> {
        let ShortConvolutionSizes { taps, bias } = sizes;
        let options = (bias, Activation::None);
        let name = format!("{prefix}.in_proj");
        let input = Linear::optional_bias(parameters, &name, [width, 3 * width], init, options)?;
        let weight = parameters.create_shards(&format!("{prefix}.conv.weight"), [width, 1, taps], init)?;
        let biases = match bias {
            true => parameters.create_shards(&format!("{prefix}.conv.bias"), [width], Init::Constant(0.0))?,
            false => Vec::new(),
        };
        let name = format!("{prefix}.out_proj");
        let output = Linear::optional_bias(parameters, &name, [width, width], projection, options)?;
        let mut biases = biases.into_iter();
        let convolution = |weight| CausalConvolution { weight, bias: biases.next(), silu: false };
        let convolutions = weight.into_iter().map(convolution).collect();
        let channels = width / input.edges().shards();
        Ok(ShortConvolution { input, convolutions, output, channels })
    }

    /// Computes the result of one shard from its copy of the input. Pieces of sequences meet in the
    /// convolution.
    fn forward_shard(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let mut own = 0;
        let [gate_blc, x_blc] = map(tape, [x_bld], |block, [x_bld]| {
            own = block.shard;
            let packed_blc = self.input.forward_shard(tape, block.shard, x_bld)?;
            within(tape, "conv", || {
                let mut parts = ops::split(tape, packed_blc, 2, &[self.channels; 3])?.into_iter();
                let (Some(b), Some(c), Some(x)) = (parts.next(), parts.next(), parts.next()) else {
                    let text = "a short convolution needs three groups of channels";
                    return Err(NnError::Sizes(text.to_owned()));
                };
                Ok((c, ops::multiply(tape, b, x)?))
            })
        })
        .map(<[Var; 2]>::from)?;
        let missing = || NnError::Sizes("a short convolution has no such shard".to_owned());
        let convolution = self.convolutions.get(own).ok_or_else(missing)?;
        let mixed_blc = within(tape, "conv", || Ok(ops::causal_convolution(tape, x_blc, convolution)?))?;
        map(tape, [gate_blc, mixed_blc], |block, [gate_blc, mixed_blc]| {
            let gated = within(tape, "conv", || Ok(ops::multiply(tape, gate_blc, mixed_blc)?))?;
            self.output.forward_shard(tape, block.shard, gated)
        })
    }
}

impl Layer for ShortConvolution {
    type Stream = Var;

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// # Errors
    /// The shape or dtype differs, memory is exhausted, or a collective failed.
    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let dtype = x_bld.tensor().dtype();
        let x_bld = self.input.enter(tape, x_bld)?;
        let y_bld = x_bld.each_shard(tape, |x_bld| self.forward_shard(tape, x_bld))?;
        self.output.leave(tape, y_bld, dtype)
    }
}
