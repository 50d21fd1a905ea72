//! The Llama model: token embeddings, blocks with rotary attention and gated feed-forward layers, a final
//! norm, and an output head.

use device::Device;

use super::sizes::LlamaSizes;
use crate::error::Result;
use crate::layers::{Embedding, LlamaBlock, RmsNorm, RotaryPositions, RotaryTable};
use crate::model::Stage;
use crate::models::decoder::{self, Decoder, Ends};
use crate::parameters::Parameters;

/// The Llama model, or one stage of it.
pub type Llama = Decoder<LlamaBlock, RmsNorm>;

impl Llama {
    /// Builds the layers of `stage` in the empty list `parameters`. Initial values are normal with standard
    /// deviation 0.02, and 0.02/√(2·layers) for projections into the residual stream.
    ///
    /// # Errors
    /// No model can have these sizes, or memory is exhausted.
    pub fn new(parameters: Parameters, sizes: &LlamaSizes, stage: &Stage) -> Result<Self> {
        let inits = decoder::initial(sizes.layers, sizes.scaling_by_width());
        let blocks = |parameters: &mut Parameters| {
            let mut tables = Tables::default();
            let block = |index| {
                let positions = match sizes.attends(index) {
                    true => tables.positions(parameters.device(), sizes, index)?,
                    false => RotaryPositions { table: None, still: None, interleaved: false },
                };
                LlamaBlock::new(parameters, index, sizes.block(index), positions, inits)
            };
            stage.layers.clone().map(block).collect()
        };
        let norm = |parameters: &mut Parameters| {
            let new = if sizes.norms_less_one { RmsNorm::less_one } else { RmsNorm::new };
            new(parameters, "model.norm", sizes.width, sizes.norm_epsilon as f32)
        };
        let padding = sizes.padding_tokens.first().map(|token| *token as u32);
        let embedding = |_: &mut Parameters, embedding: Embedding| Ok(embedding.with_padding(padding));
        Decoder::build(parameters, sizes.ends(), stage, embedding, blocks, norm)
    }
}

/// The rotary tables of a stage, each created when a layer first needs it.
#[derive(Default)]
struct Tables {
    /// Tables for layers without a window, and for layers with one.
    rotary: [Option<RotaryTable>; 2],
    still: Option<RotaryTable>,
}

impl Tables {
    fn positions(&mut self, device: &Device, sizes: &LlamaSizes, layer: usize) -> Result<RotaryPositions> {
        let is_windowed = sizes.is_windowed(layer) && sizes.windows_differ();
        let rotary = &mut self.rotary[usize::from(is_windowed)];
        let table = match sizes.rotates(layer) {
            true => {
                let frequencies = sizes.frequencies(is_windowed);
                Some(kept(rotary, || RotaryTable::new(device, frequencies, sizes.context))?)
            }
            false => None,
        };
        let still = match sizes.needs_still_table(layer) {
            true => {
                let new = || RotaryTable::still(device, sizes.head_width, sizes.context);
                Some(kept(&mut self.still, new)?)
            }
            false => None,
        };
        Ok(RotaryPositions { table, still, interleaved: sizes.rotates_neighbours() })
    }
}

/// Returns the stored value, creating it if there is none.
fn kept<T: Clone>(kept: &mut Option<T>, new: impl FnOnce() -> Result<T>) -> Result<T> {
    match kept {
        Some(value) => Ok(value.clone()),
        None => Ok(kept.insert(new()?).clone()),
    }
}

impl LlamaSizes {
    fn ends(&self) -> Ends {
        Ends {
            layers: self.layers,
            width: self.width,
            vocabulary: self.vocabulary,
            tied: self.tied,
            dropout: self.embedding_dropout,
            embedding_scale: self.embedding_scale,
            logit_scale: self.logit_scale * self.scaling_by_width().scores(),
            soft_cap: self.logit_soft_cap,
            loss_pieces: self.loss_pieces,
            context: self.context,
            table: "model.embed_tokens.weight",
            head: "lm_head",
        }
    }
}
