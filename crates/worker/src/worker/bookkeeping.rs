//! Records of a rank's steps: status, phases, hooks, hashes, verification and the comparison with the plan.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use autograd::{Mode, Observer};
use device::Mark;
use parallel::pipeline::Skipped;
use telemetry::GpuMonitor;
use telemetry::status::Status;
use telemetry::step_trace::RunPart;

use super::Worker;
use crate::calendar::Calendar;
use crate::engine::Engine;
use crate::error::Result;
use crate::feed::observation::{Marks, Observation};
use crate::observers::account::Account;
use crate::observers::hooks::{Moment, Moments};
use crate::observers::ranges::OperatorRanges;
use crate::observers::tensor_hashes::TensorHashes;
use crate::phases::Phases;
use crate::verification::Verification;
use crate::watch::Watch;
use crate::watch::planned::PlannedParts;

/// Records of a rank's steps.
pub(super) struct Bookkeeping {
    /// The driver's account of the device.
    pub(super) account: Account,
    /// Times of the phases of steps.
    pub(super) phases: Phases,
    /// Times at which the parts of the last step's actions began, if a benchmark asks for them.
    pub(super) marks: Option<Rc<RefCell<Marks>>>,
    /// The time at which the last of these parts ended.
    pub(super) passes_ended: Option<Mark>,
    /// Calls the hook that sees every step.
    pub(super) moments: Moments,
    /// Reads the load of the rank's GPU.
    pub(super) gpu: Option<GpuMonitor>,
    /// The rank's status file.
    pub(super) status: Status,
    /// Compares the run with its plan.
    pub(super) watch: Watch,
    /// Observers of the operators of training steps.
    pub(super) observers: Vec<Rc<dyn Observer>>,
    /// Hashes of the tensors of steps, if something looks at them.
    pub(super) hashes: Option<TensorHashes>,
    /// Records micro-batches that are verified, if there are verifications.
    pub(super) verification: Option<Verification>,
    /// Totals of the micro-batches that the executor has skipped.
    pub(super) skipped: Skipped,
}

impl Bookkeeping {
    /// Returns the records of a rank before its first step, and the slots of verifications.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(engine: &Engine, planned: Option<Arc<PlannedParts>>) -> Result<Self> {
        let Engine { setup, device, grid, recorder, .. } = engine;
        let config = &setup.config;
        let ranges = device::nvtx::is_attached().then(|| Rc::new(OperatorRanges) as Rc<dyn Observer>);
        Ok(Bookkeeping {
            account: Account::default(),
            phases: Phases::new(device, recorder),
            marks: None,
            passes_ended: None,
            moments: Moments::new(setup.step_hook.clone(), device),
            gpu: device.uuid().and_then(|uuid| GpuMonitor::start(&uuid)),
            status: Status::none(),
            watch: Watch::new(planned, setup.first_step(), Calendar::new(config)),
            observers: ranges.into_iter().collect(),
            hashes: TensorHashes::new((device, grid), config.telemetry.hashes, setup.tensor_hook.clone()),
            verification: Verification::new(device, config.train.verify_every)?,
            skipped: Skipped::default(),
        })
    }
}

impl Worker {
    /// Begins the records of step `step`.
    pub(super) fn begin_step(&mut self, step: u64) -> Result<()> {
        self.records.status.step(step, || self.engine.device.statistics());
        self.begin_part(RunPart::Step, step + 1);
        self.rehearse_repeatable(step)?;
        self.records.phases.begin()?;
        self.hash_state(step + 1)?;
        self.records.moments.train(true);
        self.begin_verified(step)
    }

    /// Ends the records of step `step`, and empties the cache if that is due.
    pub(super) fn end_step(&mut self, step: u64) -> Result<()> {
        self.graphs.end_step(&self.engine.device);
        self.records.moments.at(Moment::AfterUpdate, None);
        self.records.phases.end()?;
        self.records.moments.train(false);
        if Calendar::new(&self.engine.setup.config).empties_after(step) {
            self.empty_cache(step)?;
        }
        if self.records.account.reads_next() && self.engine.setup.config.parallel.shares_gpu() {
            // The driver's account is of all ranks on the GPU, so that none may be in its first steps.
            self.engine.groups.control().barrier()?;
        }
        self.records.account.after_step(&self.engine.device)
    }

    /// Marks the beginning of a part of the run in the allocator's history.
    pub(crate) fn begin_part(&self, part: RunPart, step: u64) {
        self.engine.device.set_step(u32::try_from(step).unwrap_or(u32::MAX));
        self.engine.device.with_allocator(|allocator| allocator.mark(part.name(), step));
    }

    /// Returns the observers of the passes of a step, which is trained or rehearsed.
    pub(super) fn observation(&self, mode: Mode) -> Observation {
        let records = &self.records;
        let mut observation = Observation::new(&self.engine.device, &records.phases);
        observation.is_step = true;
        observation.marks = records.marks.clone();
        if records.moments.has_hook() {
            observation.names = self.names_by_use();
            observation.moments = Some(records.moments.clone());
        }
        if mode == Mode::Train {
            observation.observers = records.observers.clone();
            observation.hashes = records.hashes.clone();
            observation.verification = records.verification.clone();
        }
        observation
    }
}
