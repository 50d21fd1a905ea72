//! Groups of parameters, each updated by one rule.

use std::ops::Range;

use device::{Category, DType, Device, Request};
use tensor::ops::optimizer::{self, Item, Stream, UpdateRule};
use tensor::ops::{StepState, Table};
use tensor::{Result, Tensor};

use crate::slot::Slot;
use crate::state_array::StateArray;

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

/// A group of parameters before its state is allocated.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The rule of the group's updates.
    pub rule: UpdateRule,
    /// How the rule's states are kept.
    pub states: StateOptions,
    /// Indices of the group's slots, in increasing order.
    pub slots: Vec<usize>,
}

impl GroupOptions {
    /// Returns the group of `count` slots, which are all that there are, with states in f32.
    pub fn all(rule: UpdateRule, count: usize) -> Self {
        GroupOptions { rule, states: StateOptions::default(), slots: (0..count).collect() }
    }
}

/// The two calls of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Updates the slots that come first.
    First,
    /// Updates the others.
    Rest,
}

/// Parameters, the rule that updates them, their state, and the tables of the rule's launches.
#[derive(Debug)]
pub(crate) struct Group {
    rule: UpdateRule,
    /// The type of the rule's states.
    dtype: DType,
    members: Vec<Member>,
    /// Number of members that are updated in the first call.
    first: usize,
    /// Device addresses of the tensors of those members, and of the others.
    tables: [Table; 2],
}

/// A slot of a group with its state.
#[derive(Debug)]
struct Member {
    /// Index of the slot, and of its gradient.
    index: usize,
    slot: Slot,
    /// The f32 master weight, which is updated. An f32 weight is its own master and shares its storage. The
    /// master of a bf16 weight is a separate tensor, 0 until the caller fills it; each update rounds it into
    /// the weight.
    master: Tensor,
    /// The tensors of [`UpdateRule::states`].
    states: Vec<Tensor>,
    /// The maxima of their blocks, if they are in 8 bits.
    maxima: Vec<Tensor>,
    /// Random numbers that round them.
    stream: Stream,
}

impl Group {
    /// Allocates the state of a group, slot by slot, then the tables of its launches. The first call updates
    /// the slots whose index is below `first`.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn new(device: &Device, slots: &[Slot], options: &GroupOptions, first: usize) -> Result<Self> {
        let GroupOptions { rule, states, slots: indices } = options;
        let chosen = indices.iter().filter_map(|index| Some((*index, slots.get(*index)?)));
        let members = chosen.map(|(index, slot)| Member::new(device, rule, states, index, slot));
        let members = members.collect::<Result<Vec<_>>>()?;
        let first = members.partition_point(|member| member.index < first);
        let table = |slots| match states.dtype {
            DType::U8 => Table::of_quantised(device, slots),
            _ => Table::of_parameters(device, slots),
        };
        let tables = [table(first)?, table(members.len() - first)?];
        Ok(Group { rule: *rule, dtype: states.dtype, members, first, tables })
    }

    /// The rule of the group's updates.
    pub(crate) fn rule(&self) -> &UpdateRule {
        &self.rule
    }

    /// Indices of the group's slots, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> {
        self.members.iter().map(|member| member.index)
    }

    /// Returns whether a call updates none of the group's slots.
    pub(crate) fn skips(&self, call: Call) -> bool {
        self.range(call).is_empty()
    }

    fn range(&self, call: Call) -> Range<usize> {
        match call {
            Call::First => 0..self.first,
            Call::Rest => self.first..self.members.len(),
        }
    }

    /// Updates the slots of a call in one launch. `gradients` has one tensor for each slot of all groups.
    pub(crate) fn update(&self, call: Call, gradients: &[Tensor], state: &StepState) -> Result<()> {
        let members = &self.members[self.range(call)];
        let items = members.iter().filter_map(|member| {
            Some(Item {
                weight: &member.master,
                gradient: gradients.get(member.index)?,
                states: &member.states,
                maxima: &member.maxima,
                compute: member.is_copied().then_some(&member.slot.weight),
                decay: member.slot.decay,
                stream: member.stream,
            })
        });
        optimizer::update(&self.tables[call as usize], &self.rule, &items.collect::<Vec<_>>(), state)
    }

    /// The f32 master weight of the group's slot `number`.
    pub(crate) fn master(&self, number: usize) -> &Tensor {
        &self.members[number].master
    }

    /// The tensors that are kept for the group's slot `number`, with their names: the master, if it is not
    /// the weight, then each state, followed by its maxima, if it has any.
    pub(crate) fn arrays(&self, number: usize) -> impl Iterator<Item = (StateArray, &Tensor)> {
        let member = &self.members[number];
        let name = &member.slot.name;
        let master = member.is_copied().then(|| (StateArray::master(name), &member.master));
        let state = |(state, tensor)| std::iter::once(tensor).chain(member.maxima.get(state));
        let tensors = member.states.iter().enumerate().flat_map(state);
        let arrays = StateArray::all(&self.rule, name, self.dtype);
        master.into_iter().chain(arrays.into_iter().zip(tensors))
    }
}

impl Member {
    fn new(
        device: &Device,
        rule: &UpdateRule,
        options: &StateOptions,
        index: usize,
        slot: &Slot,
    ) -> Result<Self> {
        let _scope = device.module(&slot.name);
        let zeros = |elements, operator: &'static str, dtype: DType| {
            Tensor::zeros(device, elements, dtype, Request::new(Category::OptimizerState, operator))
        };
        let shape = slot.weight.shape();
        let master = match slot.weight.dtype() {
            DType::F32 => slot.weight.clone(),
            _ => zeros(shape, "optimizer.master", DType::F32)?,
        };
        let (mut states, mut maxima) = (Vec::new(), Vec::new());
        for state in rule.states() {
            states.push(zeros(shape, state.name, options.dtype)?);
            if options.dtype == DType::U8 {
                let blocks = optimizer::blocks(slot.weight.elements());
                maxima.push(zeros([blocks].into(), "optimizer.maxima", DType::F32)?);
            }
        }
        let start = options.firsts.get(index).copied().unwrap_or(0);
        let stream = Stream::new(options.seed, &slot.name, start);
        Ok(Member { index, slot: slot.clone(), master, states, maxima, stream })
    }

    /// Returns whether the weight is a rounded copy of its master.
    fn is_copied(&self) -> bool {
        !self.master.shares_storage(&self.slot.weight)
    }
}
