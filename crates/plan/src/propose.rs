//! Configurations that fit a device, the fastest first: grids, schedules, ZeRO stages, recomputation and
//! micro-batch sizes, with the same number of samples in a step.

use std::fmt::{self, Write};

use serde_json::{Value, json};
use telemetry::table::aligned;
use telemetry::units::{bytes, grouped};

use crate::cost::{Cost, cost, equal_stages};
use crate::error::{PlanError, Result};
use crate::fit::Fit;
use crate::prepare::prepare;
use crate::roles::plan_within;
use crate::target::PlanOptions;
use crate::work::Work;
use config::{RecomputePolicy, RunConfig};
use parallel::pipeline::ScheduleKind;
use worker::Placement;
use worker::build;

/// Number of proposals.
const PROPOSALS: usize = 12;

/// A distribution of a step's work over ranks and micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    data: usize,
    pipeline: usize,
    schedule: ScheduleKind,
    sharded: bool,
    recomputed: bool,
    micro_batch: usize,
    micro_batches: usize,
}

/// A configuration that fits.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// Keys to set, each as `section.key=value`.
    pub sets: Vec<String>,
    layout: Layout,
    /// Predicted time of a step.
    pub cost: Cost,
    /// Peak of reserved bytes of the rank that needs most.
    pub needs: u64,
    /// Bytes that every device has for its allocator.
    pub available: u64,
    /// Bytes per step sent by the rank that sends most.
    pub sent: u64,
}

/// Configurations that fit, the fastest first.
#[derive(Clone, Debug)]
pub struct Proposals {
    /// Configurations that fit.
    pub list: Vec<Proposal>,
    /// Number of configurations that were planned.
    pub planned: usize,
    /// Number of candidates in all.
    pub candidates: usize,
    /// The device's model.
    device_model: String,
    capacity: u64,
    ranks: usize,
    /// Number of samples in a step, equal for all.
    samples: usize,
    tokens: u64,
    /// Rates of the cost model that were assumed, not measured.
    assumed: Vec<String>,
}

/// Plans configurations of `ranks` ranks that have the samples of `config` in a step, in the order of their
/// costs, until enough of them fit. `heard` is called for each that fits.
///
/// Errors: those of a plan; a number of ranks for which no grid exists.
pub fn propose(
    config: RunConfig,
    options: &PlanOptions,
    ranks: usize,
    heard: &mut dyn FnMut(&Proposal),
) -> Result<Proposals> {
    let device = options.target.device(options.capacity)?;
    let (rates, assumed) = device.rates_or_shipped()?;
    let description = device.description(ranks > 1);
    let work = Work::count(&config, &build::dataset(&config)?, &description)?;
    let mut candidates = Vec::new();
    for layout in layouts(&config, ranks) {
        // A refused configuration is no candidate.
        let Ok(sets) = config.with_profile_of(sets(&config, &layout)) else { continue };
        let Ok(changed) = config.with(&sets) else { continue };
        let Ok(cost) = cost(&changed, &work, &rates, &equal_stages(&changed)) else { continue };
        candidates.push((layout, sets, cost));
    }
    if candidates.is_empty() {
        let samples = config.train.global_batch_size;
        return Err(PlanError::Refused(format!(
            "--fit: no grid of {ranks} ranks divides the {samples} samples of a step and the model's layers"
        )));
    }
    candidates.sort_by(|(.., a), (.., b)| a.seconds().total_cmp(&b.seconds()));
    let all = candidates.len();
    let mut found = Proposals {
        list: Vec::new(),
        planned: 0,
        candidates: all,
        device_model: device.model.clone(),
        capacity: device.total_bytes,
        ranks,
        samples: config.train.global_batch_size,
        tokens: build::tokens_per_step(&config),
        assumed,
    };
    // Skip layouts that need no less than one that does not fit.
    let mut too_large: Vec<Layout> = Vec::new();
    for (layout, sets, _) in candidates {
        if too_large.iter().any(|other| needs_no_less(&layout, other)) {
            continue;
        }
        let setup = prepare(config.with(&sets)?, Placement::Meta(description.clone()))?;
        found.planned += 1;
        let plans = match plan_within(&setup) {
            Ok(plans) => plans,
            Err(error) if error.is_out_of_memory() => {
                too_large.push(layout);
                continue;
            }
            Err(error) => return Err(error),
        };
        let fit = Fit::of(&setup, &plans, device.overhead.parts(ranks > 1), true);
        if !fit.fits {
            too_large.push(layout);
            continue;
        }
        let sent = plans.roles().iter().map(|plan| plan.step_traffic.bytes_sent).max().unwrap_or(0);
        let (needs, available) = (fit.needs, fit.available());
        // The cost with the actual partition of the layers instead of the assumed one.
        let cost = cost(&setup.config, &work, &rates, &setup.blueprint.stages)?;
        let proposal = Proposal { sets, layout, cost, needs, available, sent };
        heard(&proposal);
        found.list.push(proposal);
        if found.list.len() == PROPOSALS {
            break;
        }
    }
    found.list.sort_by(|a, b| a.cost.seconds().total_cmp(&b.cost.seconds()));
    Ok(found)
}

