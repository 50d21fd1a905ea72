//! The residual network, or one stage of it.

use autograd::ops::Windows;
use autograd::{Tape, Var, ops};
use nn::layers::{Linear, Stack, within};
use nn::{Init, Input, Model, NnError, Parameters, Recompute, Result, Stage};
use tensor::Tensor;

use super::sizes::{ResNetSizes, StemKind};
use crate::layers::{BatchNorm, ConvolutionSizes, NormedConvolution, ResidualBlock};

/// The layers before the first block: a convolution, a norm with ReLU, and pooling.
#[derive(Debug)]
struct Stem {
    kind: StemKind,
    convolution: NormedConvolution,
}

impl Stem {
    fn new(parameters: &mut Parameters, kind: StemKind, inputs: usize, outputs: usize) -> Result<Self> {
        let (kernel, stride) = match kind {
            StemKind::ImageNet => (7, 2),
            StemKind::Small => (3, 1),
        };
        let sizes = ConvolutionSizes { inputs, outputs, kernel, stride };
        Ok(Stem { kind, convolution: NormedConvolution::new(parameters, ["conv1", "bn1"], sizes)? })
    }

    fn forward(&self, tape: &Tape, images_nhwc: Tensor) -> Result<Var> {
        let hidden_nhwc = self.convolution.forward_relu(tape, tape.constant(images_nhwc))?;
        if self.kind == StemKind::Small {
            return Ok(hidden_nhwc);
        }
        let windows = Windows { size: [3, 3], stride: [2, 2], padding: [1, 1], counts_padding: false };
        within(tape, "maxpool", || Ok(ops::max_pool(tape, hidden_nhwc, windows)?))
    }
}

/// A residual network, or one stage of it: a stem, blocks, and a linear layer on the mean over pixels.
#[derive(Debug)]
pub struct ResNet {
    parameters: Parameters,
    stem: Option<Stem>,
    blocks: Stack<ResidualBlock>,
    head: Option<Linear>,
}

impl ResNet {
    /// Builds the layers of `stage` in the empty list `parameters`, with torchvision's names and initial
    /// values.
    ///
    /// # Errors
    /// No model can have these sizes, or memory is exhausted.
    pub fn new(mut parameters: Parameters, sizes: &ResNetSizes, stage: &Stage) -> Result<Self> {
        let all = sizes.blocks();
        if all.is_empty()
            || stage.model_layers != all.len()
            || stage.layers.is_empty()
            || stage.layers.end > all.len()
        {
            let layers = &stage.layers;
            let count = all.len();
            return Err(NnError::Sizes(format!("layers {layers:?} are no stage of {count} blocks")));
        }
        let first = &all[0].1;
        let last = &all[all.len() - 1].1;
        let stem =
            stage.is_first().then(|| Stem::new(&mut parameters, sizes.stem, sizes.channels, first.inputs));
        let stem = stem.transpose()?;
        let block = |index: usize| {
            let (name, sizes) = &all[index];
            ResidualBlock::new(&mut parameters, name, *sizes)
        };
        let blocks = stage.layers.clone().map(block).collect::<Result<Vec<_>>>()?;
        let inputs = last.outputs();
        let init = Init::uniform_fan_in(last.outputs());
        let head = || {
            parameters.begin_unit();
            Linear::head(&mut parameters, "fc", [inputs, sizes.classes], init, Some(init))
        };
        let head = stage.is_last().then(head).transpose()?;
        BatchNorm::allocate_statistics(&mut parameters)?;
        Ok(ResNet { parameters, stem, blocks: Stack::new(blocks), head })
    }

    /// Makes the blocks selected by `recompute` recompute their activations in backward.
    #[must_use]
    pub fn recomputing(self, recompute: Recompute) -> Self {
        ResNet { blocks: self.blocks.recomputing(recompute), ..self }
    }
}

impl Model for ResNet {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn forward(&self, tape: &Tape, input: Input) -> Result<Var> {
        let hidden_nhwc = match (input, &self.stem) {
            (Input::Batch(images_nhwc), Some(stem)) => stem.forward(tape, images_nhwc)?,
            (Input::Batch(images_nhwc), None) => tape.constant(images_nhwc),
            (Input::Hidden(hidden_nhwc), _) => hidden_nhwc,
        };
        let hidden_nhwc = self.blocks.forward(tape, hidden_nhwc)?;
        let Some(head) = &self.head else { return Ok(hidden_nhwc) };
        let pooled_nc = within(tape, "avgpool", || Ok(ops::global_average_pool(tape, hidden_nhwc)?))?;
        head.forward(tape, pooled_nc)
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        within(tape, "loss", || Ok(ops::cross_entropy(tape, prediction, targets, scale)?))
    }
}
