//! The candidate that nearly fits, for a search in which none does.

use super::layout::Layout;
use super::{Candidate, Search};
use crate::error::Result;
use crate::fit::Fit;
use crate::host::RankForm;
use crate::roles::plan_boundless;

/// A configuration that does not fit.
#[derive(Clone, Debug)]
pub struct Miss {
    /// Keys to set, each as `section.key=value`.
    pub sets: Vec<String>,
    /// Peak of reserved bytes of the rank that needs most.
    pub needs: u64,
    /// Bytes that every device has for its allocator.
    pub available: u64,
}

impl Search {
    /// Returns the candidate among `too_large` that needs least. Of those that differ only in recomputation,
    /// sharding and the micro-batch size, the one is planned that probably needs least.
    pub(super) fn nearest(&self, too_large: &[&Candidate]) -> Option<Miss> {
        let is_least = |layout: &Layout| {
            !too_large.iter().any(|other| other.layout != *layout && other.layout.probably_needs_less(layout))
        };
        let least = too_large.iter().filter(|candidate| is_least(&candidate.layout));
        // What cannot be planned is not the nearest.
        least.filter_map(|candidate| self.miss(candidate).ok()).min_by_key(|miss| miss.needs)
    }

    fn miss(&self, candidate: &Candidate) -> Result<Miss> {
        let setup = self.setup(&candidate.sets)?;
        let plans = plan_boundless(&setup)?;
        let fit = Fit::of(&setup, &plans, self.overhead(), RankForm::Threads);
        Ok(Miss { sets: candidate.sets.clone(), needs: fit.needs, available: fit.available() })
    }
}
