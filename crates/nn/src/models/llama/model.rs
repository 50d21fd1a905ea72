//! The model: token embeddings, pre-norm blocks with rotary positions, grouped heads and gated feed-forward
//! layers, a final norm, and an output head.

use super::sizes::LlamaSizes;
use crate::error::Result;
use crate::layers::{LlamaBlock, RmsNorm, RotaryTable};
use crate::model::Stage;
use crate::models::decoder::{self, Decoder, Ends};
use crate::parameters::Parameters;

/// The model, or one stage of it.
pub type Llama = Decoder<LlamaBlock, RmsNorm>;

impl Llama {
    /// Builds the layers of `stage` in `parameters`, which are empty. Initial values are normal with standard
    /// deviation 0.02, and 0.02/√(2·layers) for projections into the residual stream.
    ///
    /// # Errors
    /// Sizes of which no model can be built, out of memory.
    pub fn new(parameters: Parameters, sizes: &LlamaSizes, stage: &Stage) -> Result<Self> {
        let inits = decoder::initial(sizes.layers);
        let block_sizes = sizes.block();
        let blocks = |parameters: &mut Parameters| {
            let table = RotaryTable::new(parameters.device(), sizes.frequencies(), sizes.context)?;
            let block = |index| LlamaBlock::new(parameters, index, block_sizes, &table, inits);
            stage.layers.clone().map(block).collect()
        };
        let norm = |parameters: &mut Parameters| {
            RmsNorm::new(parameters, "model.norm", sizes.width, block_sizes.epsilon)
        };
        Decoder::build(parameters, sizes.ends(), stage, |_, embedding| Ok(embedding), blocks, norm)
    }
}

impl LlamaSizes {
    fn ends(&self) -> Ends {
        Ends {
            layers: self.layers,
            width: self.width,
            vocabulary: self.vocabulary,
            tied: self.tied,
            dropout: self.dropout,
            soft_cap: self.logit_soft_cap,
            loss_pieces: self.loss_pieces,
            context: self.context,
            table: "model.embed_tokens.weight",
            head: "lm_head",
        }
    }
}
