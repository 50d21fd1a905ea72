//! `plimsoll plan`: the memory of every rank of a configuration, without running it.

use std::time::{Duration, Instant};

use device::Kind;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use telemetry::step_trace::Holding;
use telemetry::units::ranges;
use telemetry::{GridSizes, Statistic};

use crate::balance::Balance;
use crate::by_axis::AxisCommunication;
use crate::effects::without_effect;
use crate::epochs::Epochs;
use crate::error::{PlanError, Result};
use crate::fit::Fit;
use crate::fp8_cost::Fp8Cost;
use crate::host::RankForm;
use crate::lane_cost::LaneCost;
use crate::overhead::DeviceRanks;
use crate::plan::Plan;
use crate::recompute;
use crate::remedy;
use crate::resolve::Resolved;
use crate::roles::{Plans, plan_all};
use crate::schedule::PlannedSchedule;
use crate::step_time::StepTime;
use crate::target::PlanOptions;
use crate::timed_step::TimedStep;
use crate::tuning_cost::TuningCost;
use crate::whole_gradients::WholeGradients;
use config::{Memory, RunConfig};
use worker::Placement;
use worker::Setup;
use worker::stages::parameter_optim::GroupSummary;

mod text;

/// The planned pipeline.
#[derive(Clone, Debug, Serialize)]
pub struct PipelinePlan {
    /// Name of the schedule.
    pub schedule: &'static str,
    /// Number of layers of each stage. In a pipeline of n ranks, rank r has stages r, r + n and so on.
    pub layers: Vec<usize>,
    /// Number of micro-batches that the pipeline runs in a step.
    pub micro_batches: usize,
    /// Fraction of the passes' time in which ranks wait for each other.
    pub bubble: f64,
    /// Source of the passes' times, for users.
    pub times: String,
}

impl PipelinePlan {
    fn from_setup(setup: &Setup, timed: Option<&TimedStep>) -> Result<Option<Self>> {
        let config = &setup.config;
        let stages = &setup.blueprint.stages;
        if config.parallel.pipeline == 1 {
            return Ok(None);
        }
        let planned = PlannedSchedule::timed(setup, timed)?;
        Ok(Some(PipelinePlan {
            schedule: config.schedule_kind().name(),
            layers: stages.iter().map(|stage| stage.layers.len()).collect(),
            micro_batches: config.training_assignment().count(0),
            bubble: planned.bubble(),
            times: planned.times(),
        }))
    }
}

/// The planned memory of every rank to the byte, with predictions and remarks.
#[derive(Clone, Debug)]
pub struct PlanReport {
    /// Model of the device that is planned for.
    pub device_model: String,
    /// Keys of the device's description that were assumed, not measured.
    pub assumed: Vec<String>,
    /// Name of the device's kind, as in `summary.json`.
    pub device: &'static str,
    /// The rank grid.
    pub grid: GridSizes,
    /// Memory settings, with `recompute = "auto"` replaced by the choice.
    pub memory: Memory,
    /// The plan of every role. Counters that grow with every step cover only the planned steps.
    pub plans: Plans,
    /// The pipeline, if any.
    pub pipeline: Option<PipelinePlan>,
    /// Number of steps.
    pub steps: u64,
    /// Epochs that determine the number of steps, if configured.
    pub epochs: Option<Epochs>,
    /// Comparison with the devices' memory.
    pub fit: Fit,
    /// Communication along each axis with several ranks.
    pub communication: Vec<AxisCommunication>,
    /// Predicted time of a step, if the run fits on GPUs.
    pub time: Option<StepTime>,
    /// Memory of lanes, if they need several gradient sets.
    pub lanes: Option<LaneCost>,
    /// Memory of whole gradients, if gradients are sharded and lanes need them.
    pub whole_gradients: Option<WholeGradients>,
    /// Distribution of lanes, if it is uneven or costs extra traffic.
    pub balance: Option<Balance>,
    /// Memory saved by frozen parameters, if any.
    pub tuning: Option<TuningCost>,
    /// Memory effect of FP8 matmuls, if any.
    pub fp8: Option<Fp8Cost>,
    /// Groups of parameters with their settings of the optimizer.
    pub groups: Vec<GroupSummary>,
    /// Sentences about defaults that the device, data or model decided.
    pub defaults: Vec<String>,
    /// Sentences about settings that are probably unintended.
    pub warnings: Vec<String>,
    /// Sentences about settings without effect.
    pub without_effect: Vec<String>,
    /// Duration of planning.
    pub took: Duration,
    /// Error for a run that does not fit, with settings that would.
    refusal: Option<String>,
}

