//! Updates of a list of parameters by one rule, and the tensors that the rule keeps.

use std::ops::Range;

use device::{Category, DType, Device, Request};
use tensor::ops::optimizer::{self, Item, StateTensor, Stream, UpdateRule};
use tensor::ops::{StepState, Table};
use tensor::{Result, Tensor};

use crate::slot::Slot;

/// Returns the name of a tensor that a rule keeps for a parameter: `adamw.first.<parameter>`.
pub fn state_name(state: &StateTensor, parameter: &str) -> String {
    format!("{}.{parameter}", state.name)
}

/// A tensor that the optimizer keeps, with its name.
#[derive(Clone, Debug)]
pub struct NamedState<'a> {
    /// The parameter's name for a master weight, [`state_name`] for the others.
    pub name: String,
    /// Index of the tensor's slot.
    pub slot: usize,
    /// The values, as many as the slot's weight has.
    pub tensor: &'a Tensor,
}

/// How the tensors of [`UpdateRule::states`] are kept.
#[derive(Clone, Debug)]
pub struct StateOptions {
    /// f32, or bf16, which each update rounds stochastically.
    pub dtype: DType,
    /// The seed of the random numbers of rounding.
    pub seed: u64,
    /// Index of each slot's first element in its whole parameter; 0 for slots that are not listed.
    pub firsts: Vec<usize>,
}

impl Default for StateOptions {
    /// f32.
    fn default() -> Self {
        StateOptions { dtype: DType::F32, seed: 0, firsts: Vec::new() }
    }
}

/// The optimizer's tensors for one slot.
#[derive(Debug)]
struct SlotState {
    /// The f32 master weight, which is updated. An f32 weight is its own master and shares its storage. The
    /// master of a bf16 weight is a separate tensor, 0 until the caller fills it; each update rounds it into
    /// the weight.
    master: Tensor,
    /// The tensors of [`UpdateRule::states`].
    kept: Vec<Tensor>,
    /// Random numbers that round them.
    stream: Stream,
}

/// Updates parameters in place.
#[derive(Debug)]
pub struct Optimizer {
    rule: UpdateRule,
    slots: Vec<Slot>,
    states: Vec<SlotState>,
    /// Number of slots that are updated before the others.
    first: usize,
    /// Device addresses of the tensors of those slots, and of the others.
    tables: [Table; 2],
}

impl Optimizer {
    /// Allocates zeroed state for every slot, with master weights for slots that are not f32.
    /// [`Optimizer::step`] then updates all slots in one call. Errors: out of memory.
    pub fn new(device: &Device, slots: &[Slot], rule: UpdateRule) -> Result<Self> {
        Self::in_two_calls(device, slots, rule, 0)
    }

    /// Does the same, but gives the first `first` slots a call of their own, [`Optimizer::step_first`].
    /// Results do not depend on it.
    pub fn in_two_calls(device: &Device, slots: &[Slot], rule: UpdateRule, first: usize) -> Result<Self> {
        Self::with_states(device, slots, rule, first, &StateOptions::default())
    }

    /// [`Optimizer::in_two_calls`] with the rule's tensors kept as `options` say. Errors: out of memory.
    pub fn with_states(
        device: &Device,
        slots: &[Slot],
        rule: UpdateRule,
        first: usize,
        options: &StateOptions,
    ) -> Result<Self> {
        let first = first.min(slots.len());
        let zeros = |slot: &Slot, operator: &'static str, dtype: DType| {
            let _scope = device.module(&slot.name);
            let request = Request::new(Category::OptimizerState, operator);
            Tensor::zeros(device, slot.weight.shape(), dtype, request)
        };
        let state = |(index, slot): (usize, &Slot)| -> Result<SlotState> {
            let master = match slot.weight.dtype() {
                DType::F32 => slot.weight.clone(),
                _ => zeros(slot, "optimizer.master", DType::F32)?,
            };
            let kept = rule.states().iter().map(|state| zeros(slot, state.name, options.dtype));
            let start = options.firsts.get(index).copied().unwrap_or(0);
            let stream = Stream::new(options.seed, &slot.name, start);
            Ok(SlotState { master, kept: kept.collect::<Result<_>>()?, stream })
        };
        let states = slots.iter().enumerate().map(state).collect::<Result<Vec<_>>>()?;
        let table = |slots| Table::of_parameters(device, slots);
        let tables = [table(first)?, table(slots.len() - first)?];
        Ok(Optimizer { rule, slots: slots.to_vec(), states, first, tables })
    }

    /// Updates all slots from `gradients`, one for each slot in order, with the learning rate, gradient
    /// factor and skip flag in `state`.
    pub fn step(&self, gradients: &[Tensor], state: &StepState) -> Result<()> {
        self.step_first(gradients, state)?;
        self.step_rest(gradients, state)
    }

    /// Updates the first slots; [`Optimizer::step_rest`] must follow with the same arguments.
    pub fn step_first(&self, gradients: &[Tensor], state: &StepState) -> Result<()> {
        optimizer::begin(&self.rule, state)?;
        self.update(&self.tables[0], 0..self.first, gradients, state)
    }

    /// Updates the other slots, which completes the step.
    pub fn step_rest(&self, gradients: &[Tensor], state: &StepState) -> Result<()> {
        self.update(&self.tables[1], self.first..self.slots.len(), gradients, state)
    }

    /// Updates the slots of one table in one call.
    fn update(
        &self,
        table: &Table,
        slots: Range<usize>,
        gradients: &[Tensor],
        state: &StepState,
    ) -> Result<()> {
        let all = self.slots.iter().zip(&self.states).zip(gradients);
        let items = all.skip(slots.start).take(slots.len()).map(|((slot, kept), gradient)| Item {
            weight: &kept.master,
            gradient,
            states: &kept.kept,
            compute: kept.is_copied(slot).then_some(&slot.weight),
            decay: slot.decay,
            stream: kept.stream,
        });
        optimizer::update(table, &self.rule, &items.collect::<Vec<_>>(), state)
    }

    /// The parameters that this optimizer updates.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The f32 master weights, in the order of the slots: the weight itself or a separate tensor.
    pub fn masters(&self) -> impl Iterator<Item = &Tensor> {
        self.states.iter().map(|state| &state.master)
    }

    /// All tensors that the optimizer keeps, slot by slot: the master, if it is not the weight, then those of
    /// the rule.
    pub fn named_state(&self) -> impl Iterator<Item = NamedState<'_>> {
        let slots = self.slots.iter().zip(&self.states).enumerate();
        slots.flat_map(move |(index, (slot, state))| {
            let master = state.is_copied(slot).then(|| (slot.name.clone(), &state.master));
            let names = self.rule.states().iter().map(|kept| state_name(kept, &slot.name));
            let all = master.into_iter().chain(names.zip(&state.kept));
            all.map(move |(name, tensor)| NamedState { name, slot: index, tensor })
        })
    }
}

impl SlotState {
    /// Returns whether the weight is a rounded copy of its master.
    fn is_copied(&self, slot: &Slot) -> bool {
        !self.master.shares_storage(&slot.weight)
    }
}