/// Returns whether a layout differs from another only by larger micro-batches, and so needs no less memory.
fn needs_no_less(layout: &Layout, other: &Layout) -> bool {
    let alike = Layout { micro_batch: other.micro_batch, micro_batches: other.micro_batches, ..*layout };
    alike == *other && layout.micro_batch >= other.micro_batch
}

/// All ways to lay out the configuration's step over `ranks` ranks.
fn layouts(config: &RunConfig, ranks: usize) -> Vec<Layout> {
    let samples = config.train.global_batch_size;
    let powers = |number: usize| (0..=number.trailing_zeros()).map(|power| 1_usize << power);
    // Halve the size and double the number, repeatedly: sizes suited to the kernels remain so.
    let smaller = powers(config.train.micro_batch_size).skip(1).map(|by| config.train.micro_batch_size / by);
    let larger = powers(config.train.micro_batches()).map(|by| config.train.micro_batch_size * by);
    let sizes: Vec<_> = smaller.chain(larger).collect();
    let mut all = Vec::new();
    for data in powers(ranks) {
        let pipeline = ranks / data;
        for micro_batch in sizes.iter().copied().filter(|size| (samples / size).is_multiple_of(data)) {
            for schedule in schedules(pipeline) {
                let shard = [false, true].into_iter().filter(|sharded| !sharded || data > 1);
                for (sharded, recomputed) in shard.flat_map(|sharded| [(sharded, false), (sharded, true)]) {
                    let micro_batches = samples / micro_batch;
                    all.push(Layout {
                        data,
                        pipeline,
                        schedule,
                        sharded,
                        recomputed,
                        micro_batch,
                        micro_batches,
                    });
                }
            }
        }
    }
    all
}

/// Schedules to try for a pipeline; one for a pipeline of one rank, where all are equal.
fn schedules(pipeline: usize) -> Vec<ScheduleKind> {
    match pipeline {
        1 => vec![ScheduleKind::OneForwardOneBackward],
        _ => ScheduleKind::ALL.to_vec(),
    }
}

/// The keys that give a configuration this layout.
fn sets(config: &RunConfig, layout: &Layout) -> Vec<String> {
    let Layout { data, pipeline, micro_batch, micro_batches, .. } = *layout;
    let (parallel, train, memory) = (&config.parallel, &config.train, &config.memory);
    // The number of lanes, and with it the bits, is kept if possible.
    let kept = parallel.lanes;
    let keeps = micro_batches.is_multiple_of(kept) && kept.is_multiple_of(data);
    let lanes = if keeps { kept } else { data.max(1 << micro_batches.trailing_zeros().min(3)) };
    let number = |key: &str, new: usize, old: usize| (new != old).then(|| format!("{key}={new}"));
    // One rank needs no schedule.
    let scheduled = pipeline > 1 && layout.schedule != parallel.schedule;
    let recompute = if layout.recomputed { RecomputePolicy::Block } else { RecomputePolicy::None };
    let recompute = (recompute != memory.recompute)
        .then(|| format!("memory.recompute={}", if layout.recomputed { "block" } else { "none" }));
    let all_layers = memory.recompute_layers != 0 && (layout.recomputed || recompute.is_some());
    let sets = [
        number("parallel.data", data, parallel.data),
        number("parallel.pipeline", pipeline, parallel.pipeline),
        scheduled.then(|| format!("parallel.schedule={}", layout.schedule.name())),
        number("parallel.lanes", lanes, kept),
        (layout.sharded != parallel.shards_optimizer())
            .then(|| format!("parallel.zero_stage={}", u8::from(layout.sharded))),
        recompute,
        all_layers.then(|| "memory.recompute_layers=0".to_owned()),
        number("train.micro_batch_size", micro_batch, train.micro_batch_size),
    ];
    sets.into_iter().flatten().collect()
}

