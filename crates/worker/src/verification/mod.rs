//! Verifies micro-batches: everything that a pass computes is hashed, once in the step and once in a
//! repetition on another rank.
//!
//! The device accumulates hashes in slots that are allocated once, so a verified step allocates what every
//! step does and waits for nothing.

mod planted;
mod report;
mod runs;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use autograd::{Observer, Target, UseId};
use collective::{Axis, ControlChannel, RankGrid};
use device::{Category, DType, Device, Label, Request};
use telemetry::hashes::{HashedArray, Section};
use telemetry::host_name;
use tensor::Tensor;
use tensor::ops::hash;

use crate::error::{Result, WorkerError};
use crate::observers::tensor_hashes::{
    ActivationShard, Order, SeeArray, Seen, array, module_name, stage_observer,
};
use planted::PlantedFlip;
pub(crate) use report::report;
pub(crate) use runs::{RankRuns, Round, VerificationRun, VerifiedArray};

/// Maximum number of hashes for one micro-batch on one rank; further ones are added to the last slot.
const SLOTS: usize = 1 << 14;

/// Arrays and hashes of one run of a micro-batch.
struct Recording {
    /// Hash sums on the device: u32 `[SLOTS, WORDS]`.
    sums: Tensor,
    arrays: RefCell<Vec<(Order, HashedArray)>>,
}

struct State {
    device: Device,
    recordings: [Recording; 2],
    /// The current run, and the index of its micro-batch over all steps and ranks.
    now: Cell<Option<(VerificationRun, u64)>>,
    planted: Option<PlantedFlip>,
    step: Cell<u64>,
    /// Module paths by label.
    modules: RefCell<BTreeMap<Label, String>>,
    /// Names of parameters, by stage and use.
    names: RefCell<BTreeMap<usize, Vec<String>>>,
}

/// Records the runs of verified micro-batches on one rank.
#[derive(Clone)]
pub(crate) struct Verification(Rc<State>);

impl Verification {
    /// Allocates the slots on `device`; `None` if verification is off.
    pub(crate) fn new(device: &Device, every: u64) -> Result<Option<Self>> {
        if every == 0 {
            return Ok(None);
        }
        let recording = || -> Result<Recording> {
            let request = Request::new(Category::Other, "verification");
            let sums = Tensor::zeros(device, [SLOTS * hash::WORDS], DType::U32, request)?;
            Ok(Recording { sums, arrays: RefCell::default() })
        };
        Ok(Some(Verification(Rc::new(State {
            device: device.clone(),
            recordings: [recording()?, recording()?],
            now: Cell::new(None),
            planted: PlantedFlip::of_process(device),
            step: Cell::new(0),
            modules: RefCell::default(),
            names: RefCell::default(),
        }))))
    }

    /// Begins a run of micro-batch `number` in or before step `step`, counted from 0. `names` are the names
    /// of parameters by stage and use.
    pub(crate) fn begin(
        &self,
        (run, step, number): (VerificationRun, u64, u64),
        names: BTreeMap<usize, Vec<String>>,
    ) -> Result<()> {
        let recording = self.recording(run);
        recording.sums.zero()?;
        recording.arrays.borrow_mut().clear();
        self.0.names.replace(names);
        self.0.step.set(step);
        self.0.now.set(Some((run, number)));
        Ok(())
    }

    /// Ends the current run.
    pub(crate) fn end(&self) {
        self.0.now.set(None);
    }

    /// Returns whether the current run is of micro-batch `number`.
    pub(crate) fn is_of(&self, number: u64) -> bool {
        self.0.now.get().is_some_and(|(_, verified)| verified == number)
    }

    /// Returns an observer of a pass of micro-batch `number` through `stage`, if it is being verified.
    pub(crate) fn of_stage(&self, stage: usize, number: u64) -> Option<Rc<dyn Observer>> {
        self.is_of(number).then(|| stage_observer(self.clone(), stage, ActivationShard::WHOLE))
    }

    /// Returns an observer that hashes each gradient of a pass of micro-batch `number` through `stage` once
    /// it is complete.
    pub(crate) fn gradients(&self, stage: usize, number: u64) -> VerifiedGradients {
        VerifiedGradients { verification: self.clone(), stage, number, targets: BTreeMap::new() }
    }

    fn recording(&self, run: VerificationRun) -> &Recording {
        // The third run takes the slots of the repetition, which have been read.
        &self.0.recordings[usize::from(run != VerificationRun::Step)]
    }

    /// Returns the arrays of a run, in the order of an undivided backward pass. Waits for the device.
    pub(crate) fn arrays(&self, run: VerificationRun) -> Result<Vec<VerifiedArray>> {
        let recording = self.recording(run);
        let words = recording.sums.to_vec::<u32>()?;
        let arrays = recording.arrays.borrow();
        let with_hash = |(number, (order, array)): (usize, &(Order, HashedArray))| {
            let first = slot(number) * hash::WORDS;
            let hash = words.get(first..first + hash::WORDS).map_or(0, hash::value_of);
            VerifiedArray { order: *order, array: array.clone(), hash }
        };
        let mut all: Vec<_> = arrays.iter().enumerate().map(with_hash).collect();
        // Schedules compute gradients of weights at different times.
        all.sort_by_key(|array| array.order);
        Ok(all)
    }

