//! Times and repeated steps of restarts.

use std::fmt;

use serde_json::Value;

/// Measured cost of restarts.
#[derive(Default)]
pub(crate) struct Costs {
    seconds: Vec<f64>,
    steps: Vec<u64>,
    grids: std::collections::BTreeMap<u64, usize>,
}

impl Costs {
    /// Adds the restarts recorded in a run's sessions.
    pub(crate) fn add(&mut self, sessions: &[Value]) {
        for session in sessions {
            *self.grids.entry(session["grid"]["data"].as_u64().unwrap()).or_default() += 1;
            let restart = &session["restart"];
            self.seconds.extend(restart["seconds_to_next_step"].as_f64());
            self.steps.extend(restart["steps_repeated"].as_u64());
        }
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        let second = |at: usize| seconds.get(at).copied().unwrap_or_default();
        let median = second(seconds.len() / 2);
        let most = second(seconds.len().saturating_sub(1));
        let steps = self.steps.iter().sum::<u64>();
        let most_steps = self.steps.iter().max().unwrap_or(&0);
        write!(
            f,
            "{} restarts; to the next step {median:.1} s, at most {most:.1} s; {steps} steps repeated, at \
             most {most_steps} at once; sessions by data-parallel ranks {:?}",
            self.steps.len(),
            self.grids
        )
    }
}