impl Proposal {
    fn row(&self, tokens: u64) -> Vec<String> {
        let Layout { data, pipeline, micro_batch, micro_batches, .. } = self.layout;
        let seconds = self.cost.seconds();
        let yes = |flag: bool, word: &str| if flag { word.to_owned() } else { "-".to_owned() };
        vec![
            format!("{data} x {pipeline}"),
            yes(pipeline > 1, self.layout.schedule.name()),
            yes(self.layout.sharded, "yes"),
            yes(self.layout.recomputed, "block"),
            format!("{micro_batch} x {micro_batches}"),
            format!("{:.1}", 1e3 * seconds),
            grouped((tokens as f64 / seconds) as u64),
            format!("{:.1} %", 100.0 * self.cost.bubble),
            format!("{:.1}", 1e3 * self.cost.exposed),
            bytes(self.needs),
            bytes(self.available.saturating_sub(self.needs)),
            bytes(self.sent),
        ]
    }

    fn to_json(&self, tokens: u64) -> Value {
        let (layout, cost) = (&self.layout, &self.cost);
        json!({
            "set": self.sets,
            "grid": {"data": layout.data, "pipeline": layout.pipeline},
            "schedule": layout.schedule.name(),
            "zero_stage": u8::from(layout.sharded),
            "recompute": layout.recomputed,
            "micro_batch_size": layout.micro_batch,
            "micro_batches": layout.micro_batches,
            "step_seconds": cost.seconds(),
            "tokens_per_second": tokens as f64 / cost.seconds(),
            "bubble": cost.bubble,
            "recomputed_seconds": cost.recomputed,
            "exposed_seconds": cost.exposed,
            "update_seconds": cost.update,
            "peak_reserved_bytes": self.needs,
            "available_bytes": self.available,
            "step_bytes_sent": self.sent,
        })
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { data, pipeline, schedule, sharded, recomputed, micro_batch, micro_batches } =
            self.layout;
        write!(f, "{data} x {pipeline}, {micro_batches} micro-batches of {micro_batch}")?;
        if pipeline > 1 {
            write!(f, ", {}", schedule.name())?;
        }
        f.write_str(if sharded { ", ZeRO-1" } else { "" })?;
        f.write_str(if recomputed { ", blocks computed again" } else { "" })?;
        write!(f, ": {} at the peak", bytes(self.needs))
    }
}

impl Proposals {
    /// Returns one object: `proposals`, the fastest first, each with its figures and the keys to `set`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let proposals: Vec<_> = self.list.iter().map(|proposal| proposal.to_json(self.tokens)).collect();
        json!({
            "device_model": self.device_model,
            "capacity_bytes": self.capacity,
            "ranks": self.ranks,
            "samples_per_step": self.samples,
            "candidates": self.candidates,
            "planned": self.planned,
            "assumed": self.assumed,
            "proposals": proposals,
        })
    }
}

impl fmt::Display for Proposals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Proposals { ranks, samples, candidates, planned, .. } = self;
        let (model, capacity) = (&self.device_model, bytes(self.capacity));
        if self.list.is_empty() {
            return write!(
                f,
                "nothing fits: {candidates} configurations of {ranks} ranks on {model} with {capacity}"
            );
        }
        let titles = [
            "data x pipeline",
            "schedule",
            "sharded",
            "recompute",
            "micro-batches",
            "step, ms",
            "tokens/s",
            "bubble",
            "exposed, ms",
            "peak reserved",
            "free",
            "sent in a step",
        ];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        rows.extend(self.list.iter().map(|proposal| proposal.row(self.tokens)));
        writeln!(
            f,
            "{ranks} ranks on {model} with {capacity}, {samples} samples a step, the fastest first\n"
        )?;
        write!(f, "{}", aligned(&rows, 4, &[1]))?;
        let mut more = String::new();
        if let Some(first) = self.list.first() {
            let sets: Vec<_> = first.sets.iter().map(|set| format!("--set {set}")).collect();
            let sets = if sets.is_empty() { "the configuration as it is".to_owned() } else { sets.join(" ") };
            let _ = write!(more, "\nthe first: {sets}\n");
        }
        let assumed = match self.assumed.as_slice() {
            [] => String::new(),
            names => format!("; assumed and not measured: {}", names.join(", ")),
        };
        write!(
            f,
            "{more}\nPeaks are planned, to the byte ({planned} plans of {candidates} configurations); \
             times are a model: operations at the measured rate of matmuls times a measured efficiency, the schedule's \
             bubble, and what backward does not hide \
             of the communication{assumed}."
        )
    }
}
