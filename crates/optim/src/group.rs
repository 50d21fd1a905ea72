//! Groups of parameters, each updated by one rule.

use std::ops::Range;

use device::{DType, Device};
use tensor::ops::optimizer::{self, UpdateRule};
use tensor::ops::{StepState, Table, cast};
use tensor::{Result, Tensor};

use crate::member::{Member, StateOptions};
use crate::offload::{Extent, Offload, StatePiece};
use crate::slot::Slot;
use crate::state_array::StateArray;

/// Options of a group of parameters, from which its state is allocated.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Rule by which the group is updated.
    pub rule: UpdateRule,
    /// Factor of the learning rate for this group.
    pub rate_factor: f32,
    /// Type, rounding and offsets of the rule's states.
    pub states: StateOptions,
    /// Indices of the group's parameters among all slots, in increasing order.
    pub slots: Vec<usize>,
}

impl GroupOptions {
    /// Returns one group of all `count` slots, with f32 states.
    pub fn all(rule: UpdateRule, count: usize) -> Self {
        let states = StateOptions::default();
        GroupOptions { rule, rate_factor: 1.0, states, slots: (0..count).collect() }
    }
}

/// The two calls that together make an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Updates the group's first slots.
    First,
    /// Updates all other slots.
    Rest,
}

/// Parameters with the rule that updates them, their state, and the tables of the rule's launches.
#[derive(Debug)]
pub(crate) struct Group {
    rule: UpdateRule,
    rate_factor: f32,
    /// Type of the rule's states.
    dtype: DType,
    members: Vec<Member>,
    /// Number of members that the first call updates.
    first: usize,
    home: Home,
}

/// Memory that holds a group's state.
#[derive(Debug)]
enum Home {
    /// The device. One table has the addresses of the members of the first call, the other those of the
    /// second.
    Device([Table; 2]),
    /// A host pool, from which each update copies the state to the device and back.
    Host(Offload),
}

/// Both calls of an update, in order.
const CALLS: [Call; 2] = [Call::First, Call::Rest];

impl Group {
    /// Allocates the state of a group, slot by slot, on the device or in the host pool `host`. Then allocates
    /// the tables of its launches, and with a host pool the buffers on the device. The first call updates
    /// slots with an index below `first`.
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

    /// Counts an update and computes the coefficients for the group's slots.
    pub(crate) fn begin(&self, state: &StepState) -> Result<()> {
        state.with_rate_factor(self.rate_factor, || optimizer::begin(&self.rule, state))
    }

    /// Replaces another group's coefficients in `state` by the coefficients of this group.
    pub(crate) fn replace_coefficients(&self, state: &StepState) -> Result<()> {
        state.with_rate_factor(self.rate_factor, || optimizer::change_rule(&self.rule, state))
    }

    /// Returns the indices of the group's slots, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> {
        self.members.iter().map(|member| member.index)
    }

    /// Returns whether a call updates no slot of this group.
    pub(crate) fn skips(&self, call: Call) -> bool {
        self.range(call).is_empty()
    }

    fn range(&self, call: Call) -> Range<usize> {
        match call {
            Call::First => 0..self.first,
            Call::Rest => self.first..self.members.len(),
        }
    }

    /// Updates the slots of a call in one launch, or in one launch per piece of offloaded state. `gradients`
    /// has one tensor for each slot of all groups.
    pub(crate) fn update(&self, call: Call, gradients: &[Tensor], state: &StepState) -> Result<()> {
        let tables = match &self.home {
            Home::Device(tables) => tables,
            Home::Host(offload) => {
                let update = |piece: &StatePiece| self.update_piece(piece, gradients, state);
                return offload.pass(call as usize, [Extent::State, Extent::All], update);
            }
        };
        let members = &self.members[self.range(call)];
        let items = members.iter().filter_map(|member| Some(member.item(gradients.get(member.index)?)));
        optimizer::update(&tables[call as usize], &self.rule, &items.collect::<Vec<_>>(), state)
    }

    fn update_piece(&self, piece: &StatePiece, gradients: &[Tensor], state: &StepState) -> Result<()> {
        let spans = piece.spans().iter().filter_map(|span| Some((span, gradients.get(span.index)?)));
        let parts = spans.map(|(span, gradient)| gradient.view(span.range.start, [span.range.len()]));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let items = piece.spans().iter().zip(&parts).map(|(span, part)| span.item(part));
        optimizer::update(&piece.table, &self.rule, &items.collect::<Vec<_>>(), state)
    }

    /// Calls `fill(slot, first, tensor)` to fill the master weights that are separate from their weights,
    /// possibly in several parts. `slot` is the index of the slot, `first` the index of the part's first
    /// element, and `tensor` the part on the device.
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

    /// Rounds each separate master weight into its weight.
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

    /// Returns the f32 master weight of member `number`, on the device or in the host pool.
    pub(crate) fn master(&self, number: usize) -> &Tensor {
        &self.members[number].master
    }

    /// Returns the tensors kept for member `number`, with their names: the master, if separate from the
    /// weight, then each state, followed by its block maxima if it has 8 bits.
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
