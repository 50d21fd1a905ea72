//! Comparison of a run with its plan, part by part: the first part whose memory differs is reported, with the
//! first allocation that differs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use collective::ControlChannel;
use device::Device;
use serde::{Deserialize, Serialize};
use system::threads;
use telemetry::step_trace::{
    Divergence, Figures, LiveSet, Outlived, RankTraces, RunPart, StepTrace, TracePair,
};

use crate::calendar::Calendar;
use crate::effects::StepEffect;
use crate::error::{PlannedError, Result};
use crate::outlived::GraphCheck;
use crate::parts::PlannedParts;

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

/// Compares one rank's run with its plan. For a part that matches the plan, this reads only the allocator's
/// counters.
#[derive(Debug, Default)]
pub struct Watch {
    planned: Option<Arc<PlannedParts>>,
    calendar: Calendar,
    /// Index of the layout of the memory, where the plan has effects of steps.
    layout: usize,
    /// The effect of the present step.
    effect: Option<StepEffect>,
    /// The highest peaks of the planned parts so far.
    peaks: Figures,
    handed_out: u64,
    graph: GraphCheck,
    /// The step whose trace is kept.
    sample: u64,
    steady: Option<StepTrace>,
    diverged: Option<(Divergence, TracePair)>,
    /// The rank, and the file of its traces.
    file: Option<(usize, PathBuf)>,
    /// Whether writing the traces has started.
    is_begun: bool,
    writing: Option<Writing>,
}

/// A write of traces to their file, on a separate thread so that no step waits for a disk. Dropping it waits.
#[derive(Debug)]
pub struct Writing(Option<JoinHandle<Result<()>>>);

impl Writing {
    /// Starts to write after an earlier write has ended.
    fn start(traces: RankTraces, path: PathBuf, before: Option<Writing>) -> Result<Self> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| PlannedError::File { path, source }
        };
        let no_thread = failed(&path);
        let write = move || {
            before.map_or(Ok(()), Writing::finish)?;
            if let Some(directory) = path.parent() {
                std::fs::create_dir_all(directory).map_err(failed(directory))?;
            }
            Ok(traces.write(&path)?)
        };
        let thread = threads::spawn("traces", write).map_err(no_thread)?;
        Ok(Writing(Some(thread)))
    }

    /// Waits until the file is written.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn finish(mut self) -> Result<()> {
        let Some(thread) = self.0.take() else { return Ok(()) };
        thread.join().unwrap_or(Err(PlannedError::Writer))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().and_then(|thread| thread.join().ok()) {
            tracing::warn!("{error}");
        }
    }
}

impl Watch {
    /// Returns a watch for a run of `calendar` from step `first`, counted from 0.
    pub fn new(planned: Option<Arc<PlannedParts>>, first: u64, calendar: Calendar) -> Self {
        let steady = planned.as_ref().and_then(|planned| planned.steady()).map(|part| part.step);
        // Without a plan, the trace is of the third step.
        let sample = steady.unwrap_or_else(|| (first + 3).min(calendar.steps));
        Watch { planned, sample, calendar, ..Watch::default() }
    }

    /// Sets the file in the run directory to which traces are written as soon as they exist, so that a killed
    /// run leaves them.
    pub fn write_to(&mut self, rank: usize, run_dir: &Path) {
        self.file = Some((rank, traces_path(run_dir, rank)));
    }

