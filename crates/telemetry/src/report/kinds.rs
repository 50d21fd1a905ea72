//! Groups of ranks with equal memory, which share one panel.

use super::RankMemory;
use crate::step_trace::StepTrace;
use crate::units::ranges;

/// A group of ranks with equal memory: one of its members, and all their rank numbers.
pub(super) type Kind<'a> = (&'a RankMemory, Vec<usize>);

/// Groups `ranks` by the equivalence `alike`, in the order of each group's first rank.
pub(super) fn kinds<'a>(
    ranks: impl Iterator<Item = &'a RankMemory>,
    alike: impl Fn(&RankMemory, &RankMemory) -> bool,
) -> Vec<Kind<'a>> {
    let mut kinds: Vec<Kind<'a>> = Vec::new();
    for rank in ranks {
        match kinds.iter_mut().find(|(kind, _)| alike(kind, rank)) {
            Some((_, members)) => members.extend(&rank.ranks),
            None => kinds.push((rank, rank.ranks.clone())),
        }
    }
    kinds
}

/// Formats rank numbers, as in `3` or `0–3, 8`.
pub(super) fn rank_numbers(ranks: &[usize]) -> String {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    ranges(sorted.into_iter()).replace('-', "–").replace(',', ", ")
}

impl RankMemory {
    /// Returns the trace to draw: the measured one, else the planned one.
    pub(super) fn trace(&self) -> Option<&StepTrace> {
        self.measured.as_ref().or(self.planned.as_ref())
    }

    pub(super) fn differing_plan(&self) -> Option<&StepTrace> {
        let measured = self.measured.as_ref()?;
        let planned = self.planned.as_ref()?;
        (!measured.repeats(planned)).then_some(planned)
    }

    /// Returns whether both ranks would get the same drawing.
    pub(super) fn looks_like(&self, other: &RankMemory) -> bool {
        let alike = |a: &Option<StepTrace>, b: &Option<StepTrace>| match (a, b) {
            (Some(a), Some(b)) => a.repeats(b),
            (None, None) => true,
            _ => false,
        };
        alike(&self.measured, &other.measured)
            && alike(&self.planned, &other.planned)
            && (self.figures, self.limit) == (other.figures, other.limit)
    }
}
