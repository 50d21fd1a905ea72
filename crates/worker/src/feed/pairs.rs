//! The pairs of answers of a walk: what its passes do with them.

use autograd::PreferencePass;
use config::RunConfig;
use data::{ArrayShape, HostArray, HostData, MicroBatch};
use device::{DType, Device};
use tensor::ops::preference::Objective;

use crate::build;
use crate::error::Result;
use crate::feed::arrays::{allocate, upload};

/// The work of passes on pairs of answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairWork<'a> {
    /// The loss of pairs; `None`: passes compute ln p of each answer.
    objective: Option<Objective>,
    /// The scores of the answers of all pairs by the reference model, two for each pair; `None` before they
    /// are computed, when no pass has a meaning.
    reference: Option<&'a [f32]>,
}

impl<'a> PairWork<'a> {
    /// Passes that learn from pairs, or measure their loss; `None` for other data.
    pub(crate) fn of(config: &RunConfig, reference: Option<&'a [f32]>) -> Option<Self> {
        build::objective(config).map(|objective| PairWork { objective: Some(objective), reference })
    }

    /// Passes that compute ln p of each answer.
    pub(crate) const SCORES: Self = PairWork { objective: None, reference: None };

    fn has_reference(self) -> bool {
        self.objective.is_some_and(Objective::has_reference)
    }

    /// Allocates the arrays of a pass of `sequences` sequences on Meta.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn allocate(self, device: &Device, sequences: usize) -> Result<PreferencePass> {
        let answers = allocate(device, &ArrayShape::of_u32([sequences]), DType::F32)?;
        let reference =
            self.has_reference().then(|| allocate(device, &ArrayShape::of_f32([sequences]), DType::F32));
        Ok(PreferencePass { answers, reference: reference.transpose()?, objective: self.objective })
    }

    /// Copies the arrays of a micro-batch of pairs to the device; `None` for other data.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn upload(self, device: &Device, batch: &MicroBatch) -> Result<Option<PreferencePass>> {
        let Some(pairs) = &batch.pairs else { return Ok(None) };
        let score = |index: usize| {
            let scores = self.reference.unwrap_or_default();
            scores.get(index).copied().unwrap_or_default()
        };
        let scores = || {
            let indices = pairs.numbers.iter().map(|number| 2 * *number as usize);
            let values: Vec<f32> = indices.flat_map(|index| [score(index), score(index + 1)]).collect();
            HostArray { shape: vec![values.len()], data: HostData::F32(values) }
        };
        let answers = upload(device, &pairs.answers, DType::F32)?;
        let reference = self.has_reference().then(|| upload(device, &scores(), DType::F32));
        let reference = reference.transpose()?;
        Ok(Some(PreferencePass { answers, reference, objective: self.objective }))
    }
}
