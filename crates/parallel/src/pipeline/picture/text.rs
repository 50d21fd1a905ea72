//! Drawing of a schedule as text.

use super::{chunk, letter, title};
use crate::pipeline::action::Action;
use crate::pipeline::schedule::Schedule;
use crate::pipeline::simulate::Timeline;

/// Draws a schedule as text: one row per rank and one column per `unit` of time. A cell shows the letter of
/// the pass (F forward, B backward or its input half, W its weight half), the micro-batch and, with several
/// stages per rank, a letter for the stage. A pass fills the columns whose middle it covers.
pub fn text(schedule: &Schedule, timeline: &Timeline, unit: u64) -> String {
    let unit = unit.max(1);
    let columns = timeline.makespan.div_ceil(unit);
    let compute = |rank: usize| {
        let spans = schedule.actions[rank].iter().zip(&timeline.spans[rank]);
        spans.filter(|(action, _)| action.kind.is_compute())
    };
    let labels = (0..schedule.ranks).flat_map(compute).map(|(action, _)| label(schedule, *action).len());
    let cell = labels.max().unwrap_or(0) + 1;
    let head = format!("rank {}", schedule.ranks - 1).len() + 2;
    let mut lines = vec![title(schedule, timeline), axis(head, cell, columns, unit)];
    for rank in 0..schedule.ranks {
        let mut row = format!("{:head$}", format!("rank {rank}"));
        let mut next = 0;
        for (action, span) in compute(rank) {
            // The middle of column c is at (c + ½) unit: the pass fills the columns from the first middle at
            // or after its start to the last before its end.
            let column = |time: u64| (2 * time).saturating_sub(unit).div_ceil(2 * unit);
            let first = column(span.start);
            let end = column(span.end);
            if end > first {
                row.push_str(&format!("{:cell$}", "·").repeat((first - next) as usize));
                row.push_str(&bar(&label(schedule, *action), cell * (end - first) as usize, end - first > 1));
                next = end;
            }
        }
        row.push_str(&format!("{:cell$}", "·").repeat((columns - next.min(columns)) as usize));
        lines.push(row.trim_end().to_owned());
    }
    lines.join("\n") + "\n"
}

/// Returns the axis, with a time above every fifth column.
fn axis(head: usize, cell: usize, columns: u64, unit: u64) -> String {
    let marks = (0..columns).step_by(5).map(|column| format!("{:<width$}", column * unit, width = 5 * cell));
    format!("{:head$}{}", "time", marks.collect::<String>()).trim_end().to_owned()
}

fn bar(label: &str, width: usize, long: bool) -> String {
    if long { format!("{label:─<width$} ", width = width - 1) } else { format!("{label:width$}") }
}

fn label(schedule: &Schedule, action: Action) -> String {
    let pass = format!("{}{}", letter(action.kind), action.micro_batch);
    match schedule.chunks() {
        1 => pass,
        _ => format!("{pass}{}", stage_letter(chunk(schedule, action))),
    }
}

/// Returns the letters of a stage: a, b, … z, then aa, ab, ….
fn stage_letter(chunk: usize) -> String {
    let last = char::from(b'a' + (chunk % 26) as u8);
    match chunk / 26 {
        0 => last.to_string(),
        more => stage_letter(more - 1) + &last.to_string(),
    }
}
