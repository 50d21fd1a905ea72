//! Injects a fault for tests: inverts one bit in an operator's result.

use device::Device;
use system::fail_point::{self, Flip};
use telemetry::hashes::HashedArray;
use tensor::Tensor;

use super::report;
use super::runs::VerificationRun;
use crate::observers::tensor_hashes::Seen;

/// The bit that this rank inverts.
#[derive(Debug)]
pub(super) struct PlantedFlip(Flip);

impl PlantedFlip {
    /// Returns the bit that the environment specifies, if it is for this rank.
    pub(super) fn of_process(device: &Device) -> Option<Self> {
        let flip = fail_point::flip().filter(|_| !device.is_meta())?;
        (flip.rank == device.rank()).then_some(PlantedFlip(flip))
    }

    /// Inverts the bit if `tensor` is the specified result of the specified run and step; `step` counts from
    /// 0.
    pub(super) fn apply(
        &self,
        run: VerificationRun,
        step: u64,
        result: usize,
        (array, tensor): (&HashedArray, &Tensor),
    ) -> Seen {
        let Flip { step: planted, runs, result: of, bit, .. } = &self.0;
        if (step + 1, result) != (*planted, *of) || (runs != run.name() && runs != "all") {
            return Ok(());
        }
        let mut bytes = vec![0; tensor.bytes()];
        tensor.read_bytes(&mut bytes)?;
        let bits = (8 * bytes.len()).max(1);
        if let Some(byte) = bytes.get_mut(bit % bits / 8) {
            *byte ^= 1 << (bit % 8);
        }
        tensor.set_bytes(&bytes)?;
        tracing::warn!("planted in the {}: {}", run.name(), report::in_words(array));
        Ok(())
    }
}
