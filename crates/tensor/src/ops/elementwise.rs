//! Launches of the kernels of `kernels/elementwise.cuh`.

use device::{Function, StreamKind};

use super::gpu;
use crate::{Result, Tensor};

/// Vectors per thread.
pub(super) const UNROLL: u32 = 4;
/// [`UNROLL`] as a compile-time constant of the kernels.
pub(super) const UNROLL_CONSTANT: (&str, u32) = ("UNROLL", UNROLL);
/// Constants with which the kernels are compiled.
pub(super) const CONSTANTS: &[(&str, u32)] = &[gpu::THREADS_CONSTANT, UNROLL_CONSTANT];

/// [`CONSTANTS`] of kernels that also measure largest magnitudes.
pub(super) const MEASURING_CONSTANTS: &[(&str, u32)] =
    &[gpu::THREADS_CONSTANT, UNROLL_CONSTANT, gpu::CELLS_CONSTANT];

/// Launch of one kernel over all elements of `write`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Each<'a> {
    /// The kernel, for the operands' element types.
    pub(super) kernel: Function,
    /// Operands, each with as many elements as the result or one.
    pub(super) read: &'a [&'a Tensor],
    /// The result, which may be one of the operands.
    pub(super) write: &'a Tensor,
    /// Whether the kernel also reads the result's memory.
    pub(super) updates: bool,
    /// A scalar argument, if the kernel takes one.
    pub(super) number: Option<f32>,
}

impl Each<'_> {
    /// Enqueues the kernel on the compute stream.
    pub(super) fn launch(self) -> Result<()> {
        self.launch_on(StreamKind::Compute)
    }

    /// Enqueues the kernel on `stream`.
    pub(super) fn launch_on(self, stream: StreamKind) -> Result<()> {
        let count = self.write.elements();
        if count == 0 {
            return Ok(());
        }
        let arrays: Vec<&Tensor> = self.read.iter().copied().filter(|x| x.elements() == count).collect();
        let vector = gpu::aligned(&arrays) && gpu::aligned(&[self.write]);
        let narrowest = arrays.iter().map(|x| x.dtype()).fold(self.write.dtype(), |narrowest, dtype| {
            if dtype.bytes() < narrowest.bytes() { dtype } else { narrowest }
        });
        let lanes = if vector { gpu::lanes(narrowest) } else { 1 };
        let blocks = (count / lanes).div_ceil((gpu::THREADS * UNROLL) as usize).max(1);
        let written = self.write.bytes() as u64 * if self.updates { 2 } else { 1 };
        let device = self.write.device();
        let mut launch = device.kernel(self.kernel).on(stream);
        for operand in self.read {
            launch = launch.read(*operand);
        }
        launch = launch.write(self.write);
        if let Some(number) = self.number {
            launch = launch.f32(number);
        }
        launch = launch.u64(count as u64).u32(u32::from(vector));
        launch = launch.cost(gpu::bytes(self.read) + written, count as u64);
        Ok(launch.launch([gpu::word(self.kernel.family().name, blocks)?, 1, 1], gpu::THREADS)?)
    }
}
