//! Passes of a step through all stages, of which each rank computes its own.

use autograd::{CachedPass, Mode, Pass, Tape, Var};
use collective::{Axis, Planes, RankGrid};
use device::{Category, Device, Request, StreamKind};
use nn::Input;
use tensor::Tensor;

use super::lines::Line;
use super::stage::{OwnStage, no_stage};
use crate::error::Result;
use crate::setup::Setup;

/// Use of the caches by a pass.
#[derive(Clone, Copy)]
enum Use<'a> {
    /// Fills a slot.
    Fill(usize),
    /// Extends every slot, with these documents.
    Extend(&'a Tensor),
    /// Nothing.
    Ignore,
}

/// The stages of this rank, and its connections to the ranks of others.
pub(super) struct Passes {
    pub(super) setup: Setup,
    pub(super) vocabulary: usize,
    pub(super) grid: RankGrid,
    pub(super) device: Device,
    pub(super) planes: Planes,
    pub(super) stages: Vec<OwnStage>,
}

impl Passes {
    /// The logits after the last token of every line, `[rows, 1, vocabulary]`, where this rank has the
    /// model's end. `state` is that of the lines.
    pub(super) fn logits(&mut self, state: &Tensor, lines: &[Option<Line<'_>>]) -> Result<Option<Tensor>> {
        if self.setup.config.model.cached_heads().is_none() {
            return self.logits_of_all(state, lines);
        }
        for (slot, line) in lines.iter().enumerate() {
            let Some((_, before)) = line.filter(|line| line.is_new).and_then(|line| line.tokens.split_last())
            else {
                continue;
            };
            if !before.is_empty() {
                let inputs = self.inputs(before)?;
                self.pass(&inputs, Use::Fill(slot))?;
            }
        }
        let rows = state.shape().columns();
        let (inputs, documents) = (state.view(0, [rows, 1])?, state.view(rows, [rows, 1])?);
        self.pass(&inputs, Use::Extend(&documents))
    }

    /// [`Passes::logits`] of a model without caches: each line's tokens are computed again, by themselves.
    fn logits_of_all(&mut self, state: &Tensor, lines: &[Option<Line<'_>>]) -> Result<Option<Tensor>> {
        let (rows, vocabulary) = (state.shape().columns(), self.vocabulary);
        let dtype = self.setup.config.precision.compute;
        let request = Request::new(Category::Activation, "logits");
        let all = Tensor::zeros(&self.device, [rows, 1, vocabulary], dtype, request)?;
        let mut is_last = true;
        for (row, line) in lines.iter().enumerate() {
            let Some(line) = line else { continue };
            let inputs = self.inputs(line.tokens)?;
            match self.pass(&inputs, Use::Ignore)? {
                Some(logits) => {
                    let last = logits.view(logits.elements() - vocabulary, [vocabulary])?;
                    all.view(row * vocabulary, [vocabulary])?.copy_from(&last)?;
                }
                None => is_last = false,
            }
        }
        Ok(is_last.then_some(all))
    }

    fn inputs(&self, tokens: &[u32]) -> Result<Tensor> {
        Ok(Tensor::from_host(&self.device, tokens, [1, tokens.len()], Category::Input)?)
    }

    /// One pass of `inputs [rows, time]` through all stages, of which each rank computes its own: the result
    /// of the last one, where it is this rank's.
    fn pass(&mut self, inputs: &Tensor, uses: Use<'_>) -> Result<Option<Tensor>> {
        let stages = self.setup.blueprint.stages.len();
        let layout = self.setup.blueprint.layout();
        let own = self.grid.coordinate(Axis::Pipeline);
        let mut hidden: Option<Tensor> = None;
        for stage in 0..stages {
            let Some(index) = self.stages.iter().position(|own| own.number == stage) else { continue };
            let input = match (stage, hidden.take()) {
                (0, _) => Input::Batch(inputs.clone()),
                (_, Some(before)) => Input::Hidden(Tape::new(&self.device, Mode::Evaluate).constant(before)),
                (_, None) => {
                    let from = layout.rank_of(stage - 1);
                    let received = self.empty_hidden(stage - 1, inputs)?;
                    let planes = &mut self.planes;
                    planes.receive(Axis::Pipeline, from, received.region(), StreamKind::Compute)?;
                    Input::Hidden(Tape::new(&self.device, Mode::Evaluate).constant(received))
                }
            };
            let output = self.run(index, input, uses)?.into_tensor();
            let next = stage + 1;
            if next == stages {
                return Ok(Some(output));
            }
            match layout.rank_of(next) {
                rank if rank == own => hidden = Some(output),
                rank => self.planes.send(Axis::Pipeline, rank, output.region(), StreamKind::Compute)?,
            }
        }
        Ok(None)
    }

    /// Runs one of this rank's stages.
    fn run(&self, index: usize, input: Input, uses: Use<'_>) -> Result<Var> {
        let OwnStage { number, model, caches } = &self.stages[index];
        let pass = match uses {
            Use::Fill(slot) => Pass { cache: Some(CachedPass::filling(caches, slot)), ..Pass::default() },
            Use::Extend(documents) => Pass {
                documents: Some(documents.clone()),
                cache: Some(CachedPass::extending(caches)),
                ..Pass::default()
            },
            Use::Ignore => Pass::default(),
        };
        let is_end = *number + 1 == self.setup.blueprint.stages.len() && !pass.fills_cache();
        let tape = Tape::new(&self.device, Mode::Evaluate).of(pass);
        let output = model.forward(&tape, input)?;
        if is_end { Ok(model.scores(&tape, output)?) } else { Ok(output) }
    }

    /// Room for what `stage` sends for `inputs [rows, time]`: its output for a training micro-batch, with as
    /// many rows and as much time.
    fn empty_hidden(&self, stage: usize, inputs: &Tensor) -> Result<Tensor> {
        let crossing = self.setup.blueprint.crossings.get(stage).ok_or_else(no_stage)?;
        let [rows, time] = [inputs.shape().dims()[0], inputs.shape().dims()[1]];
        let shape =
            crossing.shape.with(0, rows).and_then(|shape| shape.with(1, time)).ok_or_else(no_stage)?;
        let request = Request::new(Category::Communication, "receive_forward");
        Ok(Tensor::empty(&self.device, shape, crossing.dtype, request)?)
    }
}
