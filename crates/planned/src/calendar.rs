//! The calendar of a run: which steps are verified, validated or saved, and after which the cache is emptied.

use std::sync::Arc;

use config::RunConfig;
use data::StepLengths;

/// Work around a step that affects how the step changes memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepKind {
    /// Whether a micro-batch of the step is run twice, first before the step, and compared.
    pub verifies: bool,
    /// Whether the rank returns idle memory to the driver after the step.
    pub empties: bool,
    /// Whether a validation follows, after emptying the cache.
    pub validates: bool,
    /// Tokens per sequence, if the number differs between steps.
    pub length: Option<usize>,
}

/// The schedule of a run's steps, verifications, validations, checkpoints and cache emptying.
#[derive(Clone, Debug, Default)]
pub struct Calendar {
    /// Number of steps.
    pub steps: u64,
    validate_every: u64,
    /// Whether no validation follows any step, not even the last, because there is no validation data.
    never_validates: bool,
    save_every: u64,
    empty_every: u64,
    verify_every: u64,
    memory_every: u64,
    /// Number of validations without a lower loss after which the run ends; `None` if it runs all steps.
    patience: Option<u64>,
    /// Sequence lengths by step, and the steps whose samples are skipped, in ascending order.
    lengths: Option<(Arc<StepLengths>, Arc<Vec<u64>>)>,
}

/// Most steps that are searched one by one for a different sequence length.
const MOST_SEARCHED: u64 = 1 << 20;

impl Calendar {
    /// Returns the calendar of a configuration.
    pub fn new(config: &RunConfig) -> Self {
        let RunConfig { train, checkpoint, memory, .. } = config;
        Calendar {
            steps: train.steps,
            validate_every: train.validate_every,
            never_validates: !config.validates(),
            save_every: checkpoint.every,
            empty_every: memory.empty_cache_every,
            verify_every: train.verify_every,
            memory_every: checkpoint.memory_steps,
            patience: Some(train.patience).filter(|patience| *patience > 0),
            lengths: None,
        }
    }

    /// Sets the sequence lengths of the steps. `left_out` lists the steps whose samples are skipped, in
    /// ascending order.
    #[must_use]
    pub fn with_lengths(self, lengths: Option<&Arc<StepLengths>>, left_out: &Arc<Vec<u64>>) -> Self {
        let lengths = lengths.map(|lengths| (Arc::clone(lengths), Arc::clone(left_out)));
        Calendar { lengths, ..self }
    }

    /// Returns the tokens per sequence in step `step`, counted from 0; `None` if the length is constant.
    fn length_of(&self, step: u64) -> Option<usize> {
        let (lengths, left_out) = self.lengths.as_ref()?;
        Some(lengths.length_of_step(samples_of(step, left_out)))
    }

    /// Returns the first step from `step` on with each sequence length, the longest first; only `step` if all
    /// steps have the same length.
    #[must_use]
    pub fn first_of_each_length(&self, step: u64) -> Vec<u64> {
        let Some((lengths, _)) = &self.lengths else { return vec![step] };
        let end = self.steps.min(step.saturating_add(MOST_SEARCHED)).max(step + 1);
        let mut missing = lengths.lengths().to_vec();
        let mut found = Vec::new();
        for step in step..end {
            let Some(length) = self.length_of(step) else { break };
            if let Some(index) = missing.iter().position(|other| *other == length) {
                missing.remove(index);
                found.push((length, step));
            }
            if missing.is_empty() {
                break;
            }
        }
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.into_iter().map(|(_, step)| step).collect()
    }

    /// Returns whether a run ends early because its last `since_best` validations did not lower the loss.
    pub fn is_out_of_patience(&self, since_best: u64) -> bool {
        self.patience.is_some_and(|patience| since_best >= patience)
    }

    /// Returns whether a validation follows step `step` (from 0): every `validate_every` steps and after the
    /// last step, if there is validation data.
    pub fn validates_after(&self, step: u64) -> bool {
        if self.never_validates {
            return false;
        }
        let due = self.validate_every > 0 && (step + 1).is_multiple_of(self.validate_every);
        due || step + 1 == self.steps
    }

    /// Returns whether a micro-batch of step `step` (from 0) is verified.
    pub fn verifies(&self, step: u64) -> bool {
        self.verify_every > 0 && (step + 1).is_multiple_of(self.verify_every)
    }

    /// Returns whether the cache is emptied after step `step` (from 0).
    pub fn empties_after(&self, step: u64) -> bool {
        self.empty_every > 0 && (step + 1).is_multiple_of(self.empty_every)
    }

    /// Returns whether the run ever empties the cache.
    pub fn empties(&self) -> bool {
        self.empty_every > 0
    }

    /// Returns the kind of step `step` (from 0).
    pub fn kind(&self, step: u64) -> StepKind {
        StepKind {
            verifies: self.verifies(step),
            empties: self.empties_after(step),
            validates: self.validates_after(step),
            length: self.length_of(step),
        }
    }

