//! The end of a block after its two branches: adds a per-layer token embedding and multiplies by a scalar.

use autograd::{Tape, Var, ops};

use super::{Activation, Linear, NormOptions, Residual, RmsNorm, Stream, within};
use crate::buffers::ModelBuffer;
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::parameters::Parameters;

/// Adds a layer's token embedding to the stream, and multiplies the stream by a factor.
#[derive(Debug)]
pub(super) struct BlockTail {
    input: Option<LayerInput>,
    /// Factor of the block's result, `[1]` f32.
    factor: Option<ModelBuffer>,
}

/// Sizes of a [`BlockTail`].
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockTailSizes {
    /// Index of the layer in its stage.
    pub(super) index: usize,
    /// Width of the stream.
    pub(super) width: usize,
    /// Width of the layer's token embeddings; 0 for none.
    pub(super) embedding: usize,
    /// Whether the block's result has a factor.
    pub(super) has_factor: bool,
    /// Activation of the gate of embeddings.
    pub(super) activation: Activation,
}

/// A branch that gates a layer's token embedding by the stream and projects it: norm(project(activation(gate(
/// x)) · embedding)).
#[derive(Debug)]
struct LayerInput {
    index: usize,
    gate: Linear,
    activation: Activation,
    projection: Linear,
    norm: RmsNorm,
}

impl BlockTail {
    /// Registers `{name}.per_layer_input_gate`, `{name}.per_layer_projection`,
    /// `{name}.post_per_layer_input_norm` and the buffer `{name}.layer_scalar`, as far as `sizes` have them;
    /// `None` if they have neither.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub(super) fn new(
        parameters: &mut Parameters,
        name: &str,
        sizes: BlockTailSizes,
        norms: NormOptions,
        [init, projection]: [Init; 2],
    ) -> Result<Option<Self>> {
        let BlockTailSizes { index, width, embedding, has_factor, activation } = sizes;
        let input = match embedding {
            0 => None,
            embedding => {
                let mut linear = |part: &str, [inputs, outputs]: [usize; 2], init| {
                    let name = format!("{name}.{part}");
                    Linear::without_bias(parameters, &name, inputs, outputs, init, Activation::None)
                };
                let gate = linear("per_layer_input_gate", [width, embedding], init)?;
                let projection = linear("per_layer_projection", [embedding, width], projection)?;
                let norm = norms.rms(parameters, &format!("{name}.post_per_layer_input_norm"), width)?;
                Some(LayerInput { index, gate, activation, projection, norm })
            }
        };
        let factor = has_factor
            .then(|| parameters.create_buffer(&format!("{name}.layer_scalar"), [1], &[1.0f32]))
            .transpose()?;
        Ok((input.is_some() || factor.is_some()).then_some(BlockTail { input, factor }))
    }

    /// Computes the stream after the block.
    ///
    /// # Errors
    /// The stream has no embedding for the layer, a shape or dtype differs, or memory is exhausted.
    pub(super) fn forward(&self, tape: &Tape, stream: Residual) -> Result<Residual> {
        let (mut stream, inputs) = stream.split_inputs();
        if let Some(layer) = &self.input {
            let missing =
                || NnError::Sizes(format!("layer {} of a stage has no embedding of its own", layer.index));
            let own_bld = inputs.get(layer.index).ok_or_else(missing)?;
            let (sum_bld, x_bld) = stream.sum(tape)?;
            let branch_bld = within(tape, "per_layer_input", || layer.forward(tape, x_bld, own_bld))?;
            stream = Residual::pending(sum_bld, branch_bld);
        }
        if let Some(factor) = &self.factor {
            let sum_bld = stream.close(tape)?;
            let product_bld = within(tape, "layer_scalar", || {
                // Rows that are sharded have no dimension of sequences.
                let factor = match sum_bld.tensor().shape().dims().len() {
                    2 => factor.tensor().reshape([1, 1])?,
                    _ => factor.tensor().reshape([1, 1, 1])?,
                };
                let factor = tape.constant(factor);
                let factor = ops::cast(tape, factor, sum_bld.tensor().dtype())?;
                Ok(ops::multiply(tape, sum_bld, factor)?)
            })?;
            stream = Residual::new(product_bld);
        }
        Ok(stream.with_inputs(inputs))
    }
}

impl LayerInput {
    fn forward(&self, tape: &Tape, x_bld: Var, own_bld: &Var) -> Result<Var> {
        let gate_bld = ops::activation(tape, self.gate.forward(tape, x_bld)?, self.activation)?;
        let gated_bld = ops::multiply(tape, gate_bld, own_bld.clone())?;
        self.norm.forward(tape, self.projection.forward(tape, gated_bld)?)
    }
}
