//! Updates of a list of parameters by one rule, and the tensors that the rule keeps.

use std::ops::Range;

use device::{Category, DType, Device, Request};
use tensor::ops::optimizer::{self, BLOCK, Item, StateTensor, Stream, UpdateRule};
use tensor::ops::{StepState, Table};
use tensor::{Result, Shape, Tensor};

use crate::slot::Slot;

/// The name and type of a tensor that an optimizer keeps for a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateArray {
    /// `adamw.first.<parameter>` for a state, `adamw.first_maxima.<parameter>` for the maxima of its blocks.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Elements of the parameter for each element of the array: 1, or [`BLOCK`] for maxima.
    pub per: usize,
}

impl StateArray {
    /// Returns the arrays of a state in `dtype`: the state itself and, in 8 bits, its maxima.
    fn of(state: &StateTensor, parameter: &str, dtype: DType) -> impl Iterator<Item = StateArray> {
        let own = StateArray { name: format!("{}.{parameter}", state.name), dtype, per: 1 };
        let name = format!("{}_maxima.{parameter}", state.name);
        let maxima = StateArray { name, dtype: DType::F32, per: BLOCK };
        std::iter::once(own).chain((dtype == DType::U8).then_some(maxima))
    }

    /// Returns all arrays that `rule` keeps for a parameter, with states in `dtype`: f32, bf16, or u8 for 8
    /// bits.
    pub fn all(rule: &UpdateRule, parameter: &str, dtype: DType) -> Vec<StateArray> {
        rule.states().iter().flat_map(|state| StateArray::of(state, parameter, dtype)).collect()
    }

    /// The range of the array's elements for a range of the parameter's.
    pub fn range(&self, elements: Range<usize>) -> Range<usize> {
        elements.start / self.per..elements.end.div_ceil(self.per)
    }

    /// The shape of the array for a parameter of this shape.
    pub fn shape(&self, parameter: Shape) -> Shape {
        match self.per {
            1 => parameter,
            per => [parameter.elements().div_ceil(per)].into(),
        }
    }
}

/// A tensor that the optimizer keeps, with its name.
#[derive(Clone, Debug)]
pub struct NamedState<'a> {
    /// The array that the tensor is, or is a shard of; a master weight has the parameter's name.
    pub array: StateArray,
    /// Index of the tensor's slot.
    pub slot: usize,
    /// The values.
    pub tensor: &'a Tensor,
}

/// How the tensors of [`UpdateRule::states`] are kept.
#[derive(Clone, Debug)]
pub struct StateOptions {
    /// f32; bf16, which each update rounds stochastically; or u8 for 8 bits, block by block.
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
    /// The maxima of their blocks, if they are in 8 bits.
    maxima: Vec<Tensor>,
    /// Random numbers that round them.
    stream: Stream,
}

/// Updates parameters in place.
#[derive(Debug)]
pub struct Optimizer {
    rule: UpdateRule,
    /// The type of the rule's states.
    dtype: DType,
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
            let (mut kept, mut maxima) = (Vec::new(), Vec::new());
            for state in rule.states() {
                kept.push(zeros(slot, state.name, options.dtype)?);
                if options.dtype == DType::U8 {
                    let _scope = device.module(&slot.name);
                    let request = Request::new(Category::OptimizerState, "optimizer.maxima");
                    let blocks = optimizer::blocks(slot.weight.elements());
                    maxima.push(Tensor::zeros(device, [blocks], DType::F32, request)?);
                }
            }
            let start = options.firsts.get(index).copied().unwrap_or(0);
            let stream = Stream::new(options.seed, &slot.name, start);
            Ok(SlotState { master, kept, maxima, stream })
        };
        let states = slots.iter().enumerate().map(state).collect::<Result<Vec<_>>>()?;
        let table = |slots| match options.dtype {
            DType::U8 => Table::of_quantised(device, slots),
            _ => Table::of_parameters(device, slots),
        };
        let tables = [table(first)?, table(slots.len() - first)?];
        Ok(Optimizer { rule, dtype: options.dtype, slots: slots.to_vec(), states, first, tables })
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
            maxima: &kept.maxima,
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
            let master = StateArray { name: slot.name.clone(), dtype: DType::F32, per: 1 };
            let master = state.is_copied(slot).then_some((master, &state.master));
            let arrays = StateArray::all(&self.rule, &slot.name, self.dtype);
            // Each state is followed by its maxima, if it has any.
            let tensors = state
                .kept
                .iter()
                .enumerate()
                .flat_map(|(number, kept)| std::iter::once(kept).chain(state.maxima.get(number)));
            let all = master.into_iter().chain(arrays.into_iter().zip(tensors));
            all.map(move |(array, tensor)| NamedState { array, slot: index, tensor })
        })
    }
}

impl SlotState {
    /// Returns whether the weight is a rounded copy of its master.
    fn is_copied(&self, slot: &Slot) -> bool {
        !self.master.shares_storage(&slot.weight)
    }
}