/// Plans all ranks of a configuration on a device like the chosen one. Allocates no device memory and writes
/// no file.
///
/// # Errors
/// The configuration, data, settings or the device's description is invalid.
pub fn plan_run(config: RunConfig, options: &PlanOptions) -> Result<PlanReport> {
    let began = Instant::now();
    let ranks = DeviceRanks::from_config(&config);
    let device = options.target.device(options.capacity, ranks)?;
    let description = device.description(ranks);
    let resolved = Resolved::new(config, &description)?;
    let setup = resolved.setup(Placement::Meta(description))?;
    let setup = recompute::settle(setup)?;
    let grid = setup.config.parallel.grid().named().collect();
    let plans = plan_all(&setup)?;
    let fit = Fit::from_plans(&setup, &plans, device.overhead.parts(ranks), RankForm::Threads);
    let took = began.elapsed();
    let refusal = (!fit.fits).then(|| remedy::refusal(&setup, &plans, &fit).to_string());
    let timed = if fit.fits { TimedStep::predict(&setup, &device)? } else { None };
    let name = device.name();
    let pipeline = PipelinePlan::from_setup(&setup, timed.as_ref())?;
    let memory = setup.config.memory.clone();
    let time = timed.map(|timed| timed.time.with_mfu(&setup, &device)).transpose()?;
    let communication = AxisCommunication::from_plans(&setup, &plans, time.as_ref());
    let lanes = plans.largest().map(|plan| LaneCost::from_plan(&setup, plan)).transpose()?.flatten();
    let whole_gradients =
        plans.largest().map(|plan| WholeGradients::from_plan(&setup, plan)).transpose()?.flatten();
    let balance = Balance::from_setup(&setup)?;
    let tuning = plans.largest().map(|plan| TuningCost::from_plan(&setup, plan)).transpose()?.flatten();
    let fp8 = plans.largest().map(|plan| Fp8Cost::from_plan(&setup, plan)).transpose()?.flatten();
    let config = &setup.config;
    let groups = GroupSummary::all(config, &setup.blueprint);
    let warnings = [config.tokenizer_warning(), config.dropout_warning(), config.adapters_warning()];
    let warnings = warnings.into_iter().flatten().chain(setup.config.folder_notes()).collect();
    let without_effect = without_effect(&setup);
    let context = resolved.context.map(|context| context.to_string());
    let defaults = context.into_iter().chain(config.default_notes()).collect();
    Ok(PlanReport {
        device_model: device.model,
        assumed: device.assumed,
        device: name,
        grid,
        memory,
        plans,
        pipeline,
        steps: setup.config.train.steps,
        epochs: resolved.epochs,
        fit,
        communication,
        time,
        lanes,
        whole_gradients,
        balance,
        tuning,
        fp8,
        groups,
        defaults,
        warnings,
        without_effect,
        took,
        refusal,
    })
}

impl PlanReport {
    fn shared_gpu(&self) -> Option<&Plans> {
        (self.device == Kind::Cuda.name() && self.fit.shared_by > 1).then_some(&self.plans)
    }

    /// Returns the counters summed over all ranks, if they share a GPU.
    fn device_sums(&self) -> Option<Value> {
        let plans = self.shared_gpu()?;
        let sum = |statistic: Statistic| -> u64 {
            plans.by_rank().map(|(_, plan)| plan.counters.get(statistic)).sum()
        };
        Some(Statistic::MEMORY.into_iter().map(|each| (each.name().into_owned(), json!(sum(each)))).collect())
    }

    /// Returns the error for a run that does not fit, with settings that would; `None` if it fits.
    pub fn refusal(&self) -> Option<PlanError> {
        self.refusal.clone().map(PlanError::Refused)
    }

    /// Returns a JSON object: `device`, `world_size`, `grid` and `ranks` with the keys of `summary.json`;
    /// `recompute`, `pipeline` and `fit`; `groups` of the optimizer; and `roles`, indexed by each rank's
    /// `role`, with the number of allocations that planning each took.
    ///
    /// # Errors
    /// Serialization fails, which cannot occur because all keys are strings.
    pub fn to_json(&self) -> Result<String> {
        let entries: Vec<Map<String, Value>> =
            self.plans.roles().iter().enumerate().map(|(role, plan)| entry(role, plan)).collect();
        let object = PlanJson {
            device: self.device,
            device_model: &self.device_model,
            world_size: self.plans.world_size(),
            grid: &self.grid,
            recompute: json!(self.memory.recompute),
            recompute_layers: json!(self.memory.recompute_layers),
            pipeline: self.pipeline.as_ref(),
            steps: self.steps,
            epochs: self.epochs,
            fit: self.fit.to_json(),
            communication: &self.communication,
            predicted_step_seconds: self.time.as_ref().map(|time| time.step_seconds),
            predicted: self.time.as_ref(),
            lanes: self.lanes.map(|cost| cost.to_json()),
            whole_gradients: self.whole_gradients,
            balance: self.balance,
            tuning: self.tuning,
            fp8: self.fp8,
            groups: &self.groups,
            defaults: &self.defaults,
            warnings: &self.warnings,
            without_effect: &self.without_effect,
            roles: self.roles(),
            shared_device: self.device_sums(),
            ranks: RankEntries { plans: &self.plans, entries: &entries },
        };
        serde_json::to_string(&object)
            .map_err(|error| PlanError::Refused(format!("the plan as JSON: {error}")))
    }

