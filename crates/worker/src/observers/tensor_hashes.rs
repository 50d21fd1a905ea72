//! Hashes of a step's tensors, for comparing runs, and the user hook that sees these tensors.
//!
//! The hash of a sharded tensor is the sum of its shards' hashes ([`tensor::ops::hash`]). Tensors are copied
//! to the host to be hashed, so a hashed step waits for its device.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use autograd::{Call, Direction, Observer, ObserverError};
use collective::{Axis, ControlChannel, RankGrid};
use device::{Device, Label};
use serde::{Deserialize, Serialize};
use telemetry::hashes::{HashedArray, HashedStep, Section};
use tensor::Tensor;
use tensor::ops::hash;

use crate::error::{Result, WorkerError};

/// Identifies a tensor of a step, which has just been computed.
#[derive(Clone, Copy, Debug)]
pub struct TensorSite<'a> {
    /// The rank.
    pub rank: usize,
    /// The step, from 1.
    pub step: u64,
    /// The part of the step.
    pub section: Section,
    /// Index of the micro-batch in the run, for activations and their gradients.
    pub micro_batch: Option<u64>,
    /// Path of the module.
    pub module: &'a str,
    /// The operator; empty for weights, gradients and optimizer state.
    pub operator: &'a str,
    /// Name of the tensor.
    pub name: &'a str,
}

pub(crate) type Seen = std::result::Result<(), ObserverError>;
type See = dyn Fn(&TensorSite<'_>, &Tensor) -> Seen + Send + Sync;

/// A function that sees, in every training step, the tensors that `telemetry.hashes` hashes: weights and
/// optimizer state before the step, outputs and input gradients of operators, and summed gradients. It may
/// change their values to simulate a hardware fault; a hook that only reads changes no bit.
#[derive(Clone)]
pub struct TensorHook(Arc<See>);

impl TensorHook {
    /// Returns a hook that calls `see`. An error of `see` ends the run.
    pub fn new(see: impl Fn(&TensorSite<'_>, &Tensor) -> Seen + Send + Sync + 'static) -> Self {
        TensorHook(Arc::new(see))
    }
}

impl fmt::Debug for TensorHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TensorHook")
    }
}

/// Sort key of an array within a step: (section, micro-batch, stage, shard, index). Ranks with arrays of the
/// same key hold copies of one array, or shards of it that begin at different elements.
pub(crate) type Order = (Section, u64, u64, u64, u64);

/// Identifies the shard of activations that a rank computes: (coordinate, size) along the tensor and context
/// axes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationShard {
    tensor: (usize, usize),
    context: (usize, usize),
}

impl ActivationShard {
    /// The shard of a rank that computes whole activations.
    pub(crate) const WHOLE: Self = ActivationShard { tensor: (0, 1), context: (0, 1) };

    /// Returns the shard of a rank.
    pub(crate) fn of_rank(grid: &RankGrid) -> Self {
        let [tensor, context] =
            [Axis::Tensor, Axis::Context].map(|axis| (grid.coordinate(axis), grid.size(axis)));
        ActivationShard { tensor, context }
    }

    /// Returns the number of a call's shard, and the text appended to array names. For one sequence shard,
    /// both are the same on every grid.
    fn of_call(self, call: &Call) -> (u64, String) {
        let (context, of_context) = match (call.piece, self.context) {
            (Some(piece), _) => (1 + piece as u64, format!(", piece {piece}")),
            (None, (_, ..=1)) => (0, String::new()),
            (None, (rank, size)) => (1 << 16 | rank as u64, format!(", context rank {rank} of {size}")),
        };
        match self.tensor {
            (_, ..=1) => (context, of_context),
            (rank, size) => {
                (context << 32 | (1 + rank as u64), format!("{of_context}, tensor rank {rank} of {size}"))
            }
        }
    }
}

/// The hash of an array or of one shard.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HashedShard {
    order: Order,
    /// The description of the array; its hash is not set.
    array: HashedArray,
    /// Index of the shard's first element.
    start: usize,
    hash: u64,
}

struct State {
    device: Device,
    shard: ActivationShard,
    /// Steps between hashed steps; 0: no step is hashed.
    every: u64,
    hook: Option<TensorHook>,
    /// The step, from 1.
    step: Cell<u64>,
    parts: RefCell<Vec<HashedShard>>,
    /// Module paths by label.
    modules: RefCell<BTreeMap<Label, String>>,
}

/// Hashes the tensors of a worker's steps, and shows them to the user's hook.
#[derive(Clone)]
pub(crate) struct TensorHashes(Rc<State>);

