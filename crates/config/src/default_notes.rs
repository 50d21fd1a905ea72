//! Messages about defaults that depend on the kind of run.

use crate::choices::DataKind;
use crate::lanes::default_lanes;
use crate::run_config::RunConfig;
use crate::sections::{Optim, Parallel, Train};

/// The keys with other defaults in fine-tuning.
const OF_FINE_TUNING: [&str; 8] = [
    Optim::learning_rate,
    Optim::warmup_ratio,
    Optim::min_learning_rate,
    Optim::weight_decay,
    Optim::beta2,
    Train::epochs,
    Train::micro_batch_size,
    Train::global_batch_size,
];

impl RunConfig {
    /// Returns messages about defaults that depend on the kind of run: fine-tuning, and one lane if no grid
    /// is configured.
    #[must_use]
    pub fn default_notes(&self) -> Vec<String> {
        self.fine_tuning_note().into_iter().chain(self.lane_note()).collect()
    }

    /// Returns a message with the value of `parallel.lanes` that gives a one-lane run the bits of runs on
    /// grids.
    fn lane_note(&self) -> Option<String> {
        let lanes = default_lanes(self.train.micro_batches() as u64);
        let is_default = !self.origins.is_set(Parallel::lanes) && self.parallel.lanes == 1;
        (is_default && self.world_size() == 1 && lanes > 1).then(|| {
            format!(
                "{} = 1: gradients of a step are summed in one lane; {lanes} has the same bits on up to \
                 {lanes} data-parallel ranks",
                Parallel::lanes
            )
        })
    }

    /// Returns a message with the defaults that apply because the run is fine-tuning.
    fn fine_tuning_note(&self) -> Option<String> {
        let is_of_tokens = !matches!(self.data.kind, DataKind::Images | DataKind::Synthetic);
        self.model.weights().filter(|_| is_of_tokens)?;
        let settings = self.settings();
        let unset = OF_FINE_TUNING.iter().filter(|key| !self.origins.is_set(key));
        let value = |key: &&str| settings.iter().find(|(other, _)| other.path == *key);
        let defaults: Vec<String> =
            unset.filter_map(value).map(|(key, value)| format!("{} = {value}", key.path)).collect();
        (!defaults.is_empty()).then(|| format!("defaults of fine-tuning: {}", defaults.join(", ")))
    }
}
