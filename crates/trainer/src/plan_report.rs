//! `plimsoll plan`: what every rank of a configuration would use, without running it.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use telemetry::Statistic;
use telemetry::run_files::Grid;
use telemetry::step_trace::Holding;
use telemetry::table::joined;

use crate::error::{Result, TrainError};
use crate::placement::Placement;
use crate::plan::Plan;
use crate::plan::describe::PlanTarget;
use crate::plan::fit::Fit;
use crate::plan::remedy;
use crate::plan::roles::{Plans, plan_all};
use crate::plan_schedule::PlannedSchedule;
use crate::recompute;
use crate::worker::Setup;
use config::{Memory, RunConfig};

mod text;

/// What to plan for.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// The device.
    pub target: PlanTarget,
    /// Bytes that it has, in place of its own.
    pub capacity: Option<u64>,
}

/// How the stages of a pipeline work together.
#[derive(Clone, Debug)]
pub struct PipelinePlan {
    /// The schedule's name.
    pub schedule: &'static str,
    /// Layers of each stage; rank r of a pipeline of n has stages r, r + n and so on.
    pub layers: Vec<usize>,
    /// Micro-batches that it runs in a step.
    pub micro_batches: usize,
    /// The share of its time in which ranks wait for others, simulated.
    pub bubble: f64,
    /// What passes take in that, in words.
    pub times: String,
}

impl PipelinePlan {
    fn of(setup: &Setup) -> Result<Option<Self>> {
        let (config, stages) = (&setup.config, &setup.blueprint.stages);
        if config.parallel.pipeline == 1 {
            return Ok(None);
        }
        let planned = PlannedSchedule::of(setup)?;
        Ok(Some(PipelinePlan {
            schedule: config.schedule_kind().name(),
            layers: stages.iter().map(|stage| stage.layers.len()).collect(),
            micro_batches: config.train.micro_batches / config.parallel.data,
            bubble: planned.bubble(),
            times: planned.times(),
        }))
    }

    fn to_json(&self) -> Value {
        let PipelinePlan { schedule, layers, micro_batches, bubble, times } = self;
        json!({"schedule": schedule, "layers": layers, "micro_batches": micro_batches, "bubble": bubble, "times": times})
    }
}

/// What every rank will use, to the byte.
#[derive(Clone, Debug)]
pub struct PlanReport {
    /// The model of the device that was imitated.
    pub device_model: String,
    /// As in `summary.json`.
    pub device: &'static str,
    /// How the ranks are laid out.
    pub grid: Grid,
    /// Settings of memory, with what was chosen for `recompute = "auto"`.
    pub memory: Memory,
    /// The plan of every role that ranks have in the run. Of what grows with every step there is as much as planning took.
    pub plans: Plans,
    /// What a pipeline does, where there is one.
    pub pipeline: Option<PipelinePlan>,
    /// Whether they fit.
    pub fit: Fit,
    /// How long planning took.
    pub took: Duration,
    /// Where the run does not fit: that, and what would.
    refusal: Option<String>,
}

/// Plans the whole run, on as many ranks as the configuration has, on a device like the chosen one. Nothing is allocated and
/// nothing written.
///
/// Errors: a configuration, data, settings or a description of a device that are wrong.
pub fn plan_run(config: RunConfig, options: &PlanOptions) -> Result<PlanReport> {
    let began = Instant::now();
    let device = options.target.device(options.capacity)?;
    let connected = config.world_size() > 1;
    let setup = Setup::new(config, Placement::Meta(device.description(connected)))?;
    let setup = recompute::settle(setup)?;
    let parallel = &setup.config.parallel;
    let grid = Grid { data: parallel.data, pipeline: parallel.pipeline };
    let plans = plan_all(&setup)?;
    let fit = Fit::of(&setup, &plans, device.overhead.parts(connected), true);
    let took = began.elapsed();
    let refusal = (!fit.fits).then(|| remedy::refusal(&setup, &fit).to_string());
    let (name, pipeline) = (device.name(), PipelinePlan::of(&setup)?);
    let memory = setup.config.memory.clone();
    Ok(PlanReport {
        device_model: device.model,
        device: name,
        grid,
        memory,
        plans,
        pipeline,
        fit,
        took,
        refusal,
    })
}

impl PlanReport {
    /// Why the run is refused, if it does not fit, and what would fit.
    pub fn refusal(&self) -> Option<TrainError> {
        self.refusal.clone().map(TrainError::Refused)
    }

