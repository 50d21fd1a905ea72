//! The norm of all gradients and the clipping factor, computed on the device.

use std::cell::Cell;

use device::{Category, DType, Device, Request};
use tensor::ops::norm::NormBounds;
use tensor::ops::{self, StepState, Table};
use tensor::{Result, Tensor};

use crate::slot::Slot;

/// Norms of groups of parameters.
#[derive(Debug)]
struct GroupNorms {
    /// Group of each chunk sum, u32.
    groups: Tensor,
    /// Norm of each group.
    norms: Tensor,
}

/// The 2-norm over the gradients of all parameters. Sums of squares over fixed chunks of each parameter are
/// added in (parameter, chunk) order, so the norm does not depend on which rank owns which shard.
///
/// A rank with all gradients calls [`GradientNorm::measure`]. A rank with shards of them calls
/// [`GradientNorm::measure_parts`], receives the chunk sums of the other ranks, and calls
/// [`GradientNorm::finish`]. Both give the same bits.
#[derive(Debug)]
pub struct GradientNorm {
    /// Sum of squares of each chunk of every parameter.
    sums: Tensor,
    /// Index of each shard's first chunk sum; `None` if the gradients are whole.
    first_sums: Option<Vec<usize>>,
    /// Device addresses of the gradients.
    table: Table,
    /// Norms of groups of parameters, if they are computed.
    groups: Option<GroupNorms>,
    /// Receives the norm and the clipping factor.
    state: StepState,
    max_norm: f32,
    /// Norm above which the following updates are skipped; 0: no limit.
    skip_above: Cell<f32>,
}

impl GradientNorm {
    /// Allocates the chunk sums of all parameters and the step state. With `max_norm` 0 the norm is measured
    /// but nothing is clipped.
    pub fn new(device: &Device, slots: &[Slot], max_norm: f32) -> Result<Self> {
        let sums = slots.iter().map(|slot| ops::norm::chunks(slot.weight.elements())).sum();
        Self::with(device, sums, None, Table::of_gradients(device, slots.len())?, max_norm)
    }

    /// Allocates the chunk sums and the step state for shards of parameters. A shard has `sizes` elements and
    /// is identified by the parameter's index and the index of its first element, a multiple of
    /// [`ops::norm::CHUNK`].
    pub fn of_parts(
        device: &Device,
        sizes: &[usize],
        parts: &[(usize, usize)],
        max_norm: f32,
    ) -> Result<Self> {
        let chunks = |sizes: &[usize]| sizes.iter().map(|size| ops::norm::chunks(*size)).sum::<usize>();
        let first_sum =
            |(parameter, first): &(usize, usize)| chunks(&sizes[..*parameter]) + first / ops::norm::CHUNK;
        let first_sums = parts.iter().map(first_sum).collect();
        Self::with(device, chunks(sizes), Some(first_sums), Table::of_parts(device, parts.len())?, max_norm)
    }

    fn with(
        device: &Device,
        sums: usize,
        first_sums: Option<Vec<usize>>,
        table: Table,
        max_norm: f32,
    ) -> Result<Self> {
        let request = Request::new(Category::OptimizerState, "gradient_norm");
        let sums = Tensor::zeros(device, [sums], DType::F32, request)?;
        let state = StepState::new(device)?;
        let skip_above = Cell::new(0.0);
        Ok(GradientNorm { sums, first_sums, table, groups: None, state, max_norm, skip_above })
    }

    /// Also computes the norms of groups of parameters. `parameters` has the number of elements and the group
    /// of each parameter, in the order of the chunk sums; groups are numbered from 0.
    ///
    /// # Errors
    /// The parameters have another number of chunk sums.
    pub fn with_groups(self, parameters: &[(usize, u32)]) -> Result<Self> {
        let device = self.sums.device();
        let request = || Request::new(Category::OptimizerState, "group_norms");
        let chunk_groups = |(elements, group): &(usize, u32)| vec![*group; ops::norm::chunks(*elements)];
        let chunk_groups: Vec<u32> = parameters.iter().flat_map(chunk_groups).collect();
        let count = parameters.iter().map(|(_, group)| *group as usize + 1).max().unwrap_or(0);
        let groups = Tensor::zeros(device, [chunk_groups.len()], DType::U32, request())?;
        groups.set(&chunk_groups)?;
        let norms = Tensor::zeros(device, [count], DType::F32, request())?;
        Ok(GradientNorm { groups: Some(GroupNorms { groups, norms }), ..self })
    }

    /// Returns the norms of the groups of [`GradientNorm::with_groups`] before clipping, f32, on the device.
    pub fn group_norms(&self) -> Option<&Tensor> {
        self.groups.as_ref().map(|groups| &groups.norms)
    }

    fn measure_groups(&self) -> Result<()> {
        let Some(GroupNorms { groups, norms }) = &self.groups else { return Ok(()) };
        ops::norm::group_norms(&self.sums, groups, norms, &self.state)
    }

    /// Computes norm and clipping factor of `gradients`, one tensor per parameter in the order of the slots.
    pub fn measure(&self, gradients: &[Tensor]) -> Result<()> {
        ops::norm::measure(&self.table, gradients, &self.sums, self.bounds(), &self.state)?;
        self.measure_groups()
    }

    /// Computes the chunk sums of `gradients`, one tensor per shard. Returns all sums; those of other ranks'
    /// shards are 0.
    pub fn measure_parts(&self, gradients: &[Tensor]) -> Result<&Tensor> {
        let first_sums = self.first_sums.as_deref().unwrap_or_default();
        ops::norm::part_sums(&self.table, gradients, first_sums, &self.sums)?;
        Ok(&self.sums)
    }

    /// Computes norm and clipping factor from the chunk sums of all parameters.
    pub fn finish(&self) -> Result<()> {
        ops::norm::finish(&self.sums, self.bounds(), &self.state)?;
        self.measure_groups()
    }

    /// Sets the norm above which updates are skipped, from the next measurement on.
    pub fn skip_above(&self, norm: f32) {
        self.skip_above.set(norm);
    }

    fn bounds(&self) -> NormBounds {
        NormBounds { clip: self.max_norm, skip: self.skip_above.get() }
    }

    /// Returns the step state with norm and clipping factor, for [`Optimizer::step`](crate::Optimizer::step).
    pub fn state(&self) -> &StepState {
        &self.state
    }
}
