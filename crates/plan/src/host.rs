//! Host memory of a run's processes, outside their allocators.

use std::collections::BTreeMap;
use std::ops::Range;

use collective::kept_bytes;
use config::RunConfig;
use device::host::{AddressLimit, CountedAddresses, HostCapacity};
use device::{Category, DType, Kind};
use parallel::pipeline::StageBoundary;
use serde::Serialize;
use serde_json::{Value, json};
use system::threads;
use telemetry::Statistic;
use telemetry::step_trace::{StepTrace, TraceEvent};
use worker::Setup;
use worker::setup::blueprint::Entry;
use worker::stages::optimizer;

use crate::plan::Plan;
use crate::program;
use crate::roles::Plans;

/// Bytes of a rank's stacks, labels, lists and staging buffers.
const RANK: u64 = 2 << 20;
/// Bytes of MPI's libraries and queues per process, measured with Open MPI 4.1.
const MPI: u64 = 11 << 20;
/// Maximum bytes of packed matmul operands that a thread keeps.
const PACKED: u64 = 3 << 19;
/// Maximum number of threads that a run starts besides its ranks' threads.
const THREADS: u64 = 2;
const THREADS_OF_RANK: u64 = 6;
/// Bytes needed to compress a rank's traces.
const PACKER: u64 = 3 << 17;
/// Names of the parts that do not simply add up over the processes of a host.
const PROGRAM: &str = "the program";
const PLAN: &str = "the plan";
const COPY: &str = "the copy for checkpoints";
const ADDRESSES: &str = "addresses of threads and files";
/// Name of the entry for offloaded tensors.
const OFFLOADED: &str = "host pools";

/// How a run's ranks are executed; the host memory of a process depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankForm {
    /// All ranks are threads of one process.
    Threads,
    /// Each rank is a process.
    Processes {
        /// Whether the processes communicate through MPI.
        mpi: bool,
    },
}

/// One cause of a process's host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostPart {
    /// Name of the cause, for users.
    pub name: &'static str,
    /// Bytes that it takes.
    pub bytes: u64,
}

/// Host memory of the process that needs the most, without the memory of GPU drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostUse {
    /// The nonzero parts.
    pub parts: Vec<HostPart>,
}

impl HostUse {
    /// Returns the host memory of a run with ranks of this form.
    pub fn from_plans(setup: &Setup, plans: &Plans, form: RankForm) -> Self {
        let ranks = if form == RankForm::Threads { plans.world_size() as u64 } else { 1 };
        let batches =
            setup.dataset.micro_batch_bytes(setup.config.data.prefetch, setup.config.masks_padding());
        let events = plans.roles().iter().map(|plan| plan.parts.events_to_keep()).max().unwrap_or(0) as u64;
        // The history's ring buffer, and the copy from which a step's trace is made.
        let history = 2 * events.max(setup.config.memory.history) * size_of::<memory::Event>() as u64;
        let traces = plans.roles().iter().map(|plan| plan.parts.trace_bytes()).sum();
        let parts = [
            (PROGRAM, program::resident_bytes()),
            ("its ranks", RANK * ranks),
            ("MPI", if form == (RankForm::Processes { mpi: true }) { MPI } else { 0 }),
            ("packed operands", packed_bytes(setup, plans)),
            ("messages", message_bytes(setup, plans) * ranks),
            ("micro-batches", batches.saturating_mul(ranks)),
            ("events of allocators", history * ranks),
            (PLAN, traces),
            ("traces of steps", written_bytes(plans) * ranks),
            (OFFLOADED, offloaded_bytes(plans, form)),
            (COPY, checkpoint_bytes(setup, form)),
            ("states in memory", memory_states_bytes(setup, form)),
            (ADDRESSES, address_bytes(setup, ranks)),
        ];
        let parts = parts.map(|(name, bytes)| HostPart { name, bytes });
        HostUse { parts: parts.into_iter().filter(|part| part.bytes > 0).collect() }
    }