    fn roles(&self) -> Value {
        let role_json = |(number, plan): (usize, &Plan)| {
            let ranks = ranges(self.plans.ranks_of(number));
            let rehearsed = plan.statistics.get("allocation.all.allocated");
            json!({"ranks": ranks, "peak": peak(plan), "rehearsed_allocations": rehearsed})
        };
        self.plans.roles().iter().enumerate().map(role_json).collect()
    }
}

/// Returns the peak of a rank with the allocations alive at it; `null` for a plan without a trace.
fn peak(plan: &Plan) -> Value {
    let Some(planned_peak) = plan.parts.peak() else { return Value::Null };
    let peak = &planned_peak.peak;
    let owner = planned_peak.peak.owner.as_ref();
    let holding = |holding: &Holding| {
        json!({
            "category": holding.owner.category.name(),
            "module": holding.owner.module,
            "blocks": holding.blocks,
            "bytes": holding.bytes,
        })
    };
    json!({
        "part": planned_peak.part.name(),
        "step": planned_peak.step,
        "phase": peak.phase,
        "micro_batch": peak.micro_batch,
        "stage": peak.stage,
        "module": owner.map(|owner| &owner.module),
        "operator": owner.map(|owner| &owner.operator),
        "requested_bytes": peak.requested,
        "allocated_bytes": peak.bytes,
        "live": planned_peak.live.by_module().holdings.iter().map(holding).collect::<Vec<_>>(),
    })
}

/// The object that `plimsoll plan --json` prints.
#[derive(Serialize)]
struct PlanJson<'a> {
    device: &'a str,
    device_model: &'a str,
    world_size: usize,
    grid: &'a GridSizes,
    recompute: Value,
    recompute_layers: Value,
    pipeline: Option<&'a PipelinePlan>,
    steps: u64,
    /// Epochs and their samples, if they determine the number of steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    epochs: Option<Epochs>,
    fit: Value,
    communication: &'a [AxisCommunication],
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_step_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<&'a StepTime>,
    lanes: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole_gradients: Option<WholeGradients>,
    #[serde(skip_serializing_if = "Option::is_none")]
    balance: Option<Balance>,
    tuning: Option<TuningCost>,
    fp8: Option<Fp8Cost>,
    groups: &'a [GroupSummary],
    defaults: &'a [String],
    warnings: &'a [String],
    without_effect: &'a [String],
    roles: Value,
    /// Sums over all ranks, if they share a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_device: Option<Value>,
    ranks: RankEntries<'a>,
}

/// Serializes the entries of all ranks. Ranks of a role share one entry, because there may be thousands of
/// ranks.
struct RankEntries<'a> {
    plans: &'a Plans,
    entries: &'a [Map<String, Value>],
}

impl Serialize for RankEntries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Entry<'a> {
            rank: usize,
            #[serde(flatten)]
            of_role: Option<&'a Map<String, Value>>,
        }
        let entry = |rank| {
            let of_role = self.plans.role_of(rank).and_then(|role| self.entries.get(role));
            Entry { rank, of_role }
        };
        serializer.collect_seq((0..self.plans.world_size()).map(entry))
    }
}

/// Returns the JSON entry of a role's ranks, without the rank number.
fn entry(role: usize, plan: &Plan) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("device".to_owned(), json!(plan.counters.device));
    entry.insert("role".to_owned(), json!(role));
    entry.insert("fits".to_owned(), json!(plan.fits));
    entry.insert("step_bytes_sent".to_owned(), json!(plan.step_traffic.total().bytes_sent));
    entry.insert("step_bytes_received".to_owned(), json!(plan.step_traffic.total().bytes_received));
    let planned = Statistic::all().iter().filter(|statistic| is_planned(**statistic));
    entry.extend(
        planned.map(|statistic| (statistic.name().into_owned(), plan.counters.get(*statistic).into())),
    );
    entry
}

/// Returns whether a statistic is independent of the number of steps; repeated steps are not planned.
fn is_planned(statistic: Statistic) -> bool {
    matches!(
        statistic,
        Statistic::AllocatedBytes
            | Statistic::ReservedBytes
            | Statistic::PeakAllocatedBytes
            | Statistic::PeakReservedBytes
            | Statistic::RequestedBytes
            | Statistic::HostAllocatedBytes
            | Statistic::PeakHostReservedBytes
            | Statistic::LiveBytes(_)
            | Statistic::PeakBytes(_)
    )
}