    /// Returns the first step after `step` of a different kind; `None` if all later steps have the same kind.
    pub fn next_of_another_kind(&self, step: u64) -> Option<u64> {
        let StepKind { verifies, empties, validates, length } = self.kind(step);
        let others = [
            self.next_length(step, length),
            self.next_validating(step, !validates),
            self.next_at(self.empty_every, step, !empties),
            self.next_at(self.verify_every, step, !verifies),
        ];
        others.into_iter().flatten().min()
    }

    /// Returns the first step after `step` with a different sequence length, among [`MOST_SEARCHED`] steps.
    fn next_length(&self, step: u64, length: Option<usize>) -> Option<u64> {
        length?;
        let after = step.saturating_add(1);
        (after..self.steps.min(after.saturating_add(MOST_SEARCHED)))
            .find(|step| self.length_of(*step) != length)
    }

    /// Returns the first step after the second-last emptying of the cache; `None` if it is emptied less than
    /// twice.
    pub fn last_round(&self) -> Option<u64> {
        let rounds = self.steps.checked_div(self.empty_every)?;
        (rounds >= 2).then(|| (rounds - 1) * self.empty_every)
    }

    /// Returns the first step after `step` that is followed by a validation (`validates`) or is not; `None`
    /// if there is none.
    fn next_validating(&self, step: u64, validates: bool) -> Option<u64> {
        if self.never_validates {
            return None;
        }
        let after = step.saturating_add(1);
        if !validates {
            // Two consecutive steps are both validated only at the end, or if all steps are.
            let later = after..after.saturating_add(2).min(self.steps);
            return later.into_iter().find(|step| !self.validates_after(*step));
        }
        let last = self.steps.checked_sub(1).filter(|last| *last > step)?;
        let due = after.saturating_add(1).checked_next_multiple_of(self.validate_every);
        Some(due.map_or(last, |due| (due - 1).min(last)))
    }

    /// Returns the first step after `step` that is an `every`-th step (`due`) or is not; `None` if there
    /// is none.
    fn next_at(&self, every: u64, step: u64, due: bool) -> Option<u64> {
        let after = step.saturating_add(1);
        let next = match due {
            false => Some(after).filter(|next| !(next + 1).is_multiple_of(every)),
            true if every == 0 => None,
            true => after.saturating_add(1).checked_next_multiple_of(every).map(|due| due - 1),
        };
        next.filter(|step| *step < self.steps)
    }

    /// Returns whether an in-memory checkpoint is due after step `step` (from 0).
    pub fn keeps_in_memory_after(&self, step: u64) -> bool {
        self.memory_every > 0 && (step + 1).is_multiple_of(self.memory_every)
    }

    /// Returns whether a checkpoint is due after step `step` (from 0), by the number of steps.
    pub fn saves_after(&self, step: u64) -> bool {
        self.save_every > 0 && (step + 1).is_multiple_of(self.save_every)
    }
}

/// Returns which step's share of the data `step` uses, when the shares of the steps in `left_out` are
/// skipped. `left_out` is in ascending order.
#[must_use]
pub fn samples_of(step: u64, left_out: &[u64]) -> u64 {
    left_out.iter().fold(step, |samples, left_out| samples + u64::from(*left_out <= samples))
}

#[cfg(test)]
mod tests {
    use super::{Calendar, StepKind};

    #[test]
    fn the_next_step_of_another_kind_is_the_first_one() {
        for steps in 1..12 {
            let pairs = (0..6).flat_map(|first| (0..4).map(move |second| (first, second)));
            let all = pairs.flat_map(|(first, second)| (0..4).map(move |third| (first, second, third)));
            let all = all.flat_map(|every| [(every, false), (every, true)]);
            for ((validate_every, empty_every, verify_every), never_validates) in all {
                let calendar = Calendar {
                    steps,
                    validate_every,
                    never_validates,
                    empty_every,
                    verify_every,
                    ..Calendar::default()
                };
                for step in 0..steps {
                    let expected_kind = |step: u64| {
                        let validates = validate_every > 0 && (step + 1).is_multiple_of(validate_every);
                        let empties = empty_every > 0 && (step + 1).is_multiple_of(empty_every);
                        let verifies = verify_every > 0 && (step + 1).is_multiple_of(verify_every);
                        let validates = !never_validates && (validates || step + 1 == steps);
                        StepKind { verifies, empties, validates, length: None }
                    };
                    assert_eq!(calendar.kind(step), expected_kind(step), "{calendar:?} {step}");
                    let expected =
                        (step + 1..steps).find(|later| expected_kind(*later) != expected_kind(step));
                    assert_eq!(calendar.next_of_another_kind(step), expected, "{calendar:?} {step}");
                }
                let emptied = (0..steps).rev().filter(|step| calendar.empties_after(*step)).nth(1);
                assert_eq!(calendar.last_round(), emptied.map(|step| step + 1), "{calendar:?}");
            }
        }
    }
}
