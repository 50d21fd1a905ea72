//! The Llama model: token embeddings, blocks with rotary attention and gated feed-forward layers, a final
//! norm, and an output head.

use device::Device;

use super::sizes::LlamaSizes;
use crate::error::Result;
use crate::init::Init;
use crate::layers::{
    Activation, BlockNorm, Embedding, LayerEmbeddings, Linear, LlamaBlock, LlamaBlockSizes, NormOptions,
    RotaryPositions, RotaryTable, SharedKeyValues,
};
use crate::model::Stage;
use crate::models::decoder::{self, Decoder, Ends};
use crate::parameters::Parameters;

/// The Llama model, or one stage of it.
pub type Llama = Decoder<LlamaBlock, BlockNorm>;

impl Llama {
    /// Builds the layers of `stage` in the empty list `parameters`. Initial values are normal with standard
    /// deviation 0.02, and 0.02/√branches for projections into the residual stream.
    ///
    /// # Errors
    /// No model can have these sizes, or memory is exhausted.
    pub fn new(parameters: Parameters, sizes: &LlamaSizes, stage: &Stage) -> Result<Self> {
        let inits = decoder::initial(sizes.all_branches(), sizes.scaling_by_width());
        let padding = sizes.padding_tokens.first().map(|token| *token as u32);
        let mut embeddings = None;
        let mut tables = Tables::default();
        let blocks = |parameters: &mut Parameters| {
            embeddings = sizes.layer_embeddings(parameters, stage, padding)?;
            let block = |index| {
                let positions = match sizes.attends(index) {
                    true => tables.positions(parameters.device(), sizes, index)?,
                    false => RotaryPositions::default(),
                };
                let block = LlamaBlockSizes { first_layer: stage.layers.start, ..sizes.block(index) };
                LlamaBlock::new(parameters, index, block, positions, inits)
            };
            stage.layers.clone().map(block).collect()
        };
        let norm = |parameters: &mut Parameters| sizes.norms().norm(parameters, "model.norm", sizes.width);
        let embedding = |_: &mut Parameters, embedding: Embedding| Ok(embedding.with_padding(padding));
        let decoder = Decoder::build(parameters, sizes.ends(), stage, embedding, blocks, norm)?;
        let carried = sizes.carried(stage, &tables.shared, decoder.shards());
        let decoder = decoder.with_carried(embeddings, carried);
        let decoder = decoder.with_modules(sizes.ends(), stage, |parameters, index| {
            sizes.module(parameters, index, &mut tables, inits)
        })?;
        if !sizes.embedding_norm {
            return Ok(decoder);
        }
        let norms = NormOptions { has_weight: false, ..sizes.norms() };
        decoder.with_embedding_norm(|parameters| norms.norm(parameters, "model.embedding_norm", sizes.width))
    }
}

/// The rotary tables of a stage, each created when a layer first needs it.
#[derive(Default)]
struct Tables {
    /// Tables for layers without a window, and for layers with one.
    rotary: [Option<RotaryTable>; 2],
    still: [Option<RotaryTable>; 2],
    growth: [Option<RotaryTable>; 2],
    /// Keys and values that layers without a window share, and layers with one.
    shared: [SharedKeyValues; 2],
}

impl Tables {
    fn positions(&mut self, device: &Device, sizes: &LlamaSizes, layer: usize) -> Result<RotaryPositions> {
        let is_windowed = sizes.is_windowed(layer) && sizes.windows_differ();
        let rotary = &mut self.rotary[usize::from(is_windowed)];
        let table = match sizes.rotates(layer) {
            true => {
                let frequencies = sizes.frequencies(is_windowed);
                let rotation = (sizes.pairs(is_windowed), sizes.rope_reversed);
                let new = || RotaryTable::new(device, frequencies, sizes.context, rotation);
                Some(kept(rotary, new)?)
            }
            false => None,
        };
        let width = sizes.heads_of(layer).width;
        let of_width = usize::from(width != sizes.head_width);
        let still = match sizes.needs_still_table(layer) {
            true => {
                let new = || RotaryTable::still(device, width, sizes.context);
                Some(kept(&mut self.still[of_width], new)?)
            }
            false => None,
        };
        let growth = match sizes.query_growth > 0.0 {
            true => {
                let factor = |position| sizes.query_factor(position);
                let new = || RotaryTable::growing(device, width, sizes.context, factor);
                Some(kept(&mut self.growth[of_width], new)?)
            }
            false => None,
        };
        let slot = &self.shared[usize::from(sizes.is_windowed(layer))];
        let shared = sizes.key_value_role(layer).map(|role| (slot.clone(), role));
        Ok(RotaryPositions { table, still, interleaved: sizes.rotates_neighbours(), growth, shared })
    }
}

/// Returns the stored value, creating it if there is none.
fn kept<T: Clone>(kept: &mut Option<T>, new: impl FnOnce() -> Result<T>) -> Result<T> {
    match kept {
        Some(value) => Ok(value.clone()),
        None => Ok(kept.insert(new()?).clone()),
    }
}

/// Parts of a module that predicts a later token: its name, the norms of its inputs, their projection, the
/// block, and the last norm.
type ModuleParts = (String, [BlockNorm; 2], Linear, LlamaBlock, BlockNorm);

impl LlamaSizes {
    /// Registers the parameters of module `index` as `model.layers.{layers + index}.…`, with DeepSeek-V3's
    /// names. The block is like the model's last block with attention, with feed-forward layers or experts
    /// of another one if layers have one branch.
    fn module(
        &self,
        parameters: &mut Parameters,
        index: usize,
        tables: &mut Tables,
        inits: [Init; 2],
    ) -> Result<ModuleParts> {
        let layer = self.layers + index;
        let alike = self.layer_of_modules();
        let name = format!("model.layers.{layer}");
        let part = |part: &str| format!("{name}.{part}");
        let [enorm, hnorm, last] = ["enorm", "hnorm", "shared_head.norm"].map(part);
        let norms = self.norms();
        let before =
            [norms.norm(parameters, &enorm, self.width)?, norms.norm(parameters, &hnorm, self.width)?];
        let width = self.width;
        let none = Activation::None;
        let projection =
            Linear::without_bias(parameters, &part("eh_proj"), 2 * width, width, inits[0], none)?;
        let positions = match self.attends(alike) {
            true => tables.positions(parameters.device(), self, alike)?,
            false => RotaryPositions::default(),
        };
        let block = LlamaBlock::new(parameters, layer, self.block_of_modules(), positions, inits)?;
        let norm = norms.norm(parameters, &last, width)?;
        Ok((name, before, projection, block, norm))
    }

    /// Creates the embeddings of tokens for each layer on the first stage; `None` if the model has none.
    fn layer_embeddings(
        &self,
        parameters: &mut Parameters,
        stage: &Stage,
        padding: Option<u32>,
    ) -> Result<Option<LayerEmbeddings>> {
        let width = self.layer_embedding_width;
        if width == 0 || !stage.is_first() {
            return Ok(None);
        }
        let sizes = [self.vocabulary, self.width];
        let layers = [self.layers, width];
        let options = (self.norms(), padding);
        LayerEmbeddings::new(parameters, sizes, layers, options, decoder::INITIAL).map(Some)
    }

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
