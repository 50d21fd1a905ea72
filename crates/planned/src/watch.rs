//! Compares a run with its plan, part by part. The first part whose memory differs is reported, with the
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

/// Differences between one rank's run and its plan.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Findings {
    /// The first part whose memory differed from the plan.
    pub divergence: Option<Divergence>,
    /// Allocations of a step's graph that outlived the step.
    pub outlived: Option<Outlived>,
}

/// Maximum number of allocations in a report.
const REPORTED: usize = 32;

/// Compares one rank's run with its plan. While a part matches the plan, only the allocator's counters are
/// read.
#[derive(Debug, Default)]
pub struct Watch {
    planned: Option<Arc<PlannedParts>>,
    calendar: Calendar,
    /// Index of the current memory layout, if the plan has effects of steps.
    layout: usize,
    /// Effect of the current step.
    effect: Option<StepEffect>,
    /// Highest peaks of the planned parts so far.
    peaks: Figures,
    handed_out: u64,
    graph: GraphCheck,
    /// Step whose trace is kept.
    sample: u64,
    steady: Option<StepTrace>,
    diverged: Option<(Divergence, TracePair)>,
    /// The rank, and the path of its trace file.
    file: Option<(usize, PathBuf)>,
    /// Whether traces have started to be written.
    is_begun: bool,
    writing: Option<Writing>,
}

/// Writes traces to their file on a separate thread, so that no step waits for a disk. Dropping it waits for
/// the end.
#[derive(Debug)]
pub struct Writing(Option<JoinHandle<Result<()>>>);

impl Writing {
    /// Starts writing once an earlier write has ended.
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
    /// The file cannot be written.
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
    /// Creates a watch for a run of `calendar` from step `first` (from 0).
    pub fn new(planned: Option<Arc<PlannedParts>>, first: u64, calendar: Calendar) -> Self {
        let steady = planned.as_ref().and_then(|planned| planned.steady()).map(|part| part.step);
        // Without a plan, the third step is traced.
        let sample = steady.unwrap_or_else(|| (first + 3).min(calendar.steps));
        Watch { planned, sample, calendar, ..Watch::default() }
    }

    /// Sets the run directory, in which the trace file is written as soon as traces exist, so that a killed
    /// run leaves them.
    pub fn write_to(&mut self, rank: usize, run_dir: &Path) {
        self.file = Some((rank, traces_path(run_dir, rank)));
    }

    /// Checks the part that `device` has just completed; `step` counts from 1.
    ///
    /// # Errors
    /// The trace file cannot be written.
    pub fn check(&mut self, device: &Device, part: RunPart, step: u64) -> Result<()> {
        let before = self.handed_out;
        let (figures, handed_out) = device.with_allocator(|allocator| {
            let statistics = allocator.statistics();
            (Figures::from_statistics(statistics, before), statistics.handed_out())
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

    /// Returns the planned part that follows the previous one, according to the effects of planned steps;
    /// `None` if unknown.
    fn follow<'a>(
        &mut self,
        planned: &'a PlannedParts,
        part: RunPart,
        step: u64,
    ) -> Option<(Figures, &'a Arc<StepTrace>)> {
        let kind = self.calendar.kind(step.saturating_sub(1));
        if part == RunPart::Verification || part == RunPart::Step && !kind.verifies {
            self.effect = planned.effects.as_ref().and_then(|effects| effects.effect(self.layout, kind));
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

    /// Returns the first difference from the plan, if any.
    pub fn divergence(&self) -> Option<&Divergence> {
        self.diverged.as_ref().map(|(divergence, _)| divergence)
    }

    /// Returns allocations of a step's graph that outlived the step, if any.
    pub fn outlived(&self) -> Option<&Outlived> {
        self.graph.outlived()
    }

    /// Starts writing the traces, unless there is no file or they are already written.
    ///
    /// # Errors
    /// No thread can be started.
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

    /// Returns the write of the traces, starting it if necessary; `None` without a file.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn written(&mut self) -> Result<Option<Writing>> {
        if !self.is_begun {
            self.write()?;
        }
        Ok(self.writing.take())
    }

    /// Gathers the differences of all ranks on rank 0; other ranks get an empty list.
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

/// Returns the path of a rank's trace file in a run directory.
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
