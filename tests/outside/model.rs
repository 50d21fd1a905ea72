//! The layers of the example's model.

use plimsoll::autograd::{Tape, Var, Weight, ops};
use plimsoll::nn::layers::{Activation, Embedding, Layer, Linear, Qkv, Stack};
use plimsoll::nn::{Init, Input, Model, NnError, Parameters, Recompute, Result, Stage};
use plimsoll::tensor::Tensor;
use plimsoll::tensor::ops::attention::Heads;

use crate::Sizes;
use crate::operator::branch_sum;

/// RMS norm: divides every row by its root mean square, and multiplies by a weight.
struct RmsNorm(Weight);

impl RmsNorm {
    fn new(parameters: &mut Parameters, name: &str, width: usize) -> Result<Self> {
        Ok(RmsNorm(parameters.create(&format!("{name}.weight"), [width], Init::Constant(1.0))?))
    }

    /// Normalises `[batch, time, width]`, keeping the shape.
    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let squares_bld = ops::pointwise(tape, x_bld.clone(), ops::Pointwise::Square)?;
        let mean_bl1 = ops::pointwise(tape, ops::mean(tape, squares_bld, 2)?, ops::Pointwise::Shift(1e-5))?;
        let root_bl1 = ops::pointwise(tape, mean_bl1, ops::Pointwise::Sqrt)?;
        let weight_d = ops::parameter(tape, &self.0)?;
        let width = weight_d.tensor().elements();
        let weight_11d = ops::reshape(tape, weight_d, [1, 1, width])?;
        Ok(ops::multiply(tape, ops::divide(tape, x_bld, root_bl1)?, weight_11d)?)
    }
}

/// A parallel block: `x + (attention(norm(x)) + feed_forward(norm(x))) / √2`.
struct Block {
    norm: RmsNorm,
    heads: Heads,
    qkv: Linear,
    mixed: Linear,
    expand: Linear,
    project: Linear,
}

impl Block {
    fn new(parameters: &mut Parameters, index: usize, sizes: Sizes) -> Result<Self> {
        let width = sizes.width;
        let heads = sizes.head();
        let norm = RmsNorm::new(parameters, &format!("{index}.norm"), width)?;
        let mut linear = |part: &str, inputs, outputs, activation| {
            let name = format!("{index}.{part}");
            Linear::without_bias(parameters, &name, inputs, outputs, Init::Normal(0.02), activation)
        };
        Ok(Block {
            norm,
            heads,
            qkv: linear("qkv", width, heads.packed_columns(), Activation::None)?,
            mixed: linear("mixed", width, width, Activation::None)?,
            expand: linear("expand", width, 4 * width, Activation::Gelu)?,
            project: linear("project", 4 * width, width, Activation::None)?,
        })
    }
}

impl Layer for Block {
    type Stream = Var;

    fn forward(&self, tape: &Tape, x_bld: Var) -> Result<Var> {
        let normalised_bld = self.norm.forward(tape, x_bld.clone())?;
        let qkv_blc = Qkv::Packed(self.qkv.forward(tape, normalised_bld.clone())?);
        let mixed_bld = self.mixed.forward(
            tape,
            ops::attention(tape, qkv_blc, self.heads, None, ops::AttentionMeasures::default())?,
        )?;
        let hidden_bld = self.project.forward(tape, self.expand.forward(tape, normalised_bld)?)?;
        Ok(ops::add(tape, x_bld, branch_sum(tape, mixed_bld, hidden_bld)?)?)
    }
}

/// The model, or one stage of it.
pub(crate) struct Transformer {
    parameters: Parameters,
    embedding: Option<Embedding>,
    blocks: Stack<Block>,
    head: Option<(RmsNorm, Linear)>,
}

impl Transformer {
    pub(crate) fn new(
        mut parameters: Parameters,
        sizes: Sizes,
        stage: &Stage,
        recompute: Recompute,
    ) -> Result<Self> {
        let init = Init::Normal(0.02);
        let table = [sizes.vocabulary, sizes.width];
        let embedding = match stage.is_first() {
            true => Some(Embedding::new(&mut parameters, "tokens", table, init)?.with_positions(
                &mut parameters,
                "positions",
                sizes.context,
                init,
            )?),
            false => None,
        };
        let block = |index| Block::new(&mut parameters, index, sizes);
        let blocks = stage.layers.clone().map(block).collect::<Result<Vec<_>>>()?;
        let head = match stage.is_last() {
            true => {
                let norm = RmsNorm::new(&mut parameters, "norm", sizes.width)?;
                let [outputs, inputs] = table;
                let none = Activation::None;
                Some((norm, Linear::without_bias(&mut parameters, "head", inputs, outputs, init, none)?))
            }
            false => None,
        };
        let blocks = Stack::new(blocks).recomputing(recompute);
        Ok(Transformer { parameters, embedding, blocks, head })
    }
}

impl Model for Transformer {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn forward(&self, tape: &Tape, input: Input) -> Result<Var> {
        let x_bld = match (&self.embedding, input) {
            (Some(embedding), Input::Batch(tokens_bl)) => embedding.forward(tape, &tokens_bl)?,
            (None, Input::Hidden(hidden_bld)) => hidden_bld,
            _ => return Err(NnError::StageInput { expected: "tokens at the start, and vectors after it" }),
        };
        let x_bld = self.blocks.forward(tape, x_bld)?;
        match &self.head {
            None => Ok(x_bld),
            Some((norm, output)) => output.forward(tape, norm.forward(tape, x_bld)?),
        }
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        Ok(ops::cross_entropy(tape, prediction, targets, scale)?)
    }
}