    /// One object: `device`, `world_size`, `grid` and `ranks` under the keys that they have in `summary.json`; what is computed
    /// again; `pipeline`, `fit`; and `roles`, whose number is each rank's `role`.
    ///
    /// Errors: none, since all keys are texts.
    pub fn to_json(&self) -> Result<String> {
        let failed = |error: serde_json::Error| TrainError::Refused(format!("the plan as JSON: {error}"));
        let mut text = String::from("{");
        let fields = [
            ("device", json!(self.device)),
            ("device_model", json!(self.device_model)),
            ("world_size", json!(self.plans.world_size())),
            ("grid", serde_json::to_value(self.grid).map_err(failed)?),
            ("recompute", json!(self.memory.recompute)),
            ("recompute_layers", json!(self.memory.recompute_layers)),
            ("pipeline", self.pipeline.as_ref().map_or(Value::Null, PipelinePlan::to_json)),
            ("fit", self.fit.to_json()),
            ("roles", self.roles()),
        ];
        for (key, value) in fields {
            // Writing to a string does not fail.
            let _ = write!(text, "\"{key}\":{value},");
        }
        // The entries of a role's ranks differ in the rank alone, and there may be very many.
        let entries: Vec<_> =
            self.plans.roles().iter().enumerate().map(|(role, plan)| entry(role, plan)).collect();
        let ranks = (0..self.plans.world_size()).map(|rank| {
            let entry = self.plans.role_of(rank).map_or("", |role| &entries[role]);
            format!("{{\"rank\":{rank},{entry}}}")
        });
        text += "\"ranks\":[";
        for (place, rank) in ranks.enumerate() {
            text += if place > 0 { "," } else { "" };
            text += &rank;
        }
        text += "]}";
        Ok(text)
    }

    fn roles(&self) -> Value {
        let of = |(number, plan): (usize, &Plan)| json!({"ranks": joined(self.plans.ranks_of(number)), "peak": peak(plan)});
        self.plans.roles().iter().enumerate().map(of).collect()
    }
}

/// Where a rank's peak stands, and what lives there; `null` of a plan that has no trace of it.
fn peak(plan: &Plan) -> Value {
    let Some(found) = plan.parts.peak() else { return Value::Null };
    let (peak, owner) = (&found.peak, found.peak.owner.as_ref());
    let holding = |holding: &Holding| {
        json!({
            "category": holding.owner.category.name(),
            "module": holding.owner.module,
            "blocks": holding.blocks,
            "bytes": holding.bytes,
        })
    };
    json!({
        "part": found.part.name(),
        "step": found.step,
        "phase": peak.phase,
        "micro_batch": peak.micro_batch,
        "stage": peak.stage,
        "module": owner.map(|owner| &owner.module),
        "operator": owner.map(|owner| &owner.operator),
        "requested_bytes": peak.requested,
        "allocated_bytes": peak.bytes,
        "live": found.live.by_module().holdings.iter().map(holding).collect::<Vec<_>>(),
    })
}

/// A rank's entry without its braces and its number.
fn entry(role: usize, plan: &Plan) -> String {
    let mut entry = Map::new();
    entry.insert("device".to_owned(), json!(plan.counters.device));
    entry.insert("role".to_owned(), json!(role));
    entry.insert("fits".to_owned(), json!(plan.fits));
    entry.insert("step_bytes_sent".to_owned(), json!(plan.step_traffic.bytes_sent));
    entry.insert("step_bytes_received".to_owned(), json!(plan.step_traffic.bytes_received));
    let planned = Statistic::all().iter().filter(|statistic| is_planned(**statistic));
    entry.extend(
        planned.map(|statistic| (statistic.name().into_owned(), plan.counters.get(*statistic).into())),
    );
    let text = Value::Object(entry).to_string();
    text[1..text.len() - 1].to_owned()
}

/// What does not grow with the number of steps: steps that would change nothing are not run.
fn is_planned(statistic: Statistic) -> bool {
    matches!(
        statistic,
        Statistic::AllocatedBytes
            | Statistic::ReservedBytes
            | Statistic::PeakAllocatedBytes
            | Statistic::PeakReservedBytes
            | Statistic::RequestedBytes
            | Statistic::LiveBytes(_)
            | Statistic::PeakBytes(_)
    )
}