impl TensorHashes {
    /// Returns the hasher of every `every`th step of a rank; `None` if there is neither hashing nor a hook.
    pub(crate) fn new(
        (device, grid): (&Device, &RankGrid),
        every: u64,
        hook: Option<TensorHook>,
    ) -> Option<Self> {
        if device.is_meta() || (every == 0 && hook.is_none()) {
            return None;
        }
        let (step, parts, modules) = Default::default();
        let device = device.clone();
        let shard = ActivationShard::of_rank(grid);
        Some(TensorHashes(Rc::new(State { device, shard, every, hook, step, parts, modules })))
    }

    /// Begins step `step`, counted from 1.
    pub(crate) fn begin(&self, step: u64) {
        self.0.step.set(step);
        self.0.parts.borrow_mut().clear();
    }

    fn is_hashed(&self) -> bool {
        self.0.every > 0 && self.0.step.get().is_multiple_of(self.0.every)
    }

    /// Returns an observer that hashes the results of a pass through `stage`.
    pub(crate) fn of_stage(&self, stage: usize) -> Rc<dyn Observer> {
        stage_observer(self.clone(), stage, self.0.shard)
    }

    /// Hashes the array `name` of the parameter `of` or of its shard. `tensor` has the elements from `start`
    /// on. `part` and `order` sort the arrays of a section.
    pub(crate) fn array(
        &self,
        section: Section,
        ([part, order], name, of): ([usize; 2], &str, &str),
        start: usize,
        tensor: &Tensor,
    ) -> Result<()> {
        let module = of.rsplit_once('.').map_or("", |(module, _)| module);
        let array = array(section, None, module, "", name);
        self.see((section, 0, 0, part as u64, order as u64), array, start, tensor).map_err(WorkerError::Hook)
    }

    fn module(&self, label: Label) -> String {
        let name = || module_name(&self.0.device, label);
        self.0.modules.borrow_mut().entry(label).or_insert_with(name).clone()
    }

    /// Shows a tensor to the hook, and hashes it in a hashed step.
    fn see(
        &self,
        order: Order,
        array: HashedArray,
        start: usize,
        tensor: &Tensor,
    ) -> std::result::Result<(), ObserverError> {
        if let Some(TensorHook(see)) = &self.0.hook {
            let site = TensorSite {
                rank: self.0.device.rank(),
                step: self.0.step.get(),
                section: array.section,
                micro_batch: array.micro_batch,
                module: &array.module,
                operator: &array.operator,
                name: &array.array,
            };
            see(&site, tensor)?;
        }
        if self.is_hashed() {
            let hash = hash::of_part(tensor, start)?;
            self.0.parts.borrow_mut().push(HashedShard { order, array, start, hash });
        }
        Ok(())
    }

    /// Returns, on rank 0, the hashes of the step that has just run; `None` if it was not hashed. Every rank
    /// must call this.
    pub(crate) fn gather(&self, control: &mut dyn ControlChannel) -> Result<Option<HashedStep>> {
        if !self.is_hashed() {
            return Ok(None);
        }
        let step = self.0.step.get();
        let own = self.0.parts.take();
        let unreadable = |rank, error: serde_json::Error| WorkerError::Rank {
            rank,
            reason: format!("its hashes cannot be read: {error}"),
        };
        let own = serde_json::to_vec(&own).map_err(|error| unreadable(control.rank(), error))?;
        let Some(all) = control.gather(0, &own)? else { return Ok(None) };
        let decode = |(rank, bytes): (usize, &Vec<u8>)| -> Result<Vec<HashedShard>> {
            serde_json::from_slice(bytes).map_err(|error| unreadable(rank, error))
        };
        let ranks = all.iter().enumerate().map(decode).collect::<Result<Vec<_>>>()?;
        Ok(Some(HashedStep { step, arrays: joined(step, ranks) }))
    }
}

/// Merges the hashes of all ranks, in the order of the computation. If copies of a shard differ from the
/// first rank's, logs it and changes the array's hash.
fn joined(step: u64, ranks: Vec<Vec<HashedShard>>) -> Vec<HashedArray> {
    let mut arrays: BTreeMap<Order, (HashedArray, BTreeMap<usize, u64>)> = BTreeMap::new();
    for (rank, parts) in ranks.into_iter().enumerate() {
        for HashedShard { order, array, start, hash } in parts {
            let (entry, shards) = arrays.entry(order).or_insert_with(|| (array, BTreeMap::new()));
            let first = *shards.entry(start).or_insert(hash);
            if first != hash {
                tracing::warn!("step {step}: rank {rank} has other bits than the ranks before it in {entry}");
                shards.insert(start, first.wrapping_add(hash::mixed(rank as u64, hash)));
            }
        }
    }
    let whole = |(array, shards): (HashedArray, BTreeMap<usize, u64>)| {
        let sum = shards.into_values().fold(0_u64, u64::wrapping_add);
        HashedArray { hash: format!("{sum:016x}"), ..array }
    };
    arrays.into_values().map(whole).collect()
}

