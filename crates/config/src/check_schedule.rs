//! Checks of a run's length and its learning-rate schedule.

use keys::{Error, RawValues};

use crate::choices::{DataKind, ScheduleName};
use crate::run_config::RunConfig;
use crate::sections::{Data, Optim, Train};

/// Checks that a run's length is set by one key only, and the steps of its learning-rate schedule.
pub(crate) fn check_schedule(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    check_length(raw, config)?;
    check_lengths(raw)?;
    check_start(raw, config)?;
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

/// Refuses two keys that decide the same steps, both on the command line or both in the file.
fn check_lengths(raw: &RawValues) -> Result<(), Error> {
    let warmup = [Optim::warmup, Optim::warmup_ratio, Optim::warmup_steps];
    let decay = [Optim::decay, Optim::decay_steps];
    for (keys, what) in [(&warmup[..], "warm-up"), (&decay, "decay")] {
        let is_zero = |key: &str| Ok(key == Optim::warmup_ratio && raw.number(key)? == 0.0);
        let written = keys.iter().copied().filter(|key| !raw.is_empty(key));
        let on_command_line: Vec<_> = written.clone().filter(|key| raw.is_override(key)).collect();
        let mut in_file = Vec::new();
        // A resolved configuration, which has its directory, has all.
        for key in written.filter(|key| !raw.is_override(key) && !raw.is_set(Data::base)) {
            if !is_zero(key)? {
                in_file.push(key);
            }
        }
        let both = [on_command_line, in_file].into_iter().find(|keys| keys.len() > 1);
        if let Some([first, second, ..]) = both.as_deref() {
            let reason = format!("{first} decides the steps of {what}, and {second} does: write one");
            return Err(raw.conflict(&[first, second], reason));
        }
    }
    Ok(())
}

/// Checks that the schedule begins before the run ends.
fn check_start(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let start = config.optim.schedule_start;
    let steps = config.train.steps;
    if start < steps || config.train.epochs > 0.0 {
        return Ok(());
    }
    let reason = format!("optim.schedule_start = {start} is not below train.steps = {steps}");
    Err(raw.conflict(&[Optim::schedule_start, Train::steps], reason))
}

impl RunConfig {
    /// Returns a warning if the warm-up and decay steps of a schedule overlap.
    #[must_use]
    pub fn overlapping_decay(&self) -> Option<String> {
        let Optim { schedule, warmup_steps, decay_steps, .. } = self.optim;
        let steps = self.train.steps.saturating_sub(self.optim.schedule_start);
        let is_set = |key| self.origins.is_set(key);
        // A resolved configuration, which has its directory, states defaults too.
        let lengths = [Optim::decay_steps, Optim::decay, Optim::warmup_steps, Optim::warmup];
        let is_written = lengths.into_iter().any(is_set) && !is_set(Data::base);
        let overlaps = is_written && warmup_steps.saturating_add(decay_steps) > steps;
        (schedule == ScheduleName::Wsd && overlaps).then(|| {
            format!(
                "optim.warmup_steps = {warmup_steps} and optim.decay_steps = {decay_steps} are more than the \
                 {steps} steps of the run: the rate would fall before it has risen"
            )
        })
    }
}
