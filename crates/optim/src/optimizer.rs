//! Updates of a list of parameters, group by group.

use device::Device;
use tensor::ops::StepState;
use tensor::ops::optimizer::UpdateRule;
use tensor::{Result, Tensor, TensorError};

use crate::average::ComputeValues;
use crate::group::{Call, Group, GroupOptions};
use crate::kept::Kept;
use crate::matrix_group::{MatrixGroup, MatrixGroupOptions};
use crate::slot::Slot;
use crate::state_array::NamedState;

/// Updates the weights of parameters, one group after another.
#[derive(Debug)]
pub struct Optimizer {
    slots: Vec<Slot>,
    groups: Vec<Group>,
    matrices: Vec<MatrixGroup>,
    /// Group of each slot, matrix groups after the others, and the slot's position in the group.
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
        Self::with_matrices(devices, slots, (groups, &[]), first)
    }

    /// Does the same as [`Optimizer::with_groups`], also for groups of `matrices`, which
    /// [`Optimizer::update_matrices`] updates.
    ///
    /// # Errors
    /// Errors of [`Optimizer::with_groups`].
    pub fn with_matrices(
        devices: (&Device, Option<&Device>),
        slots: &[Slot],
        (groups, matrices): (&[GroupOptions], &[MatrixGroupOptions]),
        first: usize,
    ) -> Result<Self> {
        let groups = groups.iter().map(|options| Group::new(devices, slots, options, first));
        let groups = groups.collect::<Result<Vec<_>>>()?;
        let matrices = matrices.iter().map(|options| MatrixGroup::new(devices, slots, options));
        let matrices = matrices.collect::<Result<Vec<_>>>()?;
        let numbered = |(group, kept): (usize, &Kept)| {
            let slots = kept.slots().enumerate().map(move |(number, slot)| (slot, (group, number)));
            slots.collect::<Vec<_>>()
        };
        let mut members: Vec<_> = all_kept(&groups, &matrices).enumerate().flat_map(numbered).collect();
        members.sort_unstable();
        if !members.iter().map(|(slot, _)| *slot).eq(0..slots.len()) {
            let expected = slots.len();
            return Err(TensorError::Count { operator: "optimizer.groups", actual: members.len(), expected });
        }
        let members = members.into_iter().map(|(_, member)| member).collect();
        Ok(Optimizer { slots: slots.to_vec(), groups, matrices, members })
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

    /// Returns whether a group of matrices has members.
    pub fn has_matrices(&self) -> bool {
        !self.matrices.is_empty()
    }

    /// Updates the groups of matrices, after [`Optimizer::update_first_slots`] with the same arguments.
    /// `orthogonalise(group, wave, directions)` replaces the directions of a wave of a group, one bf16 tensor
    /// for each slot of the wave. All ranks that share matrices make the same calls.
    ///
    /// # Errors
    /// Errors of `orthogonalise`; the driver's.
    pub fn update_matrices<E: From<TensorError>>(
        &self,
        gradients: &[Tensor],
        state: &StepState,
        mut orthogonalise: impl FnMut(usize, usize, &[Tensor]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.matrices.iter().enumerate().try_for_each(|(number, group)| {
            group.update(gradients, state, |wave, directions| orthogonalise(number, wave, directions))
        })
    }

    /// The members of all groups, matrix groups after the others.
    fn kept(&self) -> impl Iterator<Item = &Kept> {
        all_kept(&self.groups, &self.matrices)
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
        self.kept().try_for_each(|kept| kept.fill_masters(&mut fill))
    }

    /// Rounds each separate master weight into its weight.
    pub fn round_masters(&self) -> Result<()> {
        self.kept().try_for_each(Kept::round_masters)
    }

    /// Copies the master weights to their averages, if averages are kept.
    pub fn begin_averages(&self) -> Result<()> {
        self.kept().try_for_each(Kept::begin_averages)
    }

    /// Makes passes between two updates compute with the averages of the weights, or with the masters again.
    /// The calls must alternate: an f32 weight and its average exchange their values. Nothing is allocated.
    pub fn compute_with(&self, values: ComputeValues) -> Result<()> {
        self.kept().try_for_each(|kept| kept.compute_with(values))
    }

    /// Returns the f32 master weights in the order of the slots: the weight itself, or a separate tensor,
    /// which is in the host pool if there is one.
    pub fn masters(&self) -> impl Iterator<Item = &Tensor> {
        let kept: Vec<_> = self.kept().collect();
        self.members.iter().map(move |(group, number)| kept[*group].master(*number))
    }

    /// Returns all tensors that the optimizer keeps, slot by slot: the master, if separate from the weight,
    /// then the rule's states.
    pub fn named_state(&self) -> impl Iterator<Item = NamedState<'_>> {
        let kept: Vec<_> = self.kept().collect();
        self.members.iter().enumerate().flat_map(move |(slot, (group, number))| {
            let arrays = kept[*group].arrays(*number);
            arrays.map(move |(array, tensor)| NamedState { array, slot, tensor })
        })
    }
}

/// Returns the members of all groups, matrix groups after the others.
fn all_kept<'a>(groups: &'a [Group], matrices: &'a [MatrixGroup]) -> impl Iterator<Item = &'a Kept> {
    groups.iter().map(Group::kept).chain(matrices.iter().map(MatrixGroup::kept))
}
