//! The members of a group with their state, on the device or in a host pool.

use std::ops::Range;

use device::{DType, Device};
use tensor::ops::optimizer::UpdateRule;
use tensor::ops::{StepState, Table, cast, weight_average};
use tensor::{Result, Tensor};

use crate::average::{self, ComputeValues};
use crate::member::{Member, StateOptions};
use crate::offload::{Extent, Offload, Span, WithAverages};
use crate::slot::Slot;
use crate::state_array::StateArray;

/// Members of a group with their state, divided into the calls that update them.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Rule that names the states.
    rule: UpdateRule,
    /// Type of the states.
    dtype: DType,
    members: Vec<Member>,
    /// Members of each call, in order.
    calls: Vec<Range<usize>>,
    /// Address tables of weights and averages, one for each call; empty without averages, and with offloaded
    /// state, whose pieces have their own tables.
    average_tables: Vec<Table>,
    /// State in a host pool, from which each update copies it to the device and back.
    offload: Option<Offload>,
}

impl Kept {
    /// Allocates the state of the slots `indices`, in that order, on the device or in the host pool `host`.
    pub(crate) fn new(
        (device, host): (&Device, Option<&Device>),
        slots: &[Slot],
        (rule, states): (&UpdateRule, &StateOptions),
        indices: &[usize],
    ) -> Result<Self> {
        let chosen = indices.iter().filter_map(|index| Some((*index, slots.get(*index)?)));
        let home = host.unwrap_or(device);
        let members = chosen.map(|(index, slot)| Member::new(home, rule, states, index, slot));
        let members = members.collect::<Result<Vec<_>>>()?;
        let calls = Vec::new();
        let average_tables = Vec::new();
        Ok(Kept { rule: *rule, dtype: states.dtype, members, calls, average_tables, offload: None })
    }

    /// Divides the members into calls. Allocates the tables of averages, or the buffers of offloaded
    /// state and for each of its pieces tables for `launches` launches.
    pub(crate) fn in_calls(
        self,
        (device, host): (&Device, Option<&Device>),
        calls: Vec<Range<usize>>,
        launches: usize,
    ) -> Result<Self> {
        let offload = |host| Offload::new((device, host), &self.members, &calls, (self.dtype, launches));
        let offload = host.map(offload).transpose()?;
        let has_tables = offload.is_none() && self.has_averages();
        let tables = calls.iter().filter(|_| has_tables).map(|call| Table::of_averages(device, call.len()));
        let average_tables = tables.collect::<Result<_>>()?;
        Ok(Kept { calls, average_tables, offload, ..self })
    }

    /// All members, in order.
    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Members of a call.
    pub(crate) fn of_call(&self, call: usize) -> &[Member] {
        &self.members[self.calls[call].clone()]
    }

    /// The state in the host pool; `None` if it is on the device.
    pub(crate) fn offload(&self) -> Option<&Offload> {
        self.offload.as_ref()
    }

