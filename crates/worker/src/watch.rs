//! Comparison of a run with its plan, part by part: the first part whose memory differs is reported, with the
//! first allocation that differs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collective::ControlPlane;
use device::Device;
use serde::{Deserialize, Serialize};
use telemetry::step_trace::{
    Divergence, Figures, LiveSet, Outlived, RankTraces, RunPart, StepTrace, TracePair,
};

use crate::error::{Result, WorkerError};
use crate::expected::PlannedParts;
use crate::outlived::GraphCheck;

/// Differences from the plan on one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Findings {
    /// The first part whose memory differed from the plan.
    pub divergence: Option<Divergence>,
    /// Allocations of a step's graph that outlived the step.
    pub outlived: Option<Outlived>,
}

/// Most allocations that a report lists.
const REPORTED: usize = 32;

/// Compares one rank's run with its plan. For a part that is as planned, this reads the allocator's counters
/// only.
#[derive(Debug, Default)]
pub struct Watch {
    planned: Option<Arc<PlannedParts>>,
    handed_out: u64,
    graph: GraphCheck,
    /// The step whose trace is kept.
    sample: u64,
    steady: Option<StepTrace>,
    diverged: Option<(Divergence, TracePair)>,
    /// The rank, and the file that its traces are written to.
    file: Option<(usize, PathBuf)>,
    is_written: bool,
}

impl Watch {
    /// A watch for a run from step `first`, counted from 0, to step number `steps`.
    pub fn new(planned: Option<Arc<PlannedParts>>, first: u64, steps: u64) -> Self {
        let steady = planned.as_ref().and_then(|planned| planned.steady()).map(|part| part.step);
        // Without a plan, the third step is as good a guess as any.
        let sample = steady.unwrap_or_else(|| (first + 3).min(steps));
        Watch { planned, sample, ..Watch::default() }
    }

    /// Sets the file in the run directory that traces are written to at once, so that a run that is killed
    /// leaves them.
    pub fn write_to(&mut self, rank: usize, run_dir: &Path) {
        self.file = Some((rank, path(run_dir, rank)));
    }

    /// Checks the part that `device` has just completed; `step` counts from 1. Errors: a file that cannot be
    /// written.
    pub fn check(&mut self, device: &Device, part: RunPart, step: u64) -> Result<()> {
        let before = self.handed_out;
        let (figures, handed_out) = device.with_allocator(|allocator| {
            let statistics = allocator.statistics();
            (Figures::of(statistics, before), statistics.handed_out())
        });
        self.handed_out = handed_out;
        if part == RunPart::Step && step == self.sample {
            self.steady = Some(trace(device, part, step).0);
            self.is_written = false;
            self.write()?;
        }
        if self.graph.check(device, part, step, || trace(device, part, step).0)
            && let Some(outlived) = self.graph.found()
        {
            tracing::warn!("{outlived}");
        }
        let expected = self.planned.as_ref().and_then(|planned| planned.at(part, step));
        let Some((planned, expected)) = expected.filter(|(planned, _)| *planned != figures) else {
            return Ok(());
        };
        match &mut self.diverged {
            Some((divergence, _)) => divergence.parts += 1,
            None => {
                let (trace, complete) = trace(device, part, step);
                let comparable = complete && expected.left_out == 0;
                let first = if comparable { trace.difference(expected) } else { None };
                let mut kept = trace.kept_beyond(expected);
                kept.holdings.truncate(REPORTED);
                let rank = device.rank();
                let divergence =
                    Divergence { rank, part, step, measured: figures, planned, first, kept, parts: 1 };
                tracing::warn!("{divergence}");
                let planned = StepTrace::clone(expected);
                self.diverged = Some((divergence, TracePair::new(Some(trace), Some(planned))));
                self.is_written = false;
                self.write()?;
            }
        }
        Ok(())
    }

    /// The first difference from the plan, if there is one.
    pub fn divergence(&self) -> Option<&Divergence> {
        self.diverged.as_ref().map(|(divergence, _)| divergence)
    }

    /// Writes the traces, unless the file has them already. Errors: a file that cannot be written.
    pub fn write(&mut self) -> Result<()> {
        let Some((rank, path)) = self.file.as_ref().filter(|_| !self.is_written) else { return Ok(()) };
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)
                .map_err(|source| WorkerError::File { path: directory.to_owned(), source })?;
        }
        let planned = self.planned.as_ref().and_then(|planned| planned.steady());
        let steady = TracePair::new(self.steady.clone(), planned.map(|part| StepTrace::clone(&part.trace)));
        let diverged = self.diverged.as_ref().map(|(_, traces)| traces.clone());
        RankTraces { rank: *rank, steady, diverged }.write(path)?;
        self.is_written = true;
        Ok(())
    }

    /// Gathers the differences of all ranks on rank 0; nothing on the others. Errors: those of the transport.
    pub fn gather(&self, control: &mut dyn ControlPlane) -> Result<Vec<Findings>> {
        let mut outlived = self.graph.found().cloned();
        if let Some(outlived) = &mut outlived {
            outlived.kept =
                LiveSet { holdings: outlived.kept.holdings.iter().take(REPORTED).cloned().collect() };
        }
        let divergence = self.divergence().cloned();
        let unreadable =
            |error: serde_json::Error| WorkerError::Refused(format!("what a rank found: {error}"));
        let own = serde_json::to_vec(&Findings { divergence, outlived }).map_err(unreadable)?;
        let all = control.gather(0, &own)?.unwrap_or_default();
        all.iter().map(|findings| serde_json::from_slice(findings).map_err(unreadable)).collect()
    }
}

/// Path of a rank's traces in a run directory.
pub fn path(run_dir: &Path, rank: usize) -> PathBuf {
    run_dir.join("traces").join(format!("rank-{rank}.json.gz"))
}

/// Returns the allocator's events in the part, and whether they are complete.
fn trace(device: &Device, part: RunPart, step: u64) -> (StepTrace, bool) {
    let snapshot = device.with_allocator(|allocator| allocator.snapshot());
    match StepTrace::read(&snapshot).filter(|trace| (trace.part, trace.step) == (part, step)) {
        Some(trace) => (trace, true),
        None => (StepTrace::of_now(&snapshot, part, step), false),
    }
}
