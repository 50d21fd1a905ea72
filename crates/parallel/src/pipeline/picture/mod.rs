//! Drawings of schedules.

mod svg;
mod text;

pub use svg::svg;
pub use text::text;

use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::schedule::Schedule;
use crate::pipeline::simulate::Timeline;

/// Returns the title line of a drawing.
fn title(schedule: &Schedule, timeline: &Timeline) -> String {
    let Schedule { kind, ranks, micro_batches, .. } = schedule;
    let chunks = match schedule.chunks() {
        1 => String::new(),
        chunks => format!(" × {chunks} stages"),
    };
    let bubble = 100.0 * timeline.bubble();
    let batches = if *micro_batches == 1 { "micro-batch" } else { "micro-batches" };
    let ranks = if *ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
    format!("{kind}: {ranks}{chunks}, {micro_batches} {batches}, {bubble:.1} % idle")
}

/// Returns the letter of a kind of pass.
fn letter(kind: ActionKind) -> char {
    match kind {
        ActionKind::Forward => 'F',
        ActionKind::BackwardWeight => 'W',
        _ => 'B',
    }
}

/// Returns the index of an action's stage among the stages of its rank.
fn chunk(schedule: &Schedule, action: Action) -> usize {
    schedule.layout().chunk_of(action.stage)
}
