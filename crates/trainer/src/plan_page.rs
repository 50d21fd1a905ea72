//! `plimsoll plan --html`: what every rank will use, as one page.

use std::time::Instant;

use telemetry::report::{Notice, RankMemory, Report, SchedulePicture, Tile};
use telemetry::{RankStatistics, Statistic};

use crate::config::{Recompute, RunConfig};
use crate::error::Result;
use crate::placement::{DeviceChoice, Imitated};
use crate::plan::{Plan, plan_all};
use crate::plan_schedule::schedule_of;
use crate::recompute;
use crate::run_report::{memory_tiles, subtitle, unit};
use crate::worker::Setup;

/// Plans the whole run, as [`plan_run`](crate::plan_run) does, for a page with this title. Errors: as there.
pub fn plan_page(config: RunConfig, choice: DeviceChoice, title: &str) -> Result<Report> {
    let began = Instant::now();
    let Imitated { placement, on, .. } = Imitated::find(choice)?;
    let setup = recompute::settle(Setup::new(config, placement)?)?;
    let config = &setup.config;
    let ranks: Vec<_> = plan_all(&setup)?.iter().map(|plan| memory(&setup, plan)).collect();
    let schedule = match config.parallel.pipeline {
        1 => None,
        _ => Some(SchedulePicture {
            picture: schedule_of(&setup)?.svg(),
            note: "drawn with passes as long as their operations and bytes, and transfers hidden".to_owned(),
        }),
    };
    let mut tiles = memory_tiles(&ranks);
    let steps = telemetry::units::grouped(config.train.steps);
    tiles.push(Tile { name: "Ranks", value: ranks.len().to_string(), note: format!("for {steps} steps") });
    if config.memory.recompute != Recompute::None {
        let value = match config.memory.recompute {
            Recompute::Segments(count) => format!("{count} segments"),
            _ => "each layer".to_owned(),
        };
        tiles.push(Tile { name: "Recomputed", value, note: recompute::in_words(&config.memory) });
    }
    let took = began.elapsed().as_secs_f64();
    let text = format!("Planned for {on}, in {took:.1} s, by running every rank with nothing behind its memory.");
    Ok(Report {
        title: title.to_owned(),
        subtitle: subtitle(config, None),
        tiles,
        notices: vec![Notice { good: true, text }],
        schedule,
        unit: unit(config),
        configuration: config.to_toml(),
        ranks,
        ..Report::default()
    })
}

fn memory(setup: &Setup, plan: &Plan) -> RankMemory {
    let counters: &RankStatistics = &plan.counters;
    let figures = [
        Statistic::AllocatedBytes,
        Statistic::ReservedBytes,
        Statistic::PeakAllocatedBytes,
        Statistic::PeakReservedBytes,
    ];
    RankMemory {
        rank: plan.rank,
        place: counters.device.clone(),
        figures: figures.map(|figure| counters.get(figure)),
        measured: None,
        planned: plan.parts.steady().map(|part| (*part.trace).clone()),
        limit: setup.device.limit_bytes,
    }
}
