//! Checks of a run's length and its learning-rate schedule.

use keys::{Error, RawValues};

use crate::choices::{DataKind, ScheduleName};
use crate::run_config::RunConfig;
use crate::sections::{Data, Optim, Train};

/// Checks that a run's length is set by one key only, and the steps of its learning-rate schedule.
pub(crate) fn check_schedule(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    check_length(raw, config)?;
    check_warmup(raw)?;
    // The data decides the steps of epochs.
    if config.train.epochs == 0.0
        && let Some(reason) = config.overlapping_decay()
    {
        return Err(raw.conflict(&[Optim::decay_steps, Optim::warmup_steps, Train::steps], reason));
    }
    let Optim { schedule, milestones, .. } = &config.optim;
    if *schedule != ScheduleName::Step || milestones.is_sorted_by(|one, next| one < next) {
        return Ok(());
    }
    let reason = format!("optim.milestones = {milestones:?} are not in increasing order");
    Err(raw.conflict(&[Optim::milestones], reason))
}

fn check_length(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let epochs = config.train.epochs;
    if epochs > 0.0 && config.data.kind == DataKind::Synthetic {
        let reason =
            "train.epochs needs data that ends, and data.kind = \"synthetic\" does not: use train.steps";
        return Err(raw.conflict(&[Train::epochs, Data::kind], reason.to_owned()));
    }
    // A resolved configuration, which has its directory, has both.
    let is_in_file = |path| raw.is_set(path) && !raw.is_override(path);
    let both = raw.is_override(Train::epochs) && raw.is_override(Train::steps)
        || is_in_file(Train::epochs) && is_in_file(Train::steps) && !raw.is_set(Data::base);
    if !both || raw.number(Train::epochs)? == 0.0 {
        return Ok(());
    }
    let steps = raw.integer(Train::steps)?;
    let reason = format!(
        "train.epochs = {} decides the steps, and train.steps = {steps}: write one",
        raw.number(Train::epochs)?
    );
    Err(raw.conflict(&[Train::epochs, Train::steps], reason))
}

fn check_warmup(raw: &RawValues) -> Result<(), Error> {
    let keys = [Optim::warmup_ratio, Optim::warmup_steps];
    // A resolved configuration, which has its directory, has both.
    let is_in_file = |path: &&str| raw.is_set(path) && !raw.is_override(path);
    let both = keys.iter().all(|key| raw.is_override(key))
        || keys.iter().all(is_in_file) && !raw.is_set(Data::base) && raw.number(Optim::warmup_ratio)? > 0.0;
    let reason = "optim.warmup_ratio decides the steps of warm-up, and optim.warmup_steps does: write one";
    if both { Err(raw.conflict(&keys, reason.to_owned())) } else { Ok(()) }
}

impl RunConfig {
    /// Returns a warning if the warm-up and decay steps of a schedule overlap.
    #[must_use]
    pub fn overlapping_decay(&self) -> Option<String> {
        let Optim { schedule, warmup_steps, decay_steps, .. } = self.optim;
        let steps = self.train.steps;
        let is_set = |key| self.origins.is_set(key);
        // A resolved configuration, which has its directory, states defaults too.
        let is_written = (is_set(Optim::decay_steps) || is_set(Optim::warmup_steps)) && !is_set(Data::base);
        let overlaps = is_written && warmup_steps.saturating_add(decay_steps) > steps;
        (schedule == ScheduleName::Wsd && overlaps).then(|| {
            format!(
                "optim.warmup_steps = {warmup_steps} and optim.decay_steps = {decay_steps} are more than the \
                 {steps} steps of the run: the rate would fall before it has risen"
            )
        })
    }
}
