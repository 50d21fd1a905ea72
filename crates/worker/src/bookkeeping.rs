//! Records of a rank's steps: status, phase times, hooks, hashes, verification and the comparison
//! with the plan.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use autograd::Observer;
use device::Mark;
use parallel::pipeline::Skipped;
use planned::{PlannedParts, Watch};
use telemetry::GpuMonitor;
use telemetry::status::Status;

use crate::engine::Engine;
use crate::error::Result;
use crate::feed::observation::Marks;
use crate::observers::account::Account;
use crate::observers::hooks::Moments;
use crate::observers::ranges::OperatorRanges;
use crate::observers::tensor_hashes::TensorHashes;
use crate::phases::Phases;
use crate::verification::Verification;

/// Records of a rank's steps.
pub(crate) struct Bookkeeping {
    /// Memory that the driver reports as used, by cause.
    pub(crate) account: Account,
    /// Times of the phases of steps.
    pub(crate) phases: Phases,
    /// Times at which each part of the last step's actions began, recorded only for benchmarks.
    pub(crate) marks: Option<Rc<RefCell<Marks>>>,
    /// Time at which the last of these parts ended.
    pub(crate) passes_ended: Option<Mark>,
    /// Calls the step hook.
    pub(crate) moments: Moments,
    /// Reads the GPU's utilisation.
    pub(crate) gpu: Option<GpuMonitor>,
    /// The rank's status file.
    pub(crate) status: Status,
    /// Compares the run with its plan.
    pub(crate) watch: Watch,
    /// Observers of the operators of training steps.
    pub(crate) observers: Vec<Rc<dyn Observer>>,
    /// Hashes of the tensors of steps, if hashes or a tensor hook are configured.
    pub(crate) hashes: Option<TensorHashes>,
    /// Records verified micro-batches, if verification is configured.
    pub(crate) verification: Option<Verification>,
    /// Totals of the repeated micro-batches that the executor skipped.
    pub(crate) skipped: Skipped,
}

impl Bookkeeping {
    /// Creates the records before the first step. Allocates the memory for verification.
    pub(crate) fn new(engine: &Engine, planned: Option<Arc<PlannedParts>>) -> Result<Self> {
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
            watch: Watch::new(planned, setup.first_step(), setup.calendar()),
            observers: ranges.into_iter().collect(),
            hashes: TensorHashes::new((device, grid), config.telemetry.hashes, setup.tensor_hook.clone()),
            verification: Verification::new(device, config.train.verify_every)?,
            skipped: Skipped::default(),
        })
    }
}
