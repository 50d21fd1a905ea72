//! `plimsoll plan --html`: the planned memory of every rank on one page.

use std::time::Instant;

use telemetry::report::{Notice, RankMemory, Report, SchedulePicture, Tile};
use telemetry::units::{bytes, counted, grouped};
use telemetry::{RankStatistics, Statistic};

use crate::error::Result;
use crate::fit::Fit;
use crate::host::RankForm;
use crate::overhead::DeviceRanks;
use crate::page_parts::{memory_tiles, subtitle};
use crate::plan::Plan;
use crate::recompute;
use crate::resolve::Resolved;
use crate::roles::plan_all;
use crate::schedule::PlannedSchedule;
use crate::step_time::StepTime;
use crate::target::PlanOptions;
use crate::timed_step::TimedStep;
use config::{RecomputePolicy, RunConfig};
use worker::Placement;
use worker::Setup;

/// Plans the whole run like [`plan_run`](crate::plan_run). Returns a page with this title that shows the
/// first rank of each role.
pub fn plan_page(config: RunConfig, options: &PlanOptions, title: &str) -> Result<Report> {
    let began = Instant::now();
    let ranks_on_device = DeviceRanks::from_config(&config);
    let device = options.target.device(options.capacity, ranks_on_device)?;
    let description = device.description(ranks_on_device);
    let resolved = Resolved::new(config, &description)?;
    let setup = recompute::settle(resolved.setup(Placement::Meta(description))?)?;
    let config = &setup.config;
    let plans = plan_all(&setup)?;
    let with_ranks = plans.roles().iter().enumerate().map(|(role, plan)| (plan, plans.ranks_of(role)));
    let ranks: Vec<_> = with_ranks.map(|(plan, ranks)| memory(&setup, plan, ranks.collect())).collect();
    let fit = Fit::from_plans(&setup, &plans, device.overhead.parts(ranks_on_device), RankForm::Threads);
    let timed = if fit.fits { TimedStep::predict(&setup, &device)? } else { None };
    let schedule = match config.parallel.pipeline {
        1 => None,
        _ => {
            let planned = PlannedSchedule::timed(&setup, timed.as_ref())?;
            let note = format!("drawn with passes {}", planned.times());
            Some(SchedulePicture { picture: planned.svg(), note })
        }
    };
    let mut tiles = memory_tiles(&ranks);
    let value = bytes(fit.capacity);
    let note = format!("{} bytes", grouped(fit.capacity));
    tiles.push(Tile { name: "Capacity", value, note });
    tiles.push(Tile {
        name: "Ranks",
        value: grouped(plans.world_size() as u64),
        note: format!("for {}", counted(config.train.steps, "step")),
    });
    tiles.extend(timed.map(|timed| predicted_tile(&timed.time)));
    if config.memory.recompute != RecomputePolicy::None {
        let value = match config.memory.recompute {
            RecomputePolicy::Segments(count) => counted(count as u64, "segment"),
            _ => "each layer".to_owned(),
        };
        tiles.push(Tile { name: "Recomputed", value, note: recompute::in_words(&config.memory) });
    }
    let took = began.elapsed().as_secs_f64();
    let model = setup.placement.description().model;
    let text = format!(
        "Planned for {model}, in {took:.1} s, by running a rank of every role without device memory."
    );
    let verdict = fit.to_string();
    let (first, rest) = verdict.split_at(1);
    let verdict = Notice { good: fit.fits, text: format!("{}{rest}.", first.to_uppercase()) };
    let notices = vec![verdict, Notice { good: true, text }];
    Ok(Report {
        title: title.to_owned(),
        subtitle: subtitle(config, None),
        tiles,
        notices,
        schedule,
        unit: config.model.examples().unit(),
        configuration: config.to_toml(),
        ranks,
        ..Report::default()
    })
}

fn predicted_tile(time: &StepTime) -> Tile {
    let speed = grouped(time.tokens_per_second as u64);
    let unit = time.unit;
    let estimated = if time.basis.is_measured() { "" } else { ", estimated" };
    Tile {
        name: "Step, predicted",
        value: format!("{:.1} ms", 1e3 * time.step_seconds),
        note: format!("{speed} {unit}{estimated}"),
    }
}

fn memory(setup: &Setup, plan: &Plan, ranks: Vec<usize>) -> RankMemory {
    let counters: &RankStatistics = &plan.counters;
    RankMemory {
        ranks,
        device: counters.device.clone(),
        figures: Statistic::MEMORY.map(|statistic| counters.get(statistic)),
        measured: None,
        planned: plan.parts.steady().map(|part| (*part.trace).clone()),
        limit: setup.device.limit_bytes,
    }
}
