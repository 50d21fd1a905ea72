//! The order in which walks use units of weights.

/// A kind of walks that use units in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalkKind {
    /// The passes of a training step.
    #[default]
    Step,
    /// Passes of a validation, or a pass of generation that computes scores.
    Forward,
    /// A pass of generation that fills caches.
    Fill,
    /// The passes of one micro-batch, forward and backward.
    Repetition,
}

/// The units of the current walk so far, and those of the last walk of each kind.
#[derive(Debug, Default)]
pub(super) struct Visits {
    kind: WalkKind,
    now: Vec<usize>,
    last: [Vec<usize>; 4],
    /// Whether the walk is the last one's so far.
    repeats: bool,
}

impl Visits {
    /// Begins a walk; the one before ends.
    pub(super) fn begin(&mut self, kind: WalkKind) {
        let before = std::mem::take(&mut self.now);
        if !before.is_empty() {
            self.last[self.kind as usize] = before;
        }
        (self.kind, self.repeats) = (kind, true);
    }

    /// The units of the last walk of a kind.
    pub(super) fn last(&self, kind: WalkKind) -> Vec<usize> {
        self.last[kind as usize].clone()
    }

    /// Records the use of a unit.
    pub(super) fn visit(&mut self, unit: usize) {
        self.repeats &= self.last[self.kind as usize].get(self.now.len()) == Some(&unit);
        self.now.push(unit);
    }

    /// The units that are expected next, at most `count`; none in a walk without a precedent.
    pub(super) fn following(&self, count: usize) -> Vec<usize> {
        let last = self.last[self.kind as usize].iter().skip(self.now.len()).take(count);
        if self.repeats { last.copied().collect() } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Visits, WalkKind};

    #[test]
    fn a_walk_is_expected_to_repeat_the_last_of_its_kind() {
        let mut visits = Visits::default();
        let mut walk = |kind, units: &[usize]| -> Vec<Vec<usize>> {
            visits.begin(kind);
            let expected = |unit: &usize| {
                visits.visit(*unit);
                visits.following(2)
            };
            units.iter().map(expected).collect()
        };
        assert_eq!(walk(WalkKind::Step, &[0, 1, 0]), [[]; 3].map(Vec::<usize>::from));
        assert_eq!(walk(WalkKind::Forward, &[0, 1]), [[]; 2].map(Vec::<usize>::from));
        assert_eq!(walk(WalkKind::Step, &[0, 1, 0]), [vec![1, 0], vec![0], vec![]]);
        assert_eq!(walk(WalkKind::Step, &[0, 2, 0]), [vec![1, 0], vec![], vec![]]);
        assert_eq!(walk(WalkKind::Forward, &[0, 1]), [vec![1], vec![]]);
    }
}
