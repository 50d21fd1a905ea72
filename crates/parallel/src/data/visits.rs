//! The order in which passes use units of weights, remembered so that units can be gathered ahead.

/// A kind of work whose passes always use units in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkKind {
    /// The passes of a training step.
    #[default]
    Step,
    /// Passes of a validation, or a pass of generation that computes scores.
    Forward,
    /// A pass of generation that only fills caches.
    Fill,
    /// The forward and backward pass of one micro-batch.
    Repetition,
}

/// The units used so far, and those used by the last work of each kind.
#[derive(Debug, Default)]
pub(super) struct Visits {
    kind: WorkKind,
    now: Vec<usize>,
    last: [Vec<usize>; 4],
    /// Whether the units so far equal the units of the last work of this kind.
    repeats: bool,
}

impl Visits {
    /// Begins work of a kind, ending the previous work.
    pub(super) fn begin(&mut self, kind: WorkKind) {
        let before = std::mem::take(&mut self.now);
        if !before.is_empty() {
            self.last[self.kind as usize] = before;
        }
        (self.kind, self.repeats) = (kind, true);
    }

    /// The units used by the last work of a kind.
    pub(super) fn last(&self, kind: WorkKind) -> Vec<usize> {
        self.last[kind as usize].clone()
    }

    /// Records the use of a unit.
    pub(super) fn visit(&mut self, unit: usize) {
        self.repeats &= self.last[self.kind as usize].get(self.now.len()) == Some(&unit);
        self.now.push(unit);
    }

    /// Returns at most `count` units expected next; none if the work differs from the last of its kind.
    pub(super) fn following(&self, count: usize) -> Vec<usize> {
        let last = self.last[self.kind as usize].iter().skip(self.now.len()).take(count);
        if self.repeats { last.copied().collect() } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Visits, WorkKind};

    #[test]
    fn work_is_expected_to_repeat_the_last_of_its_kind() {
        let mut visits = Visits::default();
        let mut run = |kind, units: &[usize]| -> Vec<Vec<usize>> {
            visits.begin(kind);
            let expected = |unit: &usize| {
                visits.visit(*unit);
                visits.following(2)
            };
            units.iter().map(expected).collect()
        };
        assert_eq!(run(WorkKind::Step, &[0, 1, 0]), [[]; 3].map(Vec::<usize>::from));
        assert_eq!(run(WorkKind::Forward, &[0, 1]), [[]; 2].map(Vec::<usize>::from));
        assert_eq!(run(WorkKind::Step, &[0, 1, 0]), [vec![1, 0], vec![0], vec![]]);
        assert_eq!(run(WorkKind::Step, &[0, 2, 0]), [vec![1, 0], vec![], vec![]]);
        assert_eq!(run(WorkKind::Forward, &[0, 1]), [vec![1], vec![]]);
    }
}
