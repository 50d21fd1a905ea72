//! Groups of parameters, each updated by one rule.

use std::ops::Range;

use device::{DType, Device};
use tensor::ops::optimizer::{self, UpdateRule};
use tensor::ops::{StepState, Table, cast};
use tensor::{Result, Tensor};

use crate::member::{Member, StateOptions};
use crate::offload::{Extent, Offload, Piece};
use crate::slot::Slot;
use crate::state_array::StateArray;

/// A group of parameters before its state is allocated.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The rule of the group's updates.
    pub rule: UpdateRule,
    /// Factor of the learning rate.
    pub rate_factor: f32,
    /// How the rule's states are kept.
    pub states: StateOptions,
    /// Indices of the group's slots, in increasing order.
    pub slots: Vec<usize>,
}

impl GroupOptions {
    /// Returns the group of `count` slots, which are all that there are, with states in f32.
    pub fn all(rule: UpdateRule, count: usize) -> Self {
        let states = StateOptions::default();
        GroupOptions { rule, rate_factor: 1.0, states, slots: (0..count).collect() }
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
    rate_factor: f32,
    /// The type of the rule's states.
    dtype: DType,
    members: Vec<Member>,
    /// Number of members that are updated in the first call.
    first: usize,
    home: Home,
}

/// The memory of a group's state.
#[derive(Debug)]
enum Home {
    /// The device, with the device addresses of the tensors of the first call's members, and of the others.
    Device([Table; 2]),
    /// A host pool.
    Host(Offload),
}

/// Both calls.
const CALLS: [Call; 2] = [Call::First, Call::Rest];

impl Group {
    /// Allocates the state of a group, slot by slot, on the device or in the host pool `host`; then the
    /// tables of its launches, and the buffers of state that is in a pool. The first call updates the slots
    /// whose index is below `first`.
    pub(crate) fn new(
        (device, host): (&Device, Option<&Device>),
        slots: &[Slot],
        options: &GroupOptions,
        first: usize,
    ) -> Result<Self> {
        let GroupOptions { rule, rate_factor, states, slots: indices } = options;
        let chosen = indices.iter().filter_map(|index| Some((*index, slots.get(*index)?)));
        let home = host.unwrap_or(device);
        let members = chosen.map(|(index, slot)| Member::new(home, rule, states, index, slot));
        let members = members.collect::<Result<Vec<_>>>()?;
        let first = members.partition_point(|member| member.index < first);
        let table = |slots| match states.dtype {
            DType::U8 => Table::of_quantised(device, slots),
            _ => Table::of_parameters(device, slots),
        };
        let home = match host {
            None => Home::Device([table(first)?, table(members.len() - first)?]),
            Some(host) => Home::Host(Offload::new((device, host), &members, first, states.dtype)?),
        };
        Ok(Group { rule: *rule, rate_factor: *rate_factor, dtype: states.dtype, members, first, home })
    }

    /// Counts an update and computes the coefficients of the group's slots.
    pub(crate) fn begin(&self, state: &StepState) -> Result<()> {
        state.with_rate_factor(self.rate_factor, || optimizer::begin(&self.rule, state))
    }

    /// Replaces the coefficients of another group by those of this one.
    pub(crate) fn take_turn(&self, state: &StepState) -> Result<()> {
        state.with_rate_factor(self.rate_factor, || optimizer::change_rule(&self.rule, state))
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

    /// Updates the slots of a call in one launch, or in one for each piece of offloaded state. `gradients`
    /// has one tensor for each slot of all groups.
    pub(crate) fn update(&self, call: Call, gradients: &[Tensor], state: &StepState) -> Result<()> {
        let tables = match &self.home {
            Home::Device(tables) => tables,
            Home::Host(offload) => {
                let update = |piece: &Piece| self.update_piece(piece, gradients, state);
                return offload.pass(call as usize, [Extent::State, Extent::All], update);
            }
        };
        let members = &self.members[self.range(call)];
        let items = members.iter().filter_map(|member| Some(member.item(gradients.get(member.index)?)));
        optimizer::update(&tables[call as usize], &self.rule, &items.collect::<Vec<_>>(), state)
    }

    fn update_piece(&self, piece: &Piece, gradients: &[Tensor], state: &StepState) -> Result<()> {
        let spans = piece.spans().iter().filter_map(|span| Some((span, gradients.get(span.index)?)));
        let parts = spans.map(|(span, gradient)| gradient.view(span.range.start, [span.range.len()]));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let items = piece.spans().iter().zip(&parts).map(|(span, part)| span.item(part));
        optimizer::update(&piece.table, &self.rule, &items.collect::<Vec<_>>(), state)
    }

    /// Calls `fill` with each master weight that is not the weight itself, or with parts of it: the index of
    /// its slot, the index of the first element, and a tensor on the device to write.
    pub(crate) fn fill_masters<E: From<tensor::TensorError>>(
        &self,
        fill: &mut impl FnMut(usize, usize, &Tensor) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let Home::Host(offload) = &self.home else {
            let mut copied = self.members.iter().filter(|member| member.is_copied());
            return copied.try_for_each(|member| fill(member.index, 0, &member.master));
        };
        for call in CALLS {
            offload.pass(call as usize, [Extent::Nothing, Extent::Masters], |piece| {
                let mut masters = piece.spans().iter().filter_map(|span| Some((span, span.copied()?)));
                masters.try_for_each(|(span, master)| fill(span.index, span.range.start, master))
            })?;
        }
        Ok(())
    }

    /// Rounds the master weights into the weights that are copies of them.
    pub(crate) fn round_masters(&self) -> Result<()> {
        let Home::Host(offload) = &self.home else {
            let mut copied = self.members.iter().filter(|member| member.is_copied());
            return copied.try_for_each(|member| cast::into(&member.master, &member.slot.weight));
        };
        for call in CALLS {
            offload.pass(call as usize, [Extent::Masters, Extent::Weights], |piece| {
                let mut masters = piece.spans().iter().filter_map(|span| Some((span, span.copied()?)));
                masters.try_for_each(|(span, master)| cast::into(master, &span.weight))
            })?;
        }
        Ok(())
    }

    /// The f32 master weight of the group's slot `number`, on the device or in the host pool.
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
