//! Decoder-only language models: the code that the families share.

use autograd::{Dimension, LaterTokens, Placement, Tape, Var, ops};
use collective::Axis;
use tensor::Tensor;

use crate::error::{NnError, Result};
use crate::init::Init;
use crate::layers::{
    CarriedColumns, Dropout, Embedding, Layer, LayerEmbeddings, Linear, Multiplier, Norm, PredictionModule,
    Residual, Stack, StageEmbeddings, Stream, TokenHead,
};
use crate::model::{Input, Model, Stage};
use crate::parameters::{ParameterRole, Parameters, PredictionModules};
use crate::recompute::Recompute;
use crate::shards::Shards;
use crate::width_scaling::WidthScaling;

/// Expected input of the first stage, in errors; [`OUTPUT`] is the other stages'.
const TOKENS: &str = "a batch of tokens";
const OUTPUT: &str = "the stage before's output";

/// Standard deviation of the initial weights.
const DEVIATION: f32 = 0.02;

/// A decoder or one stage of it: token embeddings in the first stage, blocks `B` on a residual stream, and in
/// the last stage a final norm `N` and an output head.
#[derive(Debug)]
pub struct Decoder<B, N> {
    parameters: Parameters,
    embedding: Option<(Embedding, Multiplier, Dropout)>,
    /// Norm of the embeddings, if any.
    embedding_norm: Option<N>,
    /// Embeddings of tokens for each layer, on the first stage, if any.
    layer_embeddings: Option<LayerEmbeddings>,
    /// Columns that stages send beside the residual stream, if any.
    carried: Option<CarriedColumns>,
    blocks: Stack<B>,
    head: Option<Head<N>>,
    /// Modules that predict later tokens, on the last stage, and the weight of each module's loss.
    modules: (Vec<PredictionModule<B, N>>, f32),
    /// Number of tokens per sequence.
    context: usize,
}

#[derive(Debug)]
struct Head<N> {
    norm: N,
    /// Factor of the scores, applied to the head's input.
    scale: Multiplier,
    output: TokenHead,
}

/// Sizes and parameter names of a decoder's embedding and head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// Number of layers of the whole model.
    pub(super) layers: usize,
    pub(super) width: usize,
    pub(super) vocabulary: usize,
    /// Whether the head shares the token table.
    pub(super) tied: bool,
    /// Dropout probability of embeddings.
    pub(super) dropout: f64,
    /// Factor of embeddings.
    pub(super) embedding_scale: f64,
    /// Factor of scores, before they are capped.
    pub(super) logit_scale: f64,
    pub(super) soft_cap: f64,
    pub(super) loss_pieces: usize,
    /// Number of tokens per sequence.
    pub(super) context: usize,
    /// Name of the token table.
    pub(super) table: &'static str,
    /// Name of the head, without `.weight`.
    pub(super) head: &'static str,
}

/// Initial values of embeddings and of the head.
pub(super) const INITIAL: Init = Init::Normal(DEVIATION);

/// Returns the initial values of the blocks' matrices, and of their projections into the residual stream, to
/// which the model adds `branches`.
pub(super) fn initial(branches: usize, scaling: WidthScaling) -> [Init; 2] {
    [INITIAL, Init::Normal(DEVIATION / (branches as f32).sqrt())].map(|init| scaling.matrices(init))
}

impl<B, N> Decoder<B, N> {
    /// Builds the layers of `stage` in the empty list `parameters`: the token embedding, to which `positions`
    /// may add positions, then `blocks`, then `norm` and the head.
    ///
    /// # Errors
    /// The model has no such stage, or a layer cannot be built.
    pub(super) fn build(
        mut parameters: Parameters,
        ends: Ends,
        stage: &Stage,
        positions: impl FnOnce(&mut Parameters, Embedding) -> Result<Embedding>,
        blocks: impl FnOnce(&mut Parameters) -> Result<Vec<B>>,
        norm: impl FnOnce(&mut Parameters) -> Result<N>,
    ) -> Result<Self>
    where
        B: Layer,
    {
        let Ends { layers, width, vocabulary, tied, table, .. } = ends;
        if stage.model_layers != layers || stage.layers.is_empty() || stage.layers.end > layers {
            return Err(NnError::Sizes(format!("layers {:?} are no stage of {layers} layers", stage.layers)));
        }
        let embedding = match stage.is_first() {
            true => {
                let embedding = Embedding::new(&mut parameters, table, [vocabulary, width], INITIAL)?;
                let embedding = positions(&mut parameters, embedding)?;
                let dropout = Dropout::new(&parameters, "embedding.dropout", ends.dropout);
                Some((embedding, Multiplier::new(ends.embedding_scale), dropout))
            }
            false => None,
        };
        if tied && stage.is_first() && !stage.is_last() {
            share(&mut parameters, table)?;
        }
        let blocks = Stack::new(blocks(&mut parameters)?);
        let head = match stage.is_last() {
            true => {
                parameters.begin_unit();
                let norm = norm(&mut parameters)?;
                let layer = output(&mut parameters, ends, stage)?;
                let output = TokenHead::new(&parameters, layer, (ends.soft_cap, ends.loss_pieces))?;
                Some(Head { norm, scale: Multiplier::new(ends.logit_scale), output })
            }
            false => None,
        };
        Ok(Decoder {
            parameters,
            embedding,
            embedding_norm: None,
            layer_embeddings: None,
            carried: None,
            blocks,
            head,
            modules: (Vec::new(), 0.0),
            context: ends.context,
        })
    }

