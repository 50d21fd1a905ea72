//! Averages of master weights over updates.

use device::{Category, DType, Device, Request};
use tensor::ops::cast;
use tensor::ops::weight_average::{self, Averaged};
use tensor::{Result, Tensor};

use crate::slot::Slot;

/// Schedule and rate of an average's movement towards the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AverageSchedule {
    /// Fraction of an average that an update keeps.
    pub decay: f64,
    /// Steps between updates of the average.
    pub every: u64,
    /// Number of steps after which averaging begins. Until then averages equal the weights.
    pub start: u64,
}

impl AverageSchedule {
    /// Returns how far averages move towards the weights in step `step`, counted from 0, as a fraction of the
    /// distance. It is 1 in the first `start` steps, and 0 in steps that keep the averages.
    #[must_use]
    pub fn fraction(&self, step: u64) -> f32 {
        let done = step + 1;
        if done <= self.start {
            return 1.0;
        }
        match (done - self.start).is_multiple_of(self.every.max(1)) {
            true => (1.0 - self.decay) as f32,
            false => 0.0,
        }
    }
}

/// Values of the weights that passes compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeValues {
    /// The master weights, as in training.
    Masters,
    /// The averages of the master weights.
    Averages,
}

/// Allocates the average of a slot's master weights on `device`, which may be a host pool.
pub(crate) fn allocate(device: &Device, slot: &Slot) -> Result<Tensor> {
    let request = Request::new(Category::OptimizerState, "optimizer.average");
    Tensor::zeros(device, slot.weight.shape(), DType::F32, request)
}

/// Copies a master weight to its average.
pub(crate) fn begin(pair: Averaged<'_>) -> Result<()> {
    pair.average.copy_from(pair.weight)
}

/// Makes passes compute with the weights or with their averages.
pub(crate) fn compute_with(values: ComputeValues, pair: Averaged<'_>, copy: Option<&Tensor>) -> Result<()> {
    match (copy, values) {
        (None, _) => weight_average::exchange(pair.weight, pair.average),
        (Some(copy), ComputeValues::Averages) => cast::into(pair.average, copy),
        (Some(copy), ComputeValues::Masters) => cast::into(pair.weight, copy),
    }
}

#[cfg(test)]
mod tests {
    use super::AverageSchedule;

    #[test]
    fn averages_are_the_weights_until_the_start_and_then_move_every_few_steps() {
        let fractions = |every, start| {
            let schedule = AverageSchedule { decay: 0.75, every, start };
            (0..6).map(|step| schedule.fraction(step)).collect::<Vec<_>>()
        };
        assert_eq!(fractions(1, 0), [0.25; 6]);
        assert_eq!(fractions(2, 0), [0.0, 0.25, 0.0, 0.25, 0.0, 0.25]);
        assert_eq!(fractions(3, 2), [1.0, 1.0, 0.0, 0.0, 0.25, 0.0]);
        assert_eq!(fractions(1, 9), [1.0; 6]);
    }
}
