//! Forward passes through all pipeline stages. Each rank computes its own stages.

use autograd::{CachedPass, Pass, Tape, Var};
use collective::Axis;
use device::{Category, Request};
use nn::Model;
use parallel::data::{WeightUnits, WorkKind};
use parallel::pipeline::{Action, ActionPart, Feed};
use tensor::Tensor;

use crate::lines::Line;
use crate::stage::{OwnStage, no_stage};
use worker::engine::Engine;
use worker::{Result, WorkerError};

/// How a pass uses the key-value caches.
#[derive(Clone, Copy)]
enum Use<'a> {
    /// Fills the cache of this slot.
    Fill(usize),
    /// Extends the cache of every slot by one token. The tensor has the document of each row.
    Extend(&'a Tensor),
    /// Uses no cache.
    Ignore,
}

/// This rank's stages, and its connections to the ranks of other stages.
pub(crate) struct Passes {
    pub(crate) engine: Engine,
    pub(crate) vocabulary: usize,
    pub(crate) stages: Vec<OwnStage>,
}

impl Passes {
    /// Returns whether the model caches keys and values of tokens.
    pub(crate) fn has_caches(&self) -> bool {
        self.engine.setup.config.model.cached_heads().is_some()
    }

    /// Returns the number of passes needed by a replica's lines, apart from the pass over all rows.
    pub(crate) fn count(&self, lines: &[Option<Line<'_>>]) -> usize {
        match self.has_caches() {
            true => lines.iter().filter(|line| fill(line).is_some()).count(),
            false => lines.iter().flatten().count(),
        }
    }

    /// Fills the slots of new lines with all tokens but the last. `most` is the maximum of [`Passes::count`]
    /// over replicas.
    pub(crate) fn fill(&mut self, lines: &[Option<Line<'_>>], most: usize) -> Result<()> {
        for (slot, line) in lines.iter().enumerate() {
            if let Some(before) = fill(line) {
                let inputs = self.inputs(before)?;
                self.pass(&inputs, Use::Fill(slot))?;
            }
        }
        self.idle(WorkKind::Fill, most.saturating_sub(self.count(lines)))
    }

    /// Extends all slots by the tokens of `state`. Returns the logits after each line's last token, `[rows,
    /// 1, vocabulary]`, if this rank has the last stage. Its device calls do not depend on the lines.
    pub(crate) fn extend(&mut self, state: &Tensor) -> Result<Option<Tensor>> {
        let rows = state.shape().columns();
        let inputs = state.view(0, [rows, 1])?;
        let documents = state.view(rows, [rows, 1])?;
        self.pass(&inputs, Use::Extend(&documents))
    }

    /// Computes the logits of [`Passes::extend`] for a model without caches: each line's tokens are
    /// recomputed in a pass of their own. `most` is the maximum of [`Passes::count`] over replicas.
    pub(crate) fn logits_of_all(
        &mut self,
        rows: usize,
        lines: &[Option<Line<'_>>],
        most: usize,
    ) -> Result<Option<Tensor>> {
        let vocabulary = self.vocabulary;
        let dtype = self.engine.setup.config.precision.compute;
        let request = Request::new(Category::Activation, "logits");
        let all = Tensor::zeros(&self.engine.device, [rows, 1, vocabulary], dtype, request)?;
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
        self.idle(WorkKind::Forward, most.saturating_sub(self.count(lines)))?;
        Ok(is_last.then_some(all))
    }

    fn inputs(&self, tokens: &[u32]) -> Result<Tensor> {
        Ok(Tensor::from_host(&self.engine.device, tokens, [1, tokens.len()], Category::Input)?)
    }

    /// Joins the weight gathers of `count` passes that other replicas run and this one does not.
    fn idle(&self, kind: WorkKind, count: usize) -> Result<()> {
        for units in self.stages.iter().filter_map(|stage| stage.units.as_ref()) {
            let group = self.engine.groups.divided(Axis::Data)?.within;
            (0..count).try_for_each(|_| units.repeat(kind, &group))?;
        }
        Ok(())
    }

    /// Releases gathered weights, because they may have changed.
    pub(crate) fn outdate(&self) {
        self.stages.iter().filter_map(|stage| stage.units.as_ref()).for_each(WeightUnits::outdate);
    }

    /// Runs one pass of `inputs [rows, time]` through all stages, each rank computing its own. Returns the
    /// last stage's output, if this rank has it.
    fn pass(&mut self, inputs: &Tensor, uses: Use<'_>) -> Result<Option<Tensor>> {
        let kind = if matches!(uses, Use::Fill(_)) { WorkKind::Fill } else { WorkKind::Forward };
        for units in self.stages.iter().filter_map(|stage| stage.units.as_ref()) {
            units.begin(kind, &self.engine.groups.divided(Axis::Data)?.within)?;
        }
        let extents = [inputs.shape().dims()[0], inputs.shape().dims()[1]];
        let models = self.stages.iter().map(|stage| &*stage.model).collect();
        let mut feed = PassFeed { stages: &self.stages, inputs, uses, result: None };
        self.engine.executor.generate(models, &mut self.engine.groups, extents, &mut feed)?;
        Ok(feed.result)
    }
}

/// Returns the tokens to fill a new sequence's slot with: all but the last. `None` if there are none.
fn fill<'a>(line: &Option<Line<'a>>) -> Option<&'a [u32]> {
    let (_, before) = line.filter(|line| line.is_new)?.tokens.split_last()?;
    (!before.is_empty()).then_some(before)
}

/// The inputs and the output of one pass.
struct PassFeed<'a> {
    stages: &'a [OwnStage],
    inputs: &'a Tensor,
    uses: Use<'a>,
    result: Option<Tensor>,
}

impl Feed for PassFeed<'_> {
    type Error = WorkerError;

    fn enter(&mut self, _action: Action, _part: ActionPart) -> Result<()> {
        Ok(())
    }

    fn inputs(&mut self, _micro_batch: usize) -> Result<Tensor> {
        Ok(self.inputs.clone())
    }

    fn targets(&mut self, _micro_batch: usize) -> Result<Tensor> {
        Err(no_stage())
    }

    fn pass(&mut self, action: Action) -> Result<Pass> {
        let own = self.stages.iter().find(|own| own.number == action.stage).ok_or_else(no_stage)?;
        Ok(match self.uses {
            Use::Fill(slot) => {
                Pass { cache: Some(CachedPass::filling(&own.caches, slot)), ..Pass::default() }
            }
            Use::Extend(documents) => Pass {
                documents: Some(documents.clone()),
                cache: Some(CachedPass::extending(&own.caches)),
                ..Pass::default()
            },
            Use::Ignore => Pass::default(),
        })
    }

    fn loss(&mut self, _micro_batch: usize, _loss: &Tensor) -> Result<()> {
        Ok(())
    }

    fn output(&mut self, model: &dyn Model, tape: &Tape, output: Var) -> Result<()> {
        let result = if tape.pass().fills_cache() { output } else { model.scores(tape, output)? };
        self.result = Some(result.into_tensor());
        Ok(())
    }
}