    /// Shards of the layers.
    pub(super) fn shards(&self) -> Shards {
        self.parameters.shards()
    }

    /// Adds embeddings of tokens for each layer, and columns that stages send beside the residual stream.
    pub(super) fn with_carried(self, embeddings: Option<LayerEmbeddings>, carried: CarriedColumns) -> Self {
        Decoder { layer_embeddings: embeddings, carried: Some(carried), ..self }
    }

    /// Normalises embeddings by a norm without parameters, made by `norm`, before the first block.
    ///
    /// # Errors
    /// Errors of `norm`.
    pub(super) fn with_embedding_norm(
        mut self,
        norm: impl FnOnce(&mut Parameters) -> Result<N>,
    ) -> Result<Self> {
        if self.embedding.is_some() {
            self.embedding_norm = Some(norm(&mut self.parameters)?);
        }
        Ok(self)
    }

    /// Adds the modules of [`Parameters::predicting`] to the last stage. `parts` creates the norm of
    /// embeddings, the norm of outputs, the projection, the block and the last norm of a module.
    ///
    /// # Errors
    /// A layer cannot be built, or the head has an adapter or is in FP8.
    pub(super) fn with_modules(
        mut self,
        ends: Ends,
        stage: &Stage,
        mut parts: impl FnMut(&mut Parameters, usize) -> Result<(String, [N; 2], Linear, B, N)>,
    ) -> Result<Self> {
        let PredictionModules { count, weight } = self.parameters.prediction_modules();
        if count == 0 {
            return Ok(self);
        }
        if !ends.tied && stage.is_first() && !stage.is_last() {
            share(&mut self.parameters, ends.table)?;
        }
        let Some(head) = &self.head else { return Ok(self) };
        if !ends.tied && !stage.is_first() {
            self.parameters.begin_unit();
            copy_table(&mut self.parameters, ends)?;
        }
        let head_weight = match ends.tied {
            true => ends.table.to_owned(),
            false => format!("{}.weight", ends.head),
        };
        for index in 0..count {
            let parameters = &mut self.parameters;
            parameters.begin_unit();
            let embedding = Embedding::reused(parameters, ends.table)?;
            let (name, [embedding_norm, hidden_norm], projection, block, norm) = parts(parameters, index)?;
            self.modules.0.push(PredictionModule {
                name,
                embedding: (embedding, Multiplier::new(ends.embedding_scale)),
                embedding_norm,
                hidden_norm,
                projection,
                block: Stack::new(vec![block]),
                norm,
                scale: head.scale,
                head: head.output.shared(parameters, ends.head, &head_weight)?,
            });
        }
        self.modules.1 = (weight / count as f64) as f32;
        Ok(self)
    }

    /// Makes the blocks selected by `recompute` recompute their activations in backward. The blocks of
    /// modules do so if the last block does.
    #[must_use]
    pub fn recomputing(self, recompute: Recompute) -> Self
    where
        B: Layer<Stream = Residual> + 'static,
        N: Norm,
    {
        let is_last_again = recompute.parts(self.blocks.layers()).last().is_some_and(|last| last.again);
        let of_modules = if is_last_again { Recompute::EACH } else { Recompute::NONE };
        let (modules, weight) = self.modules;
        let modules = modules.into_iter().map(|module| module.recomputing(of_modules)).collect();
        Decoder { blocks: self.blocks.recomputing(recompute), modules: (modules, weight), ..self }
    }

    fn embed(&self, tape: &Tape, tokens: &Tensor) -> Result<Var>
    where
        N: Norm,
    {
        let first = self.embedding.as_ref().ok_or(NnError::StageInput { expected: OUTPUT })?;
        let (embedding, scale, dropout) = first;
        let rows = scale.forward(tape, embedding.forward(tape, tokens)?)?;
        let rows = self.embedding_norm.as_ref().map_or(Ok(rows.clone()), |norm| norm.forward(tape, rows))?;
        dropout.forward(tape, rows)
    }

    /// Returns the head; an error if this is not the last stage.
    fn head(&self) -> Result<&Head<N>> {
        self.head.as_ref().ok_or(NnError::NotLast)
    }
}

/// Records that another stage also holds the token table.
fn share(parameters: &mut Parameters, table: &str) -> Result<()> {
    let is_sharded = parameters.style(table).is_some();
    parameters.for_each_shard(is_sharded, |parameters| parameters.share(table))?;
    Ok(())
}

/// Creates the head, with a parameter of its own or the token table.
fn output(parameters: &mut Parameters, ends: Ends, stage: &Stage) -> Result<Linear> {
    let Ends { width, vocabulary, tied, table, head, .. } = ends;
    if !tied {
        return Linear::head(parameters, head, [width, vocabulary], INITIAL, None);
    }
    if !stage.is_first() {
        copy_table(parameters, ends)?;
    }
    Linear::tied(parameters, head, table)
}

