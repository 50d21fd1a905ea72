//! The norm of all gradients, and the factor that clips them, without leaving the device.

use device::{Category, DType, Device, Request};
use tensor::ops::{self, StepState, Table};
use tensor::{Result, Tensor};

use crate::slot::Slot;

/// The 2-norm over all parameters: sums of squares over fixed chunks counted from each parameter's start,
/// added in (parameter, chunk) order, so that it does not depend on who owns which.
///
/// A rank that has all gradients calls [`GradientNorm::measure`]. A rank that has parts of them calls
/// [`GradientNorm::measure_parts`], brings in the sums of the other ranks, and calls
/// [`GradientNorm::finish`], with the same bits.
#[derive(Debug)]
pub struct GradientNorm {
    /// One sum for each chunk of every parameter.
    sums: Tensor,
    /// Index of the first sum of each part; `None` where the gradients are whole.
    first_sums: Option<Vec<usize>>,
    /// Addresses of the gradients.
    table: Table,
    /// Receives the norm and the factor.
    state: StepState,
    max_norm: f32,
}

impl GradientNorm {
    /// Makes room for the parameters' chunk sums, and the state of the steps. `max_norm` 0 measures and does
    /// not clip. Errors: out of memory.
    pub fn new(device: &Device, slots: &[Slot], max_norm: f32) -> Result<Self> {
        let sums = slots.iter().map(|slot| ops::norm::chunks(slot.weight.elements())).sum();
        Self::with(device, sums, None, Table::of_gradients(device, slots.len())?, max_norm)
    }

    /// The same for parts of parameters with `sizes` elements. A part is given by the parameter's index and
    /// the part's first element there, a multiple of [`ops::norm::CHUNK`]. Errors: out of memory.
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
        Ok(GradientNorm { sums, first_sums, table, state, max_norm })
    }

    /// Measures `gradients`, one tensor for each parameter in the order of the slots.
    pub fn measure(&self, gradients: &[Tensor]) -> Result<()> {
        ops::norm::measure(&self.table, gradients, &self.sums, self.max_norm, &self.state)
    }

    /// Returns the chunk sums, those of `gradients`, one tensor for each part, in their places, and 0 in all
    /// others.
    pub fn measure_parts(&self, gradients: &[Tensor]) -> Result<&Tensor> {
        let first_sums = self.first_sums.as_deref().unwrap_or_default();
        ops::norm::part_sums(&self.table, gradients, first_sums, &self.sums)?;
        Ok(&self.sums)
    }

    /// Computes norm and factor, once all sums are in their places.
    pub fn finish(&self) -> Result<()> {
        ops::norm::finish(&self.sums, self.max_norm, &self.state)
    }

    /// The state that holds norm and factor, for [`Optimizer::step`](crate::Optimizer::step).
    pub fn state(&self) -> &StepState {
        &self.state
    }
}
