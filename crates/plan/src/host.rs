//! Host memory of a run's process besides its allocators'.

use config::{OptimKind, RunConfig};
use device::DType;
use serde_json::{Value, json};
use worker::Setup;

use crate::roles::Plans;

/// Bytes of the program with its libraries, heap and thread pool, measured on Linux.
const PROGRAM: u64 = 15 << 20;
/// Bytes of a rank's stacks, labels and lists.
const RANK: u64 = 1 << 20;

/// A part of a process's host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPart {
    /// The part's name in words.
    pub name: &'static str,
    /// Number of bytes.
    pub bytes: u64,
}

/// Host memory of the process of rank 0, which needs most, without the memory of GPU drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostUse {
    /// The parts that are not 0.
    pub parts: Vec<HostPart>,
}

impl HostUse {
    /// Host memory of a run whose ranks are threads of one process or (if `together` is false) processes.
    pub fn of(setup: &Setup, plans: &Plans, together: bool) -> Self {
        let ranks = if together { plans.world_size() as u64 } else { 1 };
        let batches = setup.dataset.micro_batch_bytes(setup.config.data.prefetch);
        let events = plans.roles().iter().map(|plan| plan.parts.events_to_keep()).max().unwrap_or(0) as u64;
        let history = (events.max(setup.config.memory.history)) * size_of::<memory::Event>() as u64;
        let traces = plans.roles().iter().map(|plan| plan.parts.trace_bytes()).sum();
        let parts = [
            ("the program", PROGRAM),
            ("its ranks", RANK * ranks),
            ("micro-batches", batches.saturating_mul(ranks)),
            ("events of allocators", history * ranks),
            ("the plan", traces),
            ("the copy for checkpoints", checkpoint_bytes(setup)),
        ];
        let parts = parts.map(|(name, bytes)| HostPart { name, bytes });
        HostUse { parts: parts.into_iter().filter(|part| part.bytes > 0).collect() }
    }

    /// All parts together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add)
    }

    /// Returns the parts under the keys of `plimsoll plan --json`.
    pub(crate) fn to_json(&self) -> Value {
        let part = |part: &HostPart| json!({"name": part.name, "bytes": part.bytes});
        json!({"bytes": self.bytes(), "parts": self.parts.iter().map(part).collect::<Vec<_>>()})
    }
}

/// Bytes of the whole model's state, which rank 0 copies to the host for a checkpoint: master weights and the
/// optimizer's moments, in f32.
fn checkpoint_bytes(setup: &Setup) -> u64 {
    let RunConfig { checkpoint, optim, .. } = &*setup.config;
    let elements: usize = setup.blueprint.sizes().iter().sum();
    let moments = match optim.kind {
        OptimKind::AdamW => 2,
        OptimKind::Sgd => u64::from(optim.momentum > 0.0),
    };
    if checkpoint.is_kept() { DType::F32.bytes() as u64 * elements as u64 * (1 + moments) } else { 0 }
}
