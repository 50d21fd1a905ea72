//! The candidate closest to fitting, for a search in which nothing fits.

use super::layout::Layout;
use super::{Candidate, Search};
use crate::error::Result;
use crate::fit::Fit;
use crate::host::RankForm;
use crate::roles::plan_boundless;

/// A configuration that does not fit.
#[derive(Clone, Debug)]
pub struct Miss {
    /// Configuration keys to set, each as `section.key=value`.
    pub sets: Vec<String>,
    /// Peak reserved bytes of the rank with the most.
    pub needs: u64,
    /// Bytes available to each device's allocator.
    pub available: u64,
}

impl Search {
    /// Returns the candidate of `too_large` that needs the least memory. Of candidates that differ only in
    /// recomputation, sharding and micro-batch size, only the one that probably needs the least is planned.
    pub(super) fn nearest(&self, too_large: &[&Candidate]) -> Option<Miss> {
        let is_least = |layout: &Layout| {
            !too_large.iter().any(|other| other.layout != *layout && other.layout.probably_needs_less(layout))
        };
        let least = too_large.iter().filter(|candidate| is_least(&candidate.layout));
        // Candidates that cannot be planned are skipped.
        least.filter_map(|candidate| self.miss(candidate).ok()).min_by_key(|miss| miss.needs)
    }

    fn miss(&self, candidate: &Candidate) -> Result<Miss> {
        let setup = self.setup(&candidate.sets)?;
        let plans = plan_boundless(&setup)?;
        let fit = Fit::from_plans(&setup, &plans, self.overhead(), RankForm::Threads);
        Ok(Miss { sets: candidate.sets.clone(), needs: fit.needs, available: fit.available() })
    }
}
