//! Preference pairs of a micro-batch: what passes compute from them.

use std::sync::Arc;

use autograd::PreferencePass;
use config::RunConfig;
use data::{ArrayShape, HostArray, HostData, MicroBatch};
use device::{DType, Device};
use tensor::ops::preference::Objective;

use crate::build;
use crate::error::Result;
use crate::feed::arrays::upload;

/// Uploads preference pairs for passes, which compute their loss or only ln p of each answer.
#[derive(Clone, Debug)]
pub(crate) struct PairWork {
    /// The loss function; `None` to compute only ln p of each answer.
    objective: Option<Objective>,
    /// ln p of all answers under the reference model, two for each pair; `None` before they are computed,
    /// when losses are meaningless.
    reference: Option<Arc<[f32]>>,
}

impl PairWork {
    /// Returns the work of passes that train on pairs or evaluate their loss; `None` for other data.
    pub(crate) fn from_config(config: &RunConfig, reference: Option<&Arc<[f32]>>) -> Option<Self> {
        let reference = reference.cloned();
        build::objective(config).map(|objective| PairWork { objective: Some(objective), reference })
    }

    /// The work of passes that compute only ln p of each answer.
    pub(crate) const SCORES: Self = PairWork { objective: None, reference: None };

    fn has_reference(&self) -> bool {
        self.objective.is_some_and(Objective::has_reference)
    }

    /// Copies the arrays of a micro-batch of pairs to the device; `None` for other data.
    pub(crate) fn upload(&self, device: &Device, batch: &MicroBatch) -> Result<Option<PreferencePass>> {
        let Some(pairs) = &batch.pairs else { return Ok(None) };
        let score = |index: usize| {
            let scores = self.reference.as_deref().unwrap_or_default();
            scores.get(index).copied().unwrap_or_default()
        };
        let scores = || {
            let indices = pairs.numbers.iter().map(|number| 2 * *number as usize);
            let values: Vec<f32> = indices.flat_map(|index| [score(index), score(index + 1)]).collect();
            HostArray { shape: vec![values.len()], data: HostData::F32(Arc::new(values)) }
        };
        let scores = || match pairs.answers.data {
            HostData::Shape(_) => ArrayShape::of_f32(pairs.answers.shape.clone()).without_values(),
            _ => scores(),
        };
        let answers = upload(device, &pairs.answers, DType::F32)?;
        let reference = self.has_reference().then(|| upload(device, &scores(), DType::F32));
        let reference = reference.transpose()?;
        Ok(Some(PreferencePass { answers, reference, objective: self.objective }))
    }
}