    /// Returns the combined host memory of the processes of `ranks` on one host. The program's pages are
    /// shared and counted once; everything else is counted for each process.
    pub(crate) fn of_processes(setup: &Setup, plans: &Plans, (ranks, mpi): (&[usize], bool)) -> Self {
        let form = RankForm::Processes { mpi };
        let count = ranks.len() as u64;
        let one = Self::from_plans(setup, plans, form);
        let own = |rank: usize| plans.by_rank().find(|(other, _)| *other == rank).map(|(_, plan)| plan);
        // Rank 0 plans all ranks; every other rank plans only itself.
        let planned = |rank: usize| match rank {
            0 => plans.roles().iter().map(|plan| plan.parts.trace_bytes()).sum(),
            _ => own(rank).map_or(0, |plan| plan.parts.trace_bytes()),
        };
        let pool =
            |rank: usize| own(rank).map_or(0, |plan| plan.counters.get(Statistic::PeakHostReservedBytes));
        // Each element of the state is copied by exactly one rank.
        let all_copies = checkpoint_bytes(setup, RankForm::Threads);
        let together = |part: HostPart| HostPart {
            bytes: match part.name {
                PROGRAM => part.bytes,
                PLAN => ranks.iter().map(|rank| planned(*rank)).sum(),
                OFFLOADED => ranks.iter().map(|rank| pool(*rank)).sum(),
                // Addresses are not memory, and are limited for each process separately.
                ADDRESSES => 0,
                COPY => all_copies.min(part.bytes.saturating_mul(count)),
                _ => part.bytes.saturating_mul(count),
            },
            ..part
        };
        HostUse { parts: one.parts.into_iter().map(together).collect() }
    }

    /// Returns the sum of all parts in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add)
    }

    /// Returns the bytes that are offloaded from devices.
    #[must_use]
    pub fn offloaded(&self) -> u64 {
        self.parts.iter().filter(|part| part.name == OFFLOADED).map(|part| part.bytes).sum()
    }

    /// Returns the parts as in `plimsoll plan --json`.
    pub(crate) fn to_json(&self) -> Value {
        json!({"bytes": self.bytes(), "parts": self.parts})
    }
}

/// Returns the resident bytes of a CPU rank's allocator.
pub(crate) fn resident_bytes(setup: &Setup, plan: &Plan) -> u64 {
    let ranks = setup.config.parallel.data as u64;
    // A rank never writes its own shard of the scratch for sums over ranks.
    let scratch = plan.counters.get(Statistic::LiveBytes(Category::Communication));
    let unwritten = if ranks > 1 && !setup.config.memory.preallocate { scratch / ranks } else { 0 };
    plan.parts.resident_bytes().saturating_sub(unwritten)
}

/// Returns the bytes of packed matmul operands. Each thread packs both operands of a matmul; the largest are
/// weights or tensors of a step.
fn packed_bytes(setup: &Setup, plans: &Plans) -> u64 {
    let weights =
        DType::F32.bytes() as u64 * setup.blueprint.sizes().iter().max().copied().unwrap_or(0) as u64;
    let largest = traces(plans).flat_map(|trace| &trace.events).map(allocated).fold(weights, u64::max);
    threads::processors() as u64 * PACKED.min(2 * largest)
}

fn allocated(event: &TraceEvent) -> u64 {
    match event {
        TraceEvent::Allocate { requested, .. } => *requested,
        _ => 0,
    }
}

/// Iterates over the traces of all roles, without the start of the run.
fn traces(plans: &Plans) -> impl Iterator<Item = &StepTrace> {
    plans.roles().iter().flat_map(|plan| plan.parts.list().iter().skip(1)).map(|part| &*part.trace)
}

/// Returns the bytes of the host pools of a process's ranks.
fn offloaded_bytes(plans: &Plans, form: RankForm) -> u64 {
    let pools = plans.by_rank().map(|(_, plan)| plan.counters.get(Statistic::PeakHostReservedBytes));
    match form {
        RankForm::Threads => pools.fold(0, u64::saturating_add),
        RankForm::Processes { .. } => pools.max().unwrap_or(0),
    }
}

/// Returns the bytes of a rank's step trace while it is written: as read, as stored, and as text.
fn written_bytes(plans: &Plans) -> u64 {
    let bytes = |trace: &StepTrace| {
        let StepTrace { owners, held, events, .. } = trace;
        size_of_val(&**owners) + size_of_val(&**held) + size_of_val(&**events)
    };
    PACKER + 3 * traces(plans).map(bytes).max().unwrap_or(0) as u64
}