/// Creates the last stage's copy of the token table, with the same initial values.
fn copy_table(parameters: &mut Parameters, ends: Ends) -> Result<()> {
    let Ends { width, vocabulary, table, .. } = ends;
    let style = parameters.style(table);
    let rows = parameters.sharding([vocabulary, width], style.as_ref())?;
    parameters.for_each_shard(style.is_some(), |parameters| {
        parameters.with_role(ParameterRole::Embedding, |parameters| {
            parameters.create_unused(table, rows.clone(), INITIAL)
        })
    })?;
    share(parameters, table)
}

impl<B, N> Decoder<B, N>
where
    B: Layer<Stream = Residual> + 'static,
    N: Norm,
{
    /// Computes the stage's input: the stream before the blocks, and the embeddings for each layer.
    fn start(&self, tape: &Tape, input: Input) -> Result<(Var, StageEmbeddings)> {
        match (&self.embedding, input) {
            (Some(_), Input::Batch(tokens)) => {
                let start = self.embed(tape, &tokens)?;
                let embeddings = match (&self.layer_embeddings, &self.carried) {
                    (Some(embeddings), Some(carried)) => {
                        let all = embeddings.forward(tape, &tokens, start.clone())?;
                        carried.split_embeddings(tape, all)?
                    }
                    _ => StageEmbeddings::default(),
                };
                Ok((start, embeddings))
            }
            (None, Input::Hidden(hidden)) => {
                let hidden = self.arrived(tape, hidden);
                match &self.carried {
                    Some(carried) => carried.open(tape, hidden, self.piece_time(tape)),
                    None => Ok((hidden, StageEmbeddings::default())),
                }
            }
            (Some(_), Input::Hidden(_)) => Err(NnError::StageInput { expected: TOKENS }),
            (None, Input::Batch(_)) => Err(NnError::StageInput { expected: OUTPUT }),
        }
    }

    /// Converts the stream after the blocks to the stage's output.
    fn finish(&self, tape: &Tape, stream: Residual, later: Option<Var>) -> Result<Var> {
        match &self.head {
            Some(head) if !tape.pass().fills_cache() => {
                let (sum, normalised) = stream.normalise(tape, &head.norm)?;
                drop(sum);
                if self.predicts_later(tape) {
                    return Ok(normalised);
                }
                head.scale.forward(tape, normalised)
            }
            _ => {
                let stream = stream.close(tape)?;
                match &self.carried {
                    Some(carried) => carried.close(tape, stream, later),
                    None => Ok(stream),
                }
            }
        }
    }

    /// Returns whether the pass also computes the losses of the modules. The stage's output is then the
    /// input of the first module.
    fn predicts_later(&self, tape: &Tape) -> bool {
        !(self.modules.0.is_empty() || tape.pass().later_tokens.is_empty())
    }

    /// Returns the losses of the head and of all modules, joined.
    fn losses(&self, tape: &Tape, hidden: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        let head = self.head()?;
        let input = head.scale.forward(tape, hidden.clone())?;
        let mut losses = vec![head.output.loss(tape, input, targets, scale)?];
        let mut weights = vec![1.0];
        let (modules, weight) = &self.modules;
        let later_tokens: Vec<LaterTokens> = tape.pass().later_tokens.clone();
        let mut hidden = hidden;
        for (module, later) in modules.iter().zip(&later_tokens) {
            hidden = module.forward(tape, hidden, later)?;
            losses.push(module.loss(tape, hidden.clone(), later, scale)?);
            weights.push(*weight);
        }
        drop(hidden);
        Ok(ops::join_losses(tape, losses, &weights)?)
    }

    /// Sets the placement of the previous stage's output, whose rows may be sharded.
    fn arrived(&self, tape: &Tape, hidden: Var) -> Var {
        if !self.parameters.shards_rows() || tape.pass().cache.is_some() {
            return hidden;
        }
        let time = self.piece_time(tape);
        hidden.with_placement(Axis::Tensor, Placement::Shard(Dimension::Rows { time }))
    }

    /// Number of positions of a sequence, or of a piece of it.
    fn piece_time(&self, tape: &Tape) -> usize {
        self.context / tape.pieces().map_or(1, |pieces| pieces.all)
    }
}

impl<B, N> Model for Decoder<B, N>
where
    B: Layer<Stream = Residual> + 'static,
    N: Norm,
{
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn forward(&self, tape: &Tape, input: Input) -> Result<Var> {
        let (start, embeddings) = self.start(tape, input)?;
        let stream = self.blocks.forward(tape, Residual::new(start).with_inputs(embeddings.own))?;
        self.finish(tape, stream, embeddings.later)
    }

    fn scores(&self, tape: &Tape, prediction: Var) -> Result<Var> {
        self.head()?.output.scores(tape, prediction)
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        match self.predicts_later(tape) {
            true => self.losses(tape, prediction, targets, scale),
            false => self.head()?.output.loss(tape, prediction, targets, scale),
        }
    }
}
