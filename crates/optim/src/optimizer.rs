//! AdamW and SGD over a list of parameters.

use std::ops::Range;

use device::{Category, DType, Device, Request};
use tensor::ops::{Table, adamw, sgd};
use tensor::{Result, Tensor};

use crate::norm::GradientNorm;

/// A parameter, or a part of one, as the optimizer sees it.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The parameter's name.
    pub name: String,
    /// Its values, f32 or bf16, updated in place.
    pub weight: Tensor,
    /// Whether weight decay applies to it.
    pub decay: bool,
}

/// Which update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019), as `torch.optim.AdamW` computes it.
    AdamW {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        epsilon: f32,
    },
    /// Stochastic gradient descent, as `torch.optim.SGD` computes it.
    Sgd {
        /// Decay of the velocity; 0: none is kept.
        momentum: f32,
    },
}

/// The optimizer's tensors for one slot.
#[derive(Clone, Debug)]
pub struct State {
    /// The weight in f32, which is what is updated. That of an f32 parameter is the parameter itself, in one storage; that of
    /// a bf16 parameter is a tensor of its own, 0 until the caller fills it, whose rounding every update writes to the weight.
    pub master: Tensor,
    /// AdamW's first moment, SGD's velocity.
    pub first: Option<Tensor>,
    /// AdamW's second moment.
    pub second: Option<Tensor>,
}

/// Updates parameters in place.
#[derive(Debug)]
pub struct Optimizer {
    kind: Kind,
    weight_decay: f32,
    slots: Vec<Slot>,
    states: Vec<State>,
    /// How many slots are updated before the others.
    first: usize,
    /// Where the tensors of those are, and of the others.
    tables: [Table; 2],
    steps: u32,
}

impl Optimizer {
    /// State of zeros for every slot, masters included where they are not the weights. All are updated in one call, as
    /// [`Optimizer::step`] does. Errors: out of memory.
    pub fn new(device: &Device, slots: &[Slot], kind: Kind, weight_decay: f32) -> Result<Self> {
        Self::in_two_calls(device, slots, kind, weight_decay, 0)
    }

    /// The same, but the first `first` slots have a call of their own, [`Optimizer::step_first`]. No bit depends on it.
    pub fn in_two_calls(
        device: &Device,
        slots: &[Slot],
        kind: Kind,
        weight_decay: f32,
        first: usize,
    ) -> Result<Self> {
        let first = first.min(slots.len());
        let zeros = |slot: &Slot, operator: &'static str| {
            let _scope = device.module(&slot.name);
            Tensor::zeros(
                device,
                slot.weight.shape(),
                DType::F32,
                Request::new(Category::OptimizerState, operator),
            )
        };
        let state = |slot: &Slot| -> Result<State> {
            let master = match slot.weight.dtype() {
                DType::F32 => slot.weight.clone(),
                _ => zeros(slot, "optimizer.master")?,
            };
            let (first, second) = match kind {
                Kind::AdamW { .. } => (Some(zeros(slot, "adamw.first")?), Some(zeros(slot, "adamw.second")?)),
                Kind::Sgd { momentum: 0.0 } => (None, None),
                Kind::Sgd { .. } => (Some(zeros(slot, "sgd.velocity")?), None),
            };
            Ok(State { master, first, second })
        };
        let states = slots.iter().map(state).collect::<Result<Vec<_>>>()?;
        let table = |slots| Table::of_parameters(device, slots);
        let tables = [table(first)?, table(slots.len() - first)?];
        Ok(Optimizer { kind, weight_decay, slots: slots.to_vec(), states, first, tables, steps: 0 })
    }

    /// One update from `gradients`, one per slot in order, each multiplied by the norm's clipping factor if given.
    pub fn step(
        &mut self,
        gradients: &[Tensor],
        learning_rate: f32,
        norm: Option<&GradientNorm>,
    ) -> Result<()> {
        self.step_first(gradients, learning_rate, norm)?;
        self.step_rest(gradients, learning_rate, norm)
    }

    /// The part of [`Optimizer::step`] that comes first: [`Optimizer::step_rest`] follows, with the same arguments.
    pub fn step_first(
        &mut self,
        gradients: &[Tensor],
        learning_rate: f32,
        norm: Option<&GradientNorm>,
    ) -> Result<()> {
        self.update(&self.tables[0], 0..self.first, gradients, learning_rate, norm)
    }

    /// The other part, which completes the update.
    pub fn step_rest(
        &mut self,
        gradients: &[Tensor],
        learning_rate: f32,
        norm: Option<&GradientNorm>,
    ) -> Result<()> {
        self.update(&self.tables[1], self.first..self.slots.len(), gradients, learning_rate, norm)?;
        self.steps += 1;
        Ok(())
    }

    /// One call for some slots.
    fn update(
        &self,
        table: &Table,
        slots: Range<usize>,
        gradients: &[Tensor],
        learning_rate: f32,
        norm: Option<&GradientNorm>,
    ) -> Result<()> {
        let factor = norm.map(GradientNorm::result);
        let step = self.steps + 1;
        match self.kind {
            Kind::AdamW { beta1, beta2, epsilon } => {
                let weight_decay = self.weight_decay;
                let hyper = adamw::Hyper { learning_rate, beta1, beta2, epsilon, weight_decay, step };
                adamw::step(table, &self.adamw_items(gradients)[slots], &hyper, factor)
            }
            Kind::Sgd { momentum } => {
                let first_step = step == 1;
                let hyper =
                    sgd::Hyper { learning_rate, momentum, weight_decay: self.weight_decay, first_step };
                sgd::step(table, &self.sgd_items(gradients)[slots], &hyper, factor)
            }
        }
    }

    fn adamw_items<'a>(&'a self, gradients: &'a [Tensor]) -> Vec<adamw::Item<'a>> {
        let slots = self.slots.iter().zip(&self.states).zip(gradients);
        let item = |((slot, state), gradient): ((&'a Slot, &'a State), &'a Tensor)| {
            let (first, second) = (state.first.as_ref()?, state.second.as_ref()?);
            let (weight, compute) = (&state.master, compute(slot));
            Some(adamw::Item { weight, gradient, first, second, compute, decay: slot.decay })
        };
        slots.filter_map(item).collect()
    }

    fn sgd_items<'a>(&'a self, gradients: &'a [Tensor]) -> Vec<sgd::Item<'a>> {
        let slots = self.slots.iter().zip(&self.states).zip(gradients);
        let item = |((slot, state), gradient): ((&'a Slot, &'a State), &'a Tensor)| sgd::Item {
            weight: &state.master,
            gradient,
            momentum: state.first.as_ref(),
            compute: compute(slot),
        };
        slots.map(item).collect()
    }

    /// What it updates.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Its tensors, in the order of the slots.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// Updates made so far.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Continues from a saved count of updates; the states' values are set through [`Optimizer::states`].
    pub fn resume_at(&mut self, steps: u32) {
        self.steps = steps;
    }
}

/// The weight where it is not its own master.
fn compute(slot: &Slot) -> Option<&Tensor> {
    (slot.weight.dtype() != DType::F32).then_some(&slot.weight)
}