/// Receives the results of operators in the order of their computation.
pub(crate) trait SeeArray {
    /// Returns the path of a module.
    fn module(&self, label: Label) -> String;

    /// Receives an array's description, without a hash, and its tensor.
    fn see(&self, order: Order, array: HashedArray, tensor: &Tensor) -> Seen;
}

impl SeeArray for TensorHashes {
    fn module(&self, label: Label) -> String {
        TensorHashes::module(self, label)
    }

    fn see(&self, order: Order, array: HashedArray, tensor: &Tensor) -> Seen {
        TensorHashes::see(self, order, array, 0, tensor)
    }
}

/// Returns an observer of a pass through `stage` that passes operators' results to `seer`. `shard` is the
/// shard that this rank computes.
pub(crate) fn stage_observer(
    seer: impl SeeArray + 'static,
    stage: usize,
    shard: ActivationShard,
) -> Rc<dyn Observer> {
    Rc::new(StageArrays { seer, stage: stage as u64, shard, calls: RefCell::default() })
}

/// Returns the path of a module.
pub(crate) fn module_name(device: &Device, label: Label) -> String {
    device.with_allocator(|allocator| allocator.labels().name(label).to_owned())
}

/// Observes the passes of one micro-batch through one stage.
struct StageArrays<S> {
    seer: S,
    stage: u64,
    shard: ActivationShard,
    /// Number of tensors seen so far, by section and shard.
    calls: RefCell<BTreeMap<(Section, u64), u64>>,
}

impl<S> StageArrays<S> {
    /// Returns the sort key of a call's next result; `None` if other calls already cover its results.
    fn order(&self, call: &Call, shard: u64) -> Option<Order> {
        // Backward passes through the stages in reverse.
        let (section, stage) = match call.direction {
            Direction::Forward => (Section::Forward, self.stage),
            Direction::Backward if call.operator != autograd::RECOMPUTE => {
                (Section::Backward, u64::MAX - self.stage)
            }
            Direction::Recompute | Direction::Backward | Direction::BackwardWeight => return None,
        };
        let mut calls = self.calls.borrow_mut();
        let number = calls.entry((section, shard)).or_insert(0);
        *number += 1;
        Some((section, call.micro_batch, stage, shard, *number))
    }
}

impl<S: SeeArray> Observer for StageArrays<S> {
    fn before(&self, _: &Call) -> std::result::Result<(), ObserverError> {
        Ok(())
    }

    fn after(&self, call: &Call, results: &[Option<&Tensor>]) -> std::result::Result<(), ObserverError> {
        let kind = if call.direction == Direction::Forward { "output" } else { "gradient of input" };
        let (shard, suffix) = self.shard.of_call(call);
        for (number, tensor) in results.iter().enumerate() {
            let (Some(tensor), Some(order)) = (tensor, self.order(call, shard)) else { continue };
            let kind = if results.len() > 1 { format!("{kind} {number}") } else { kind.to_owned() };
            let module = self.seer.module(call.module);
            let name = format!("{kind}{suffix}");
            let array = array(order.0, Some(call.micro_batch), &module, call.operator, &name);
            self.seer.see(order, array, tensor)?;
        }
        Ok(())
    }
}

/// Returns an array's description without a hash.
pub(crate) fn array(
    section: Section,
    micro_batch: Option<u64>,
    module: &str,
    operator: &str,
    name: &str,
) -> HashedArray {
    HashedArray {
        section,
        micro_batch,
        module: module.to_owned(),
        operator: operator.to_owned(),
        array: name.to_owned(),
        hash: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_of_all_ranks_are_joined() {
        let part = |order: u64, start, hash| HashedShard {
            order: (Section::Weights, 0, 0, 0, order),
            array: array(Section::Weights, None, "m", "", "m.weight"),
            start,
            hash,
        };
        let hashes = |ranks| joined(1, ranks).into_iter().map(|array| array.hash).collect::<Vec<_>>();
        let sharded = hashes(vec![vec![part(1, 0, 5), part(0, 0, 1)], vec![part(1, 8, 6)]]);
        assert_eq!(sharded, ["0000000000000001", "000000000000000b"]);
        let copies = hashes(vec![vec![part(0, 0, 1)], vec![part(0, 0, 1)]]);
        assert_eq!(copies, ["0000000000000001"]);
        assert_ne!(hashes(vec![vec![part(0, 0, 1)], vec![part(0, 0, 2)]]), copies);
    }
}
