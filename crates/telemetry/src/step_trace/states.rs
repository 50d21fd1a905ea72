//! A step as a state machine: its phases, the bytes allocated in each, and the transitions between them.

use super::{MICRO_BATCH, Point, STAGE, StepTrace};

/// A phase of a step, with the bytes allocated during it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseState {
    /// Name of the phase.
    pub phase: String,
    /// Number of times that the step enters the phase.
    pub visits: usize,
    /// Bytes allocated when the phase is first entered.
    pub before: u64,
    /// The point with the most allocated bytes in the phase, the first of equals.
    pub peak: Point,
    /// Bytes allocated when the phase is last left.
    pub after: u64,
}

/// A transition between two phases, or between a phase and the time between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Index of the phase that is left; `None` at the start of the step.
    pub from: Option<usize>,
    /// Index of the phase that is entered; `None` at the end of the step.
    pub to: Option<usize>,
    /// Number of times that the step makes the transition.
    pub times: usize,
    /// Fewest bytes allocated at the transition.
    pub least: u64,
    /// Most bytes allocated at the transition.
    pub most: u64,
}

/// The phases of a step, in the order of their first entry, and the transitions, in the order of their first
/// occurrence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepStates {
    /// Bytes allocated before the step.
    pub before: u64,
    /// Bytes allocated after the step.
    pub after: u64,
    /// The phases.
    pub phases: Vec<PhaseState>,
    /// The transitions.
    pub transitions: Vec<Transition>,
}

/// One visit of a phase: the numbers of events before its start and before its end.
struct Visit<'a> {
    phase: &'a str,
    from: usize,
    to: usize,
}

impl StepTrace {
    /// Returns the step's phases, including those without events, and the transitions between them.
    /// Consecutive micro-batches and stages in one phase are one visit.
    #[must_use]
    pub fn states(&self) -> StepStates {
        let curve = self.curve();
        let at = |events: usize| curve.points.get(events).map_or(0, |point| point.bytes.total());
        let mut states = StepStates { before: at(0), after: at(self.events.len()), ..StepStates::default() };
        let mut left = None;
        for Visit { phase, from, to } in self.visits() {
            let points = curve.points.get(from..=to).unwrap_or_default();
            let highest = points.iter().rev().max_by_key(|point| point.bytes.total());
            let peak = highest.copied().unwrap_or_default();
            let index = states.enter(phase, (at(from), peak, at(to)));
            states.count(left, Some(index), at(from));
            left = Some(index);
        }
        if left.is_some() {
            states.count(left, None, states.after);
        }
        states
    }

    /// Returns the visits of phases, in order.
    fn visits(&self) -> Vec<Visit<'_>> {
        let mut visits: Vec<Visit<'_>> = Vec::new();
        for mark in self.marks.iter().filter(|mark| ![MICRO_BATCH, STAGE].contains(&mark.name.as_str())) {
            match visits.last_mut() {
                Some(last) if last.phase == mark.name => continue,
                Some(last) => last.to = mark.events,
                None => {}
            }
            visits.push(Visit { phase: &mark.name, from: mark.events, to: mark.events });
        }
        if let Some(last) = visits.last_mut() {
            last.to = self.events.len();
        }
        visits
    }
}

impl StepStates {
    /// Adds a visit of a phase. Returns the phase's index.
    fn enter(&mut self, phase: &str, (before, peak, after): (u64, Point, u64)) -> usize {
        let Some(index) = self.phases.iter().position(|state| state.phase == phase) else {
            self.phases.push(PhaseState { phase: phase.to_owned(), visits: 1, before, peak, after });
            return self.phases.len() - 1;
        };
        let state = &mut self.phases[index];
        state.visits += 1;
        state.after = after;
        if peak.bytes.total() > state.peak.bytes.total() {
            state.peak = peak;
        }
        index
    }

    fn count(&mut self, from: Option<usize>, to: Option<usize>, bytes: u64) {
        match self.transitions.iter_mut().find(|other| (other.from, other.to) == (from, to)) {
            Some(transition) => {
                transition.times += 1;
                transition.least = transition.least.min(bytes);
                transition.most = transition.most.max(bytes);
            }
            None => self.transitions.push(Transition { from, to, times: 1, least: bytes, most: bytes }),
        }
    }
}
