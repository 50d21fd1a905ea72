//! The members of a group with their state, on the device or in a host pool.

use std::ops::Range;

use device::{DType, Device};
use tensor::ops::cast;
use tensor::ops::optimizer::UpdateRule;
use tensor::{Result, Tensor};

use crate::member::{Member, StateOptions};
use crate::offload::{Extent, Offload};
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
        Ok(Kept { rule: *rule, dtype: states.dtype, members, calls: Vec::new(), offload: None })
    }

    /// Divides the members into calls. Allocates the buffers of offloaded state, and for each of its pieces
    /// tables for `launches` launches.
    pub(crate) fn in_calls(
        self,
        (device, host): (&Device, Option<&Device>),
        calls: Vec<Range<usize>>,
        launches: usize,
    ) -> Result<Self> {
        let offload = |host| Offload::new((device, host), &self.members, &calls, (self.dtype, launches));
        let offload = host.map(offload).transpose()?;
        Ok(Kept { calls, offload, ..self })
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
