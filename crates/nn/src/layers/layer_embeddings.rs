//! Embeddings of tokens for each layer, as in Gemma 3n and Gemma 4.

use autograd::{Tape, Var, map, ops};
use tensor::Tensor;

use super::{Activation, Embedding, Linear, Multiplier, NormOptions, RmsNorm, within};
use crate::error::{NnError, Result};
use crate::init::Init;
use crate::parameters::Parameters;

/// Computes an embedding of `width` values of every token for each layer: (norm(project(x)) + table(token)) /
/// √2, from the first layer's input x and a table.
#[derive(Debug)]
pub struct LayerEmbeddings {
    table: Embedding,
    table_scale: Multiplier,
    projection: Linear,
    projection_scale: Multiplier,
    norm: RmsNorm,
    /// Number of layers, and width of an embedding.
    sizes: [usize; 2],
}

impl LayerEmbeddings {
    /// Registers `model.embed_tokens_per_layer.weight` `[vocabulary, layers · width]`,
    /// `model.per_layer_model_projection.weight` `[layers · width, model]` and
    /// `model.per_layer_projection_norm.weight` `[width]`. The row of the token `padding` is not trained.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub fn new(
        parameters: &mut Parameters,
        [vocabulary, model]: [usize; 2],
        [layers, width]: [usize; 2],
        (norms, padding): (NormOptions, Option<u32>),
        init: Init,
    ) -> Result<Self> {
        let columns = layers * width;
        let table = "model.embed_tokens_per_layer.weight";
        let table = Embedding::new(parameters, table, [vocabulary, columns], init)?.with_padding(padding);
        let projection = "model.per_layer_model_projection";
        let projection =
            Linear::without_bias(parameters, projection, model, columns, init, Activation::None)?;
        let norm = norms.rms(parameters, "model.per_layer_projection_norm", width)?;
        Ok(LayerEmbeddings {
            table,
            table_scale: Multiplier::new((width as f64).sqrt()),
            projection,
            projection_scale: Multiplier::new(1.0 / (model as f64).sqrt()),
            norm,
            sizes: [layers, width],
        })
    }

    /// Returns the embeddings of all layers, `[batch, time, layers · width]`, from u32 tokens `[batch, time]`
    /// and the first layer's input.
    ///
    /// # Errors
    /// A shape differs, or memory is exhausted.
    pub fn forward(&self, tape: &Tape, tokens_bl: &Tensor, x_bld: Var) -> Result<Var> {
        within(tape, "per_layer_inputs", || {
            let [layers, width] = self.sizes;
            let rows_blc = self.table_scale.forward(tape, self.table.forward(tape, tokens_bl)?)?;
            let projected_blc = self.projection.forward(tape, x_bld)?;
            let projected_blc = self.projection_scale.forward(tape, projected_blc)?;
            let normed_blc = map(tape, [projected_blc], |_, [x_blc]| {
                let shape = x_blc.tensor().shape();
                let x = ops::reshape(tape, x_blc, [shape.rows() * layers, width])?;
                let x = self.norm.forward(tape, x)?;
                Ok::<_, NnError>(ops::reshape(tape, x, shape)?)
            })?;
            let sum_blc = ops::add(tape, normed_blc, rows_blc)?;
            Multiplier::new(0.5_f64.sqrt()).forward(tape, sum_blc)
        })
    }
}
