//! Plans the candidates of a search in order, leaving out those decided by the plans of others.

use std::collections::BTreeMap;

use system::threads::processors;

use super::layout::Layout;
use super::proposals::Proposals;
use super::{Candidate, FitProgress, Outcome, PROPOSALS, Search};
use crate::error::{PlanError, Result};
use crate::roles::on_threads;

/// Maximum number of candidates planned at the same time; each needs host memory.
const AT_A_TIME: usize = 8;

impl Search {
    /// Plans candidates until enough of them fit, and adds them to `proposals`. Returns the reason why the
    /// first unplannable candidate cannot be planned.
    ///
    /// # Errors
    /// Planning fails for a reason other than refusing a candidate.
    pub(super) fn run(
        &self,
        candidates: &[Candidate],
        proposals: &mut Proposals,
        on_progress: &mut dyn FnMut(FitProgress<'_>),
    ) -> Result<Option<PlanError>> {
        let mut tried = Tried::new(self, candidates);
        for (index, Candidate { layout, .. }) in candidates.iter().enumerate() {
            if proposals.list.len() == PROPOSALS {
                break;
            }
            if proposals.have_faster(layout) || tried.is_too_large(layout) {
                continue;
            }
            if tried.is_too_long(layout) {
                proposals.unplanned += 1;
                continue;
            }
            tried.plan_beside(index, |layout| proposals.have_faster(layout))?;
            match tried.plan(index)? {
                Outcome::Fits(proposal) => {
                    on_progress(FitProgress::Fits(proposal));
                    proposals.list.push((**proposal).clone());
                }
                Outcome::TooLarge => {}
                Outcome::Unplanned(error) => {
                    proposals.unplanned += 1;
                    proposals.reason.get_or_insert_with(|| error.to_string());
                }
            }
        }
        proposals.planned += tried.planned();
        if proposals.list.is_empty() {
            proposals.nearest = self.nearest(&tried.too_large().collect::<Vec<_>>());
        }
        proposals.list.sort_by(|a, b| a.order().total_cmp(&b.order()));
        Ok(tried.into_refusal())
    }
}

/// The candidates of a search, and the outcomes so far.
pub(super) struct Tried<'a> {
    search: &'a Search,
    candidates: &'a [Candidate],
    /// Outcomes by index of the candidate.
    outcomes: BTreeMap<usize, Outcome>,
    /// Outcomes of later candidates that other threads planned in advance. Outcomes of candidates that turn
    /// out to be unneeded are ignored, so the result does not depend on the number of threads.
    ahead: BTreeMap<usize, Result<Outcome>>,
}

impl<'a> Tried<'a> {
    /// Creates the list of a search's candidates, none of them planned.
    pub(super) fn new(search: &'a Search, candidates: &'a [Candidate]) -> Self {
        Tried { search, candidates, outcomes: BTreeMap::new(), ahead: BTreeMap::new() }
    }

    /// Plans a candidate that is not planned yet. If it does not fit, the otherwise equal candidate with the
    /// most sharded state is planned too: if that does not fit either, no other sharding does.
    ///
    /// # Errors
    /// Planning fails for a reason other than refusing a candidate.
    pub(super) fn plan(&mut self, index: usize) -> Result<&Outcome> {
        self.plan_one(index)?;
        if matches!(self.outcomes.get(&index), Some(Outcome::TooLarge)) {
            let smallest = self.candidates[index].layout.smallest();
            if let Some(probe) = self.candidates.iter().position(|other| other.layout == smallest) {
                self.plan_one(probe)?;
            }
        }
        Ok(self.outcomes.entry(index).or_insert(Outcome::TooLarge))
    }

    /// Plans a candidate and following ones, one per thread, unless already planned. Candidates known to be
    /// unneeded are left out, including those for which `leaves_out` returns true.
    ///
    /// # Errors
    /// None; errors of planning are kept for [`Tried::plan`].
    fn plan_beside(&mut self, index: usize, leaves_out: impl Fn(&Layout) -> bool) -> Result<()> {
        if self.is_known(index) {
            return Ok(());
        }
        let is_open = |index: &usize| {
            let layout = &self.candidates[*index].layout;
            let is_left_out = || leaves_out(layout) || self.is_too_large(layout) || self.is_too_long(layout);
            !self.is_known(*index) && !is_left_out()
        };
        let count = processors().min(AT_A_TIME);
        let next: Vec<_> = (index..self.candidates.len()).filter(is_open).take(count).collect();
        let planned = on_threads(&next, |index| Ok(self.search.plan(&self.candidates[index])))?;
        self.ahead.extend(next.into_iter().zip(planned));
        Ok(())
    }

    fn is_known(&self, index: usize) -> bool {
        self.outcomes.contains_key(&index) || self.ahead.contains_key(&index)
    }

    fn plan_one(&mut self, index: usize) -> Result<()> {
        if !self.outcomes.contains_key(&index) {
            let ahead = self.ahead.remove(&index);
            let outcome = ahead.unwrap_or_else(|| self.search.plan(&self.candidates[index]))?;
            self.outcomes.insert(index, outcome);
        }
        Ok(())
    }

    /// Returns whether a layout needs no less memory than some layout that did not fit.
    pub(super) fn is_too_large(&self, layout: &Layout) -> bool {
        self.too_large().any(|other| other.layout != *layout && layout.needs_no_less_than(&other.layout))
    }

    /// Returns whether planning a layout takes at least as long as some plan that took too long.
    pub(super) fn is_too_long(&self, layout: &Layout) -> bool {
        let unplanned = self.unplanned().filter(|(_, error)| error.is_too_long());
        let mut too_long = unplanned.map(|(candidate, _)| candidate.layout);
        too_long.any(|other| other != *layout && layout.takes_no_less_planning_than(&other))
    }

    pub(super) fn too_large(&self) -> impl Iterator<Item = &'a Candidate> {
        let too_large = self.outcomes.iter().filter(|(_, outcome)| matches!(outcome, Outcome::TooLarge));
        too_large.map(|(index, _)| &self.candidates[*index])
    }

    pub(super) fn planned(&self) -> usize {
        self.outcomes.len()
    }

    /// Returns the candidates that cannot be planned, with the reasons.
    fn unplanned(&self) -> impl Iterator<Item = (&'a Candidate, &PlanError)> {
        self.outcomes.iter().filter_map(|(index, outcome)| match outcome {
            Outcome::Unplanned(error) => Some((&self.candidates[*index], error)),
            _ => None,
        })
    }

    /// Returns the reason why the first unplannable candidate cannot be planned.
    pub(super) fn into_refusal(self) -> Option<PlanError> {
        self.outcomes.into_values().find_map(|outcome| match outcome {
            Outcome::Unplanned(error) => Some(error),
            _ => None,
        })
    }
}