    /// Checks the part that `device` has just completed; `step` counts from 1.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn check(&mut self, device: &Device, part: RunPart, step: u64) -> Result<()> {
        let before = self.handed_out;
        let (figures, handed_out) = device.with_allocator(|allocator| {
            let statistics = allocator.statistics();
            (Figures::of(statistics, before), statistics.handed_out())
        });
        self.handed_out = handed_out;
        if part == RunPart::Step && step == self.sample {
            self.steady = Some(trace(device, part, step).0);
            self.write()?;
        }
        if self.graph.check(device, part, step, || trace(device, part, step).0)
            && let Some(outlived) = self.graph.outlived()
        {
            tracing::warn!("{outlived}");
        }
        let Some(all) = self.planned.clone() else { return Ok(()) };
        let expected = match all.effects {
            Some(_) => self.follow(&all, part, step),
            None => all.at(part, step),
        };
        let Some((planned, expected)) = expected.filter(|(planned, _)| *planned != figures) else {
            return Ok(());
        };
        match &mut self.diverged {
            Some((divergence, _)) => divergence.parts += 1,
            None => {
                let (trace, complete) = trace(device, part, step);
                let comparable = complete && expected.left_out == 0;
                let first = if comparable { trace.difference(expected) } else { None };
                let mut live = trace.outlived_beyond(expected);
                live.holdings.truncate(REPORTED);
                let rank = device.rank();
                let divergence =
                    Divergence { rank, part, step, measured: figures, planned, first, kept: live, parts: 1 };
                tracing::warn!("{divergence}");
                let planned = StepTrace::clone(expected);
                self.diverged = Some((divergence, TracePair::new(Some(trace), Some(planned))));
                self.write()?;
            }
        }
        Ok(())
    }

    /// Returns the plan of the part that follows the one before, by the effects of planned steps; `None` if
    /// it is not known.
    fn follow<'a>(
        &mut self,
        planned: &'a PlannedParts,
        part: RunPart,
        step: u64,
    ) -> Option<(Figures, &'a Arc<StepTrace>)> {
        let kind = self.calendar.kind(step.saturating_sub(1));
        if part == RunPart::Verification || part == RunPart::Step && !kind.verifies {
            self.effect = planned.effects.as_ref().and_then(|effects| effects.of(self.layout, kind));
            self.layout = self.effect?.next;
        }
        let index = match part {
            RunPart::Start => 0,
            RunPart::Reference => 1,
            RunPart::Step => self.effect?.step,
            RunPart::Validation => self.effect?.validation?,
            RunPart::Verification => self.effect?.verification?,
        };
        let plan = planned.list().get(index)?;
        let peaks = &mut self.peaks;
        peaks.peak_allocated_bytes = peaks.peak_allocated_bytes.max(plan.figures.peak_allocated_bytes);
        peaks.peak_reserved_bytes = peaks.peak_reserved_bytes.max(plan.figures.peak_reserved_bytes);
        let Figures { peak_allocated_bytes, peak_reserved_bytes, .. } = *peaks;
        Some((Figures { peak_allocated_bytes, peak_reserved_bytes, ..plan.figures }, &plan.trace))
    }

    /// The first difference from the plan, if any.
    pub fn divergence(&self) -> Option<&Divergence> {
        self.diverged.as_ref().map(|(divergence, _)| divergence)
    }

    /// Allocations of a step's graph that outlived the step, if any.
    pub fn outlived(&self) -> Option<&Outlived> {
        self.graph.outlived()
    }

    /// Starts to write the traces, unless there is no file or they are written already.
    ///
    /// # Errors
    /// No thread for it.
    fn write(&mut self) -> Result<()> {
        let Some((rank, path)) = self.file.clone() else { return Ok(()) };
        let planned = self.planned.as_ref().and_then(|planned| planned.steady());
        let steady = TracePair::new(self.steady.clone(), planned.map(|part| StepTrace::clone(&part.trace)));
        let diverged = self.diverged.as_ref().map(|(_, traces)| traces.clone());
        let traces = RankTraces { rank, steady, diverged };
        self.is_begun = true;
        self.writing = Some(Writing::start(traces, path, self.writing.take())?);
        Ok(())
    }

    /// Returns the write of the traces, started if it was not yet; `None` without a file.
    ///
    /// # Errors
    /// No thread for it.
    pub fn written(&mut self) -> Result<Option<Writing>> {
        if !self.is_begun {
            self.write()?;
        }
        Ok(self.writing.take())
    }

    /// Gathers the differences of all ranks on rank 0; the others get none.
    pub fn gather(&self, control: &mut dyn ControlChannel) -> Result<Vec<Findings>> {
        let mut outlived = self.graph.outlived().cloned();
        if let Some(outlived) = &mut outlived {
            outlived.kept =
                LiveSet { holdings: outlived.kept.holdings.iter().take(REPORTED).cloned().collect() };
        }
        let divergence = self.divergence().cloned();
        let own = serde_json::to_vec(&Findings { divergence, outlived })?;
        let all = control.gather(0, &own)?.unwrap_or_default();
        all.iter().map(|findings| Ok(serde_json::from_slice(findings)?)).collect()
    }
}

/// Path of a rank's traces in a run directory.
pub fn traces_path(run_dir: &Path, rank: usize) -> PathBuf {
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
