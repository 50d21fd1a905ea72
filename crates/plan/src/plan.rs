//! The plan of one rank, found by running the real worker on Meta.

use std::sync::Arc;

use collective::{Axis, AxisTraffic, Communicator};
use device::Description;
use memory::Statistics;
use parallel::data::{Lanes, round_sets};
use parallel::pipeline::PlanWork;
use telemetry::step_trace::RunPart;
use telemetry::{DriverAccount, PhaseTimes, RankStatistics, Statistic};

use crate::error::{PlanError, Result};
use crate::imitated::MOST_BYTES;
use crate::steps::{Layout, PlannedStep, Steps};
use planned::{PLANNED_EVENTS, PlannedParts, Preallocation};
use worker::{Placement, Setup, Worker};

/// The memory of one rank, to the byte.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The rank.
    pub rank: usize,
    /// All counters of the rank's allocator after the last step.
    pub statistics: Statistics,
    /// The same counters and traffic as rank statistics, without times.
    pub counters: RankStatistics,
    /// The allocator's events in each part of the run, until they repeat.
    pub parts: Arc<PlannedParts>,
    /// Traffic between ranks in a training step, by axis.
    pub step_traffic: AxisTraffic,
    /// Whether the rank fits its device and limit. If not, the figures are for a device with unlimited
    /// memory.
    pub fits: bool,
}

impl Plan {
    /// Returns whether the memory of a rank that ran, on device and host, equals the plan exactly.
    pub fn agrees(&self, ran: &RankStatistics) -> bool {
        let planned = &self.statistics;
        let host = |statistic| (statistic, self.counters.get(statistic));
        [
            host(Statistic::HostAllocatedBytes),
            host(Statistic::PeakHostReservedBytes),
            (Statistic::AllocatedBytes, planned.allocated()),
            (Statistic::ReservedBytes, planned.reserved()),
            (Statistic::PeakAllocatedBytes, planned.peak_allocated()),
            (Statistic::PeakReservedBytes, planned.peak_reserved()),
        ]
        .iter()
        .all(|(statistic, planned)| ran.get(*statistic) == *planned)
    }
}

/// Maximum number of plans made to find the memory that a rank preallocates.
const ROUNDS: usize = 16;

/// Runs rank `rank` on Meta to the run's end, skipping steps that would change nothing.
///
/// # Errors
/// The run fails, for example because it is out of memory.
pub fn plan(setup: &Setup, rank: usize) -> Result<Plan> {
    plan_recording(setup, rank, PLANNED_EVENTS)
}

/// Like [`plan`], but records at most `events` events per part of the run; a longer part has no trace.
pub(crate) fn plan_recording(setup: &Setup, rank: usize, events: usize) -> Result<Plan> {
    let mut round = plan_once(setup, rank, events)?;
    if !setup.config.memory.preallocate {
        return Ok(round.plan);
    }
    // Preallocated memory may be divided differently and then be insufficient. `taken` includes what a device
    // holds from its creation, so comparing `taken` itself might never end.
    for _ in 1..ROUNDS {
        let before = Setup { preallocation: Arc::new(round.taken), ..setup.clone() };
        round = plan_once(&before, rank, events)?;
        if !round.requests_later {
            return Ok(round.plan);
        }
    }
    let index = setup.config.origins.find("memory.preallocate");
    Err(PlanError::Refused(format!(
        "{index}: after the start, rank {rank} still requests memory from its driver in each of {ROUNDS} \
         plans, whatever it takes beforehand, so memory.preallocate = true cannot keep its promise here: set \
         it to false, or another memory.allocator"
    )))
}

/// A plan, and the input of the next round.
struct Round {
    plan: Plan,
    /// Segments that the rank holds at the end of the plan.
    taken: Vec<Preallocation>,
    /// Whether the rank requests memory from the driver after the start.
    requests_later: bool,
}

fn plan_once(setup: &Setup, rank: usize, events: usize) -> Result<Round> {
    let plan_work = Some(setup.plan_work.unwrap_or(work_of_each(1, 1)));
    let setup = Setup { history: events, plan_work, ..setup.on_meta() };
    let config = Arc::clone(&setup.config);
    let communicator = Communicator::counted(rank, config.world_size());
    let mut worker = Worker::new(&setup, communicator)?;
    let calendar = setup.calendar();
    let preallocation = setup.preallocation.to_vec();
    let mut parts = PlannedParts::default();
    parts.preallocation = preallocation;
    let add = |part: RunPart, step: u64, parts: &mut PlannedParts, worker: &Worker| {
        parts.add(worker.device(), worker.skipped().allocations, part, step, events)
    };
    add(RunPart::Start, 0, &mut parts, &worker);
    if worker.lacks_reference() {
        worker.score_reference()?;
        add(RunPart::Reference, 0, &mut parts, &worker);
    }
    let requests = worker.device().statistics().num_device_alloc;
    let mut steps = Steps::new(&setup, calendar.clone(), Layout::from_device(worker.device(), &calendar));
    let mut step_traffic = AxisTraffic::default();
    let mut step = setup.first_step();
    while let Some(next) = steps.next(&setup, step)? {
        let mut verification = None;
        if calendar.verifies(next) {
            worker.repeat_micro_batch(next)?;
            verification = Some(add(RunPart::Verification, next + 1, &mut parts, &worker));
        }
        let sent = traffic(&worker);
        worker.step(next)?;
        step_traffic = traffic(&worker) - sent;
        let planned = add(RunPart::Step, next + 1, &mut parts, &worker);
        let mut validation = None;
        if calendar.validates_after(next) {
            worker.validate()?;
            validation = Some(add(RunPart::Validation, next + 1, &mut parts, &worker));
        }
        if parts.grows() {
            break;
        }
        let planned = PlannedStep { verification, step: planned, validation };
        steps.ran(next, Layout::from_device(worker.device(), &calendar), planned);
        step = next + 1;
    }
    parts.effects = steps.into_effects();
    let statistics = worker.device().statistics();
    let counters = worker.counters(PhaseTimes::default(), DriverAccount::default());
    let taken = Preallocation::from_device(worker.device());
    let requests_later = statistics.num_device_alloc > requests;
    let plan = Plan { rank, statistics, counters, parts: Arc::new(parts), step_traffic, fits: true };
    Ok(Round { plan, taken, requests_later })
}