    /// Returns this rank's runs, for [`report`].
    pub(crate) fn runs(&self, arrays: [Vec<VerifiedArray>; 3]) -> RankRuns {
        let device = &self.0.device;
        let name = &device.description().name;
        let device = device.uuid().map_or_else(|| name.clone(), |uuid| format!("{name}, {uuid}"));
        RankRuns { host: host_name(), device, runs: arrays }
    }
}

/// Returns the slot of a run's result `number`.
fn slot(number: usize) -> usize {
    number.min(SLOTS - 1)
}

impl SeeArray for Verification {
    fn module(&self, label: Label) -> String {
        let name = || module_name(&self.0.device, label);
        self.0.modules.borrow_mut().entry(label).or_insert_with(name).clone()
    }

    fn see(&self, order: Order, array: HashedArray, tensor: &Tensor) -> Seen {
        let Some((run, _)) = self.0.now.get() else { return Ok(()) };
        let recording = self.recording(run);
        let mut arrays = recording.arrays.borrow_mut();
        if let Some(planted) = &self.0.planted {
            planted.apply(run, self.0.step.get(), arrays.len(), (&array, tensor))?;
        }
        let sum = recording.sums.view(slot(arrays.len()) * hash::WORDS, [hash::WORDS])?;
        hash::add_to(&sum, tensor)?;
        arrays.push((order, array));
        Ok(())
    }
}

/// Hashes the gradients of a verified pass.
pub(crate) struct VerifiedGradients {
    verification: Verification,
    stage: usize,
    number: u64,
    /// Gradients being computed.
    targets: BTreeMap<UseId, Tensor>,
}

impl VerifiedGradients {
    /// Records the tensor into which a gradient is computed.
    pub(crate) fn begin(&mut self, use_id: UseId, target: &Target) {
        self.targets.insert(use_id, target.tensor.clone());
    }

    /// Hashes a complete gradient before it is added to others.
    pub(crate) fn end(&mut self, use_id: UseId) -> autograd::Result<()> {
        let Some(tensor) = self.targets.remove(&use_id) else { return Ok(()) };
        let name = {
            let names = self.verification.0.names.borrow();
            let name = names.get(&self.stage).and_then(|names| names.get(use_id.0 as usize));
            name.cloned().unwrap_or_default()
        };
        let module = name.rsplit_once('.').map_or("", |(module, _)| module);
        let array = array(Section::Gradients, Some(self.number), module, "", &name);
        // Backward passes through the stages in reverse.
        let order = (Section::Gradients, self.number, u64::MAX - self.stage as u64, 0, use_id.0.into());
        self.verification.see(order, array, &tensor).map_err(autograd::AutogradError::Hook)
    }
}

/// Returns a single hash over a run's arrays.
fn digest(arrays: &[VerifiedArray]) -> u64 {
    let terms = arrays.iter().zip(1..).map(|(array, number)| hash::mixed(number, array.hash));
    terms.fold(hash::mixed(0, arrays.len() as u64), u64::wrapping_add)
}

/// Returns whether every repetition matched the step's results. Every rank must call this; all return the
/// same.
pub(crate) fn agree(
    control: &mut dyn ControlChannel,
    grid: &RankGrid,
    round: &Round,
    [step, repetition]: [&[VerifiedArray]; 2],
) -> Result<bool> {
    let own = [digest(step).to_le_bytes(), digest(repetition).to_le_bytes()].concat();
    let all = control.all_gather(&own)?;
    let differs = |rank: usize| -> Result<bool> {
        let seen = grid.seen_from(rank)?;
        let source = round.source(seen.coordinate(Axis::Data), VerificationRun::Repetition);
        let of_step = all.get(seen.rank_at(&[(Axis::Data, source)])).and_then(|bytes| bytes.get(..8));
        Ok(of_step != all.get(rank).and_then(|bytes| bytes.get(8..)))
    };
    (0..all.len()).try_fold(true, |agrees, rank| Ok(agrees && !differs(rank)?))
}

/// Gathers the runs of all ranks on every rank.
///
/// # Errors
/// The transport fails, or runs cannot be decoded.
pub(crate) fn gather(control: &mut dyn ControlChannel, own: &RankRuns) -> Result<Vec<RankRuns>> {
    let unreadable = |rank, error: serde_json::Error| WorkerError::Rank {
        rank,
        reason: format!("its hashes cannot be read: {error}"),
    };
    let own = serde_json::to_vec(own).map_err(|error| unreadable(control.rank(), error))?;
    let all = control.all_gather(&own)?;
    let decode = |(rank, bytes): (usize, &Vec<u8>)| {
        serde_json::from_slice(bytes).map_err(|error| unreadable(rank, error))
    };
    all.iter().enumerate().map(decode).collect()
}
