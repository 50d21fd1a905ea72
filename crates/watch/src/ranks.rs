//! The table of ranks: memory, phases, speed, and the load of GPUs.

use ratatui::layout::Constraint;
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table};
use telemetry::units::{bytes, grouped};
use telemetry::{GpuLoad, Phase, RankStep, VALIDATION};

use crate::run_view::RunView;

/// Width of a memory bar in characters.
const BAR: u64 = 20;

/// A column: its title, its width in characters, and its text for a rank.
struct Column {
    title: String,
    width: u16,
    cell: Box<dyn Fn(&RankStep) -> Line<'static>>,
    /// Priority; in a narrow view, columns with the highest number are omitted first.
    rank: u8,
}

impl Column {
    fn new(
        title: impl Into<String>,
        width: u16,
        rank: u8,
        cell: impl Fn(&RankStep) -> Line<'static> + 'static,
    ) -> Self {
        Column { title: title.into(), width, cell: Box::new(cell), rank }
    }

    /// Creates a column of right-aligned text.
    fn text(title: &str, width: u16, rank: u8, cell: impl Fn(&RankStep) -> String + 'static) -> Self {
        Column::new(title, width, rank, move |record| Line::from(cell(record)).right_aligned())
    }
}

/// Draws a rank's memory as a bar: allocated, reserved, and free up to its capacity.
fn bar(record: &RankStep) -> Line<'static> {
    let capacity = record.capacity_bytes.max(1);
    let cells = |bytes: u64| {
        let exact = u128::from(bytes) * u128::from(BAR);
        u64::try_from(exact.div_ceil(u128::from(capacity))).map_or(BAR, |cells| cells.min(BAR))
    };
    let allocated = cells(record.allocated_bytes);
    let reserved = cells(record.reserved_bytes);
    let part = |symbol: &str, from: u64, to: u64| symbol.repeat(to.saturating_sub(from) as usize);
    Line::from(vec![
        Span::from(part("█", 0, allocated)).cyan(),
        Span::from(part("▒", allocated, reserved)).blue(),
        Span::from(part("·", reserved.max(allocated), BAR)).dark_gray(),
    ])
}

fn milliseconds(record: &RankStep, phase: &str) -> String {
    let time = record.phases.get(phase).and_then(|figures| figures.microseconds);
    time.map_or_else(String::new, |time| format!("{:.1}", time as f64 / 1000.0))
}

/// Returns the columns for which the run has data.
fn columns(run: &RunView) -> Vec<Column> {
    let mut columns = vec![
        Column::text("rank", 4, 0, |record| record.rank.to_string()),
        Column::new("memory", BAR as u16, 1, bar),
        Column::text("allocated", 10, 0, |record| bytes(record.allocated_bytes)),
        Column::text("reserved", 10, 3, |record| bytes(record.reserved_bytes)),
        Column::text("capacity", 10, 5, |record| bytes(record.capacity_bytes)),
        Column::text("step peak", 10, 1, |record| bytes(record.step_peak_allocated_bytes)),
    ];
    for phase in Phase::ALL.into_iter().filter(|phase| entered(run, phase.name())) {
        let width = (phase.name().len() as u16).max(8);
        columns.push(Column::text(phase.name(), width, 4, move |record| milliseconds(record, phase.name())));
    }
    if entered(run, VALIDATION) {
        let peak = |record: &RankStep| {
            record.phases.get(VALIDATION).map_or_else(String::new, |of| bytes(of.peak_allocated_bytes))
        };
        columns.push(Column::text("validation", 10, 6, peak));
    }
    let ranks = run.world_size.max(1) as f64;
    let speed = run.last.as_ref().and_then(|last| last.tokens_per_second).map(|all| all / ranks);
    if let Some(speed) = speed {
        let text = grouped(speed.round() as u64);
        columns.push(Column::text(run.unit, 10, 3, move |_| text.clone()));
    }
    if run.ranks().any(|record| record.gpu.is_some()) {
        columns.push(gpu("GPU", 6, |gpu| gpu.utilization_percent.map(|share| format!("{share} %"))));
        columns.push(gpu("power", 11, |gpu| {
            let limit = gpu.power_limit_watts.map_or(String::new(), |limit| format!("/{limit}"));
            gpu.power_watts.map(|watts| format!("{watts}{limit} W"))
        }));
        columns.push(gpu("clock", 9, |gpu| gpu.clock_mhz.map(|clock| format!("{clock} MHz"))));
    }
    columns
}

fn gpu(title: &str, width: u16, text: fn(&GpuLoad) -> Option<String>) -> Column {
    Column::text(title, width, 2, move |record| record.gpu.as_ref().and_then(text).unwrap_or_default())
}

fn entered(run: &RunView, phase: &str) -> bool {
    run.ranks().any(|record| record.phases.contains_key(phase))
}

/// Returns the table of the ranks from index `first` on, with the columns that fit into `width` characters.
pub(crate) fn table(run: &RunView, width: u16, first: usize) -> Table<'static> {
    let mut columns = columns(run);
    let total = |columns: &[Column]| columns.iter().map(|column| column.width + 1).sum::<u16>();
    while total(&columns) > width + 1 {
        // Among equal columns, the last is omitted.
        let leaves = columns.iter().enumerate().max_by_key(|(_, column)| column.rank);
        let Some((index, _)) = leaves.filter(|(_, column)| column.rank > 0) else { break };
        columns.remove(index);
    }
    let title = |column: &Column| match column.title.as_str() {
        "memory" => Line::from(column.title.clone()),
        _ => Line::from(column.title.clone()).right_aligned(),
    };
    let header = Row::new(columns.iter().map(|column| Cell::from(title(column))));
    let rows = run.ranks().skip(first).map(|record| {
        let is_throttled = record.gpu.as_ref().is_some_and(|gpu| !gpu.throttled.is_empty());
        let style = if is_throttled { Style::new().fg(Color::Yellow) } else { Style::new() };
        Row::new(columns.iter().map(|column| Cell::from((column.cell)(record)))).style(style)
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width));
    Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>()).header(header.style(Style::new().bold()))
}