    /// Returns the indices of the slots, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> {
        self.members.iter().map(|member| member.index)
    }

    /// Calls `fill(slot, first, tensor)` to fill the master weights that are separate from their weights,
    /// possibly in several parts. `slot` is the index of the slot, `first` the index of the part's first
    /// element, and `tensor` the part on the device.
    pub(crate) fn fill_masters<E: From<tensor::TensorError>>(
        &self,
        fill: &mut impl FnMut(usize, usize, &Tensor) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let Some(offload) = &self.offload else {
            let mut copied = self.members.iter().filter(|member| member.is_copied());
            return copied.try_for_each(|member| fill(member.index, 0, &member.master));
        };
        for call in 0..self.calls.len() {
            offload.pass(call, [Extent::Nothing, Extent::Masters], |piece| {
                let mut masters = piece.spans().iter().filter_map(|span| Some((span, span.copied()?)));
                masters.try_for_each(|(span, master)| fill(span.index, span.range.start, master))
            })?;
        }
        Ok(())
    }

    /// Rounds each separate master weight into its weight.
    pub(crate) fn round_masters(&self) -> Result<()> {
        let Some(offload) = &self.offload else {
            let mut copied = self.members.iter().filter(|member| member.is_copied());
            return copied.try_for_each(|member| cast::into(&member.master, &member.slot.weight));
        };
        for call in 0..self.calls.len() {
            offload.pass(call, [Extent::Masters, Extent::Weights], |piece| {
                let mut masters = piece.spans().iter().filter_map(|span| Some((span, span.copied()?)));
                masters.try_for_each(|(span, master)| cast::into(master, &span.weight))
            })?;
        }
        Ok(())
    }

    fn has_averages(&self) -> bool {
        self.members.iter().any(|member| member.average.is_some())
    }

    /// Returns the directions in which an update copies offloaded averages: none in a step that keeps the
    /// averages.
    pub(crate) fn moved_averages(&self, state: &StepState) -> WithAverages {
        let moves = state.average_fraction() != 0.0 || state.tensor().device().is_meta();
        if moves && self.has_averages() { WithAverages::BOTH_WAYS } else { WithAverages::NONE }
    }

    /// Moves the averages of a call's members towards their weights, if they are on the device.
    pub(crate) fn update_averages(&self, call: usize, state: &StepState) -> Result<()> {
        let Some(table) = self.average_tables.get(call) else { return Ok(()) };
        let pairs: Vec<_> = self.of_call(call).iter().filter_map(Member::averaged).collect();
        weight_average::update(table, &pairs, state)
    }

    /// Copies the master weights to their averages.
    pub(crate) fn begin_averages(&self) -> Result<()> {
        let Some(offload) = self.offload.as_ref().filter(|_| self.has_averages()) else {
            return self.members.iter().filter_map(Member::averaged).try_for_each(average::begin);
        };
        for call in 0..self.calls.len() {
            let extents = [Extent::Values, Extent::Nothing];
            offload.pass_with(call, extents, WithAverages::WRITTEN, |piece| {
                piece.spans().iter().filter_map(Span::averaged).try_for_each(average::begin)
            })?;
        }
        Ok(())
    }

    /// Makes passes compute with the weights or with their averages, between updates.
    pub(crate) fn compute_with(&self, values: ComputeValues) -> Result<()> {
        let Some(offload) = self.offload.as_ref().filter(|_| self.has_averages()) else {
            let mut pairs =
                self.members.iter().filter_map(|member| Some((member.averaged()?, member.copy())));
            return pairs.try_for_each(|(pair, copy)| average::compute_with(values, pair, copy));
        };
        for call in 0..self.calls.len() {
            let extents = [Extent::Values, Extent::Written];
            offload.pass_with(call, extents, WithAverages::BOTH_WAYS, |piece| {
                let mut pairs = piece.spans().iter().filter_map(|span| Some((span.averaged()?, span.copy())));
                pairs.try_for_each(|(pair, copy)| average::compute_with(values, pair, copy))
            })?;
        }
        Ok(())
    }

    /// Returns the f32 master weight of member `number`, on the device or in the host pool.
    pub(crate) fn master(&self, number: usize) -> &Tensor {
        &self.members[number].master
    }

    /// Returns the tensors kept for member `number`, with their names: the master, if separate from the
    /// weight, then each state, followed by its block maxima if it has 8 bits, then the master's average.
    pub(crate) fn arrays(&self, number: usize) -> impl Iterator<Item = (StateArray, &Tensor)> {
        let member = &self.members[number];
        let name = &member.slot.name;
        let master = member.is_copied().then(|| (StateArray::master(name), &member.master));
        let state = |(state, tensor)| std::iter::once(tensor).chain(member.maxima.get(state));
        let tensors = member.states.iter().enumerate().flat_map(state);
        let arrays = StateArray::all(&self.rule, name, self.dtype);
        let average = member.average.as_ref().map(|average| (StateArray::average(name), average));
        master.into_iter().chain(arrays.into_iter().zip(tensors)).chain(average)
    }
}