fn traffic(worker: &Worker) -> AxisTraffic {
    let mut traffic = worker.traffic_by_axis();
    traffic += worker.skipped().traffic;
    traffic
}

/// Repeated micro-batches are skipped in steps with at least this many allocations. Plans of shorter steps
/// have all events, for comparison with the run.
const REPEATS_FROM: u64 = 1 << 16;

/// Repeated micro-batches are skipped if the steps of all roles together have this many allocations.
const REPEATS_FROM_OF_ALL: u64 = 1 << 18;

/// Maximum allocations of all roles of a pipeline together, which take about two seconds on two cores.
const MOST_ALLOCATIONS: u64 = 1 << 22;

/// Maximum number of distinct pipelines, which differ in their shards. Multiplies [`MOST_ALLOCATIONS`].
const MOST_PIPELINES: u64 = 4;

/// Returns the work allowed for each of `roles` roles in pipelines of `stages` ranks.
pub(crate) fn work_of_each(roles: usize, stages: usize) -> PlanWork {
    let pipelines = (roles.div_ceil(stages.max(1)) as u64).clamp(1, MOST_PIPELINES);
    let roles = roles.max(1) as u64;
    PlanWork {
        skips_from: REPEATS_FROM.min(REPEATS_FROM_OF_ALL / roles),
        most: MOST_ALLOCATIONS * pipelines / roles,
    }
}

/// The properties that determine a rank's memory; equal roles have equal plans.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Role {
    pub(crate) stage: usize,
    validations: usize,
    /// Number of micro-batches that the reference model scores before the first step.
    scored: usize,
    /// Numbers of micro-batches in a step, of gradient sets, and of parts of the sum over ranks, followed by
    /// the lanes without a gradient set.
    lanes: (usize, usize, usize, Vec<usize>),
    /// Elements of each of the rank's shards, if state is sharded.
    shards: Vec<usize>,
    /// Whether this is the tensor-parallel rank that adds replicated parameters to the gradient norm.
    first_tensor_rank: bool,
    /// Whether this is the context-parallel rank that adds unsharded parameters to the gradient norm.
    first_context_rank: bool,
}

impl Role {
    pub(crate) fn from_rank(setup: &Setup, rank: usize) -> Result<Self> {
        let grid = setup.config.parallel.grid().seen_from(rank)?;
        let replica = grid.coordinate(Axis::Data);
        let stage = grid.coordinate(Axis::Pipeline);
        let validations = setup.config.validation_assignment().count(replica);
        let scored = if setup.reference.is_none() { setup.reference_micro_batches(replica) } else { 0 };
        let stages = setup.blueprint.stages_of(stage);
        let sharded = stages.map(|stage| setup.blueprint.shards(stage)).filter(|shards| shards.is_sharded());
        let index = grid.coordinate_over(setup.config.parallel.replica_axes());
        let own = sharded.flat_map(|shards| shards.owned_by(index % shards.ranks()));
        let shards = own.map(|owned| owned.shard.range.len()).collect();
        let lanes = match setup.config.parallel.shards_gradients() {
            true => {
                let config = &setup.config;
                let (sets, parts) =
                    round_sets(config.reduction_assignment(), index, config.parallel.reduction);
                (config.training_assignment().count(replica), sets, parts, Vec::new())
            }
            false => {
                let lanes = lanes(setup, replica)?;
                let transient = (0..lanes.local()).filter(|lane| lanes.is_transient(*lane)).collect();
                (lanes.micro_batches(), lanes.sets(), lanes.parts(), transient)
            }
        };
        let first_tensor_rank = grid.coordinate(Axis::Tensor) == 0;
        let first_context_rank = grid.coordinate(Axis::Context) == 0;
        Ok(Role { stage, validations, scored, lanes, shards, first_tensor_rank, first_context_rank })
    }
}

pub(crate) fn lanes(setup: &Setup, replica: usize) -> Result<Lanes> {
    let config = &setup.config;
    let lanes = Lanes::new(config.training_assignment(), replica);
    let lanes = lanes.and_then(|lanes| config.parallel.reduction.lanes(lanes));
    lanes.map_err(|error| PlanError::Refused(error.to_string()))
}

/// Returns the run on Meta with practically unlimited memory.
pub(crate) fn boundless(setup: &Setup) -> Setup {
    let description =
        Description { total_bytes: MOST_BYTES, taken_bytes: 0, ..setup.placement.description() };
    let mut boundless = Setup { placement: Placement::Meta(description), ..setup.clone() };
    boundless.device.limit_bytes = None;
    boundless
}