/// Returns the bytes of a rank's message buffers, on transports over host memory.
fn message_bytes(setup: &Setup, plans: &Plans) -> u64 {
    let boundary = |cut: &StageBoundary| (cut.shape.elements() * cut.dtype.bytes()) as u64;
    let boundaries = setup.blueprint.boundaries.iter().map(boundary).max().unwrap_or(0);
    let scratch = |plan: &Plan| plan.counters.get(Statistic::LiveBytes(Category::Communication));
    let sums = plans.roles().iter().map(scratch).max().unwrap_or(0);
    kept_bytes(boundaries.max(sums))
}

/// Returns the address space that a CPU run reserves without using it, if address space is the process's
/// limit.
fn address_bytes(setup: &Setup, ranks: u64) -> u64 {
    let capacity = HostCapacity::of_process().bytes;
    let limit = AddressLimit::of_process().filter(|limit| limit.bytes == capacity);
    let Some(limit) = limit.filter(|_| setup.placement.description().kind == Kind::Cpu) else { return 0 };
    let program = match limit.counted {
        CountedAddresses::All => program::resident_bytes(),
        // The program's code is not limited.
        CountedAddresses::Data => 0,
    };
    let now = limit.reserved().unwrap_or(0).saturating_sub(program);
    now + (THREADS + THREADS_OF_RANK * ranks) * threads::STACK_BYTES as u64
}

/// Number of in-memory states with files: the newest one, and the one being written.
const STATES: u64 = 2;

/// Returns the bytes of a process's in-memory states, of its copies of another host's states, and of the
/// buffer into which it copies its state first.
fn memory_states_bytes(setup: &Setup, form: RankForm) -> u64 {
    let copies = if form == RankForm::Threads { 1 } else { 2 };
    match setup.config.checkpoint.memory_steps {
        0 => 0,
        _ => (1 + copies * STATES) * checkpoint_bytes(setup, form),
    }
}

/// Returns the bytes of the buffer into which a process copies master weights and optimizer moments for
/// checkpoints. It is allocated at the start and pinned on a GPU. Each element is copied by one rank: ranks
/// as threads copy all of it; for processes, this is the largest share.
fn checkpoint_bytes(setup: &Setup, form: RankForm) -> u64 {
    let RunConfig { checkpoint, .. } = &*setup.config;
    if !(checkpoint.is_kept() || checkpoint.keep_best) {
        return 0;
    }
    let mut by_rank: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for entry in &setup.blueprint.parameters {
        let (stage, parameter) = entry.holders.first().copied().unwrap_or_default();
        let shards = setup.blueprint.shards(stage);
        let stage_rank = setup.blueprint.layout().rank_of(stage);
        let states = optimizer::state_arrays(&setup.config, entry);
        for replica in 0..shards.ranks() {
            let owned = shards.range(replica, parameter);
            let bytes = weight_bytes(setup, entry, replica, &owned)
                + match entry.trained {
                    true => states
                        .iter()
                        .map(|state| state.range(owned.clone()).len() * state.dtype.bytes())
                        .sum(),
                    false => 0,
                };
            *by_rank.entry((stage_rank, replica)).or_default() += bytes as u64;
        }
    }
    match form {
        RankForm::Threads => by_rank.values().sum(),
        RankForm::Processes { .. } => by_rank.values().max().copied().unwrap_or(0),
    }
}

/// Returns the bytes of a parameter's weights that a replica copies if it owns the elements `owned`. Weights
/// that every replica holds whole are copied by the first; frozen weights stored in a model folder are not
/// copied.
fn weight_bytes(setup: &Setup, entry: &Entry, replica: usize, owned: &Range<usize>) -> usize {
    let (stage, parameter) = entry.holders.first().copied().unwrap_or_default();
    let held = match setup.blueprint.weights(stage) {
        Some(layout) => layout.range(replica, parameter).len(),
        None if replica == 0 => entry.shape().elements(),
        None => 0,
    };
    let weights = held * entry.dtype.bytes();
    if !entry.trained {
        return if setup.leaves_out_frozen { 0 } else { weights };
    }
    if entry.dtype == DType::F32 { weights } else { owned.len() * DType::F32.bytes() }
}
