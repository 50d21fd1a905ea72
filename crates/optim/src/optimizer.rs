//! Updates of a list of parameters, group by group.

use device::Device;
use tensor::ops::StepState;
use tensor::ops::optimizer::UpdateRule;
use tensor::{Result, Tensor, TensorError};

use crate::group::{Call, Group, GroupOptions};
use crate::slot::Slot;
use crate::state_array::NamedState;

/// Updates the weights of parameters, one group after another.
#[derive(Debug)]
pub struct Optimizer {
    slots: Vec<Slot>,
    groups: Vec<Group>,
    /// Group of each slot, and the slot's position in the group.
    members: Vec<(usize, usize)>,
}

impl Optimizer {
    /// Allocates zeroed state for every slot, and master weights for slots that are not f32. One rule updates
    /// all slots.
    pub fn new(device: &Device, slots: &[Slot], rule: UpdateRule) -> Result<Self> {
        Self::with_groups((device, None), slots, &[GroupOptions::all(rule, slots.len())], 0)
    }

    /// Allocates zeroed state group by group, on the device or in a host pool of it.
    /// [`Optimizer::update_first_slots`] will update the first `first` slots. Results depend on neither
    /// choice.
    ///
    /// # Errors
    /// Out of memory; a slot that is in no group, or in two.
    pub fn with_groups(
        devices: (&Device, Option<&Device>),
        slots: &[Slot],
        groups: &[GroupOptions],
        first: usize,
    ) -> Result<Self> {
        let groups = groups.iter().map(|options| Group::new(devices, slots, options, first));
        let groups = groups.collect::<Result<Vec<_>>>()?;
        let numbered = |(group, members): (usize, &Group)| {
            let slots = members.slots().enumerate().map(move |(number, slot)| (slot, (group, number)));
            slots.collect::<Vec<_>>()
        };
        let mut members: Vec<_> = groups.iter().enumerate().flat_map(numbered).collect();
        members.sort_unstable();
        if !members.iter().map(|(slot, _)| *slot).eq(0..slots.len()) {
            let expected = slots.len();
            return Err(TensorError::Count { operator: "optimizer.groups", actual: members.len(), expected });
        }
        let members = members.into_iter().map(|(_, member)| member).collect();
        Ok(Optimizer { slots: slots.to_vec(), groups, members })
    }

    /// Updates all slots from `gradients`, one per slot in order, with the learning rate, gradient factor and
    /// skip flag in `state`.
    pub fn step(&self, gradients: &[Tensor], state: &StepState) -> Result<()> {
        self.update_first_slots(gradients, state)?;
        self.update_other_slots(gradients, state)
    }

    /// Updates the first slots. [`Optimizer::update_other_slots`] must follow with the same arguments.
    pub fn update_first_slots(&self, gradients: &[Tensor], state: &StepState) -> Result<()> {
        for (index, group) in self.groups.iter().enumerate() {
            match index {
                0 => group.begin(state)?,
                _ if group.skips(Call::First) => continue,
                _ => group.replace_coefficients(state)?,
            }
            group.update(Call::First, gradients, state)?;
        }
        Ok(())
    }

    /// Updates the remaining slots, which completes the step.
    pub fn update_other_slots(&self, gradients: &[Tensor], state: &StepState) -> Result<()> {
        for group in &self.groups {
            // The coefficients of the only group are in `state` since the first call.
            if self.groups.len() > 1 {
                group.replace_coefficients(state)?;
            }
            group.update(Call::Rest, gradients, state)?;
        }
        Ok(())
    }

    /// Returns the parameters that this optimizer updates.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Calls `fill(slot, first, tensor)` to fill the master weights that are separate from their weights,
    /// possibly in several parts. `slot` is the index of the slot, `first` the index of the part's first
    /// element, and `tensor` the part on the device.
    ///
    /// # Errors
    /// Errors of `fill`; the driver's.
    pub fn fill_masters<E: From<TensorError>>(
        &self,
        mut fill: impl FnMut(usize, usize, &Tensor) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.groups.iter().try_for_each(|group| group.fill_masters(&mut fill))
    }

    /// Rounds each separate master weight into its weight.
    pub fn round_masters(&self) -> Result<()> {
        self.groups.iter().try_for_each(Group::round_masters)
    }

    /// Returns the f32 master weights in the order of the slots: the weight itself, or a separate tensor,
    /// which is in the host pool if there is one.
    pub fn masters(&self) -> impl Iterator<Item = &Tensor> {
        self.members.iter().map(|(group, number)| self.groups[*group].master(*number))
    }

    /// Returns all tensors that the optimizer keeps, slot by slot: the master, if separate from the weight,
    /// then the rule's states.
    pub fn named_state(&self) -> impl Iterator<Item = NamedState<'_>> {
        self.members.iter().enumerate().flat_map(|(slot, (group, number))| {
            let arrays = self.groups[*group].arrays(*number);
            arrays.map(move |(array, tensor)| NamedState { array, slot, tensor })
        })
    }
}
