//! A plan as text: one line for all equal ranks, and the allocations alive at their peaks.

use std::fmt;

use memory::Category;
use telemetry::Statistic;
use telemetry::step_trace::Holding;
use telemetry::table::aligned;
use telemetry::units::{bytes, counted, grouped, ranges};

use super::{PipelinePlan, PlanReport};
use crate::by_axis::AxisCommunication;
use crate::plan::Plan;
use crate::recompute;
use crate::remedy;
use crate::roles::Plans;
use config::RecomputePolicy;
use planned::PlannedPeak;

/// Maximum number of lines in the table by rank; the JSON has all ranks.
const LINES: usize = 32;
/// Maximum number of kinds of ranks whose peaks are shown side by side.
const SIDE_BY_SIDE: usize = 8;
/// Maximum number of listed modules.
const MODULES: usize = 12;

/// Statistic whose column is shown if a rank offloads to the host.
const HOST: Statistic = Statistic::PeakHostReservedBytes;

/// Ranks that share a line of the table.
struct Line<'a> {
    ranks: Vec<usize>,
    plan: &'a Plan,
    peak: Option<PlannedPeak>,
    cells: Vec<String>,
}

impl<'a> Line<'a> {
    /// Groups roles with equal cells into lines, in the order of their first ranks.
    fn all(plans: &'a Plans) -> Vec<Self> {
        let mut lines: Vec<Line<'_>> = Vec::new();
        for (role, plan) in plans.roles().iter().enumerate() {
            let peak = plan.parts.peak();
            let mut cells: Vec<_> =
                Statistic::MEMORY.map(|statistic| exact(plan.counters.get(statistic))).into();
            if offloads(plans) {
                cells.push(exact(plan.counters.get(HOST)));
            }
            cells.push(exact(plan.step_traffic.total().bytes_sent));
            cells.push(peak.as_ref().map_or_else(String::new, index));
            match lines.iter_mut().find(|line| line.cells == cells) {
                Some(line) => line.ranks.extend(plans.ranks_of(role)),
                None => lines.push(Line { ranks: plans.ranks_of(role).collect(), plan, peak, cells }),
            }
        }
        lines.iter_mut().for_each(|line| line.ranks.sort_unstable());
        lines
    }

    fn ranks(&self) -> String {
        in_steps(&self.ranks)
    }
}

fn offloads(plans: &Plans) -> bool {
    plans.roles().iter().any(|plan| plan.counters.get(HOST) > 0)
}

/// Formats bytes exactly and rounded.
fn exact(count: u64) -> String {
    format!("{} ({})", grouped(count), bytes(count))
}

/// Formats ascending ranks as `0-3,8`, or as `0-24 by 8` if equally spaced.
fn in_steps(ranks: &[usize]) -> String {
    match ranks {
        [first, second, .., last] if second - first > 1 => {
            let step = second - first;
            let even = ranks.windows(2).all(|pair| pair[1] - pair[0] == step);
            if even { format!("{first}-{last} by {step}") } else { ranges(ranks.iter().copied()) }
        }
        _ => ranges(ranks.iter().copied()),
    }
}

/// Describes the phase and module of a peak.
fn index(planned_peak: &PlannedPeak) -> String {
    let module = planned_peak.peak.owner.as_ref().map_or("", |owner| match owner.module.as_str() {
        "" => &owner.operator,
        module => module,
    });
    format!("{}, {module}", planned_peak.peak.phase)
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = &self.device_model;
        let capacity = grouped(self.fit.capacity);
        let assumed = if self.assumed.is_empty() { "" } else { " (assumed, not measured)" };
        let took = self.took.as_secs_f64();
        writeln!(f, "planned for {model}, {capacity} bytes{assumed}, in {took:.1} s\n")?;
        let lines = Line::all(&self.plans);
        write!(f, "{}", rank_table(&lines, &self.plans, self.shared_gpu()))?;
        if self.memory.recompute != RecomputePolicy::None {
            writeln!(f, "\nwith {}", recompute::in_words(&self.memory))?;
        }
        let largest = lines.iter().rev().max_by_key(|line| line.plan.statistics.peak_reserved());
        let Some(largest) = largest else { return Ok(()) };
        let shown: Vec<_> = if lines.len() > SIDE_BY_SIDE { vec![largest] } else { lines.iter().collect() };
        write!(f, "\nat the peak\n{}", category_table(&shown))?;
        if let Some(peak) = &largest.peak {
            write!(f, "{}", standing(largest, peak))?;
            write!(f, "{}", module_table(largest, peak))?;
        }
        if let Some(PipelinePlan { schedule, layers, micro_batches, bubble, times }) = &self.pipeline {
            let stages = layers.len();
            let bubble = 100.0 * bubble;
            let layers = match (layers.iter().min(), layers.iter().max()) {
                (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
                (least, _) => least.map_or_else(String::new, usize::to_string),
            };
            let micro_batches = counted(*micro_batches as u64, "micro-batch");
            let layers = if layers == "1" { "1 layer".to_owned() } else { format!("{layers} layers") };
            writeln!(
                f,
                "\n{schedule}: {stages} stages of {layers}, {micro_batches}; \
                 ranks wait {bubble:.1} % of the \
                 passes' time, {times}"
            )?;
        }
        if !self.communication.is_empty() {
            write!(f, "\ncommunication in a step, by axis\n{}", axis_table(&self.communication))?;
        }
        if let Some(time) = &self.time {
            write!(f, "\n{time}")?;
        }
        let costs: [Option<&dyn fmt::Display>; 6] = [
            self.epochs.as_ref().map(|epochs| epochs as _),
            self.lanes.as_ref().map(|lanes| lanes as _),
            self.whole_gradients.as_ref().map(|gradients| gradients as _),
            self.balance.as_ref().map(|balance| balance as _),
            self.fp8.as_ref().map(|fp8| fp8 as _),
            self.tuning.as_ref().map(|tuning| tuning as _),
        ];
        costs.into_iter().flatten().try_for_each(|cost| writeln!(f, "\n{cost}"))?;
        if !self.groups.is_empty() {
            writeln!(f)?;
        }
        self.groups.iter().try_for_each(|group| writeln!(f, "{group}"))?;
        let host: Vec<_> =
            self.fit.host.parts.iter().map(|part| format!("{} {}", bytes(part.bytes), part.name)).collect();
        writeln!(f, "\nbeside that on the host {}: {}", bytes(self.fit.host.bytes()), host.join(", "))?;
        self.defaults.iter().try_for_each(|sentence| writeln!(f, "\n{sentence}"))?;
        self.warnings.iter().try_for_each(|sentence| writeln!(f, "\nwarning: {sentence}"))?;
        self.without_effect.iter().try_for_each(|sentence| writeln!(f, "\nnote: {sentence}"))?;
        match &self.refusal {
            None => write!(f, "\n{}", self.fit),
            Some(refusal) => {
                let figures = refusal.strip_prefix(remedy::DOES_NOT_FIT).unwrap_or(refusal);
                write!(f, "\ndoes not fit: {figures}")
            }
        }
    }
}

fn axis_table(axes: &[AxisCommunication]) -> String {
    let mut rows = vec![
        ["axis", "ranks", "sent by the rank that sends most", "compute waits"].map(str::to_owned).to_vec(),
    ];
    for AxisCommunication { axis, ranks, step_bytes_sent, exposed_seconds } in axes {
        let waits = exposed_seconds.map_or_else(String::new, |time| format!("{:.2} ms", 1e3 * time));
        rows.push(vec![(*axis).to_owned(), ranks.to_string(), exact(*step_bytes_sent), waits]);
    }
    aligned(&rows, 1, &[1])
}

/// Returns the table by rank. If the ranks share a GPU, `shared` has the plans of all of them, whose sums are
/// another row.
fn rank_table(lines: &[Line<'_>], plans: &Plans, shared: Option<&Plans>) -> String {
    let mut titles = vec!["rank", "allocated", "reserved", "peak allocated", "peak reserved"];
    titles.extend(offloads(plans).then_some("on the host"));
    titles.extend(["sent in a step", "peak reached in"]);
    let mut rows = vec![titles.into_iter().map(str::to_owned).collect()];
    for line in lines.iter().take(LINES) {
        rows.push([&[line.ranks()][..], &line.cells].concat());
    }
    let by_rank = rows.len();
    if let Some(plans) = shared {
        let sum = |statistic: Statistic| plans.by_rank().map(|(_, plan)| plan.counters.get(statistic)).sum();
        let sent = plans.by_rank().map(|(_, plan)| plan.step_traffic.total().bytes_sent).sum();
        let mut row = vec!["the device".to_owned()];
        row.extend(Statistic::MEMORY.map(|statistic| exact(sum(statistic))));
        row.extend(offloads(plans).then(|| exact(sum(HOST))));
        row.extend([exact(sent), String::new()]);
        rows.push(row);
    }
    let more = match lines.len().saturating_sub(LINES) {
        0 => String::new(),
        more => format!("and {more} more lines; --json has all\n"),
    };
    format!("memory by rank\n{}{more}", aligned(&rows, 1, &[1, by_rank]))
}

/// Returns the table of allocations alive at the peaks, largest first.
fn category_table(lines: &[&Line<'_>]) -> String {
    let live = |line: &Line<'_>, category| line.plan.counters.get(Statistic::PeakBytes(category));
    let mut categories: Vec<_> = Category::ALL.into_iter().collect();
    categories.retain(|category| lines.iter().any(|line| live(line, *category) > 0));
    categories
        .sort_by_key(|category| std::cmp::Reverse(lines.first().map_or(0, |line| live(line, *category))));
    let mut header = vec![String::new()];
    header.extend(lines.iter().map(|line| match line.ranks.as_slice() {
        [rank] => format!("rank {rank}"),
        _ => format!("ranks {}", line.ranks()),
    }));
    let row = |category: &Category| {
        let mut row = vec![category.name().to_owned()];
        for line in lines {
            let (count, peak) =
                (live(line, *category), line.plan.counters.get(Statistic::PeakAllocatedBytes));
            row.push(match lines.len() {
                1 => format!("{} ({}) {:>5.1} %", grouped(count), bytes(count), share(count, peak)),
                _ => bytes(count),
            });
        }
        row
    };
    let rows: Vec<_> = std::iter::once(header).chain(categories.iter().map(row)).collect();
    aligned(&rows, 1, &[1])
}

fn share(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Describes the phase and the owner of the allocation that reached the peak.
fn standing(line: &Line<'_>, planned_peak: &PlannedPeak) -> String {
    let peak = &planned_peak.peak;
    let micro_batch = peak.micro_batch.map_or_else(String::new, |number| format!(" of micro-batch {number}"));
    let stage = peak.stage.map_or_else(String::new, |stage| format!(" in stage {stage}"));
    let by = match &peak.owner {
        Some(owner) if owner.module.is_empty() => owner.operator.clone(),
        Some(owner) => format!("{} ({})", owner.module, owner.operator),
        None => "allocations from before".to_owned(),
    };
    let rank = line.plan.rank;
    let phase = &peak.phase;
    let part = planned_peak.part.of_step(planned_peak.step);
    let what = format!("{phase}{micro_batch}{stage} in {part}");
    format!("\nrank {rank} reaches its peak in {what}, when {by} requests {}\n", bytes(peak.requested))
}

/// Returns the table of activations and their gradients at the peak by module, with layers merged.
fn module_table(line: &Line<'_>, planned_peak: &PlannedPeak) -> String {
    let live = planned_peak.live.by_module();
    let is_activation = |holding: &&Holding| {
        matches!(holding.owner.category, Category::Activation | Category::ActivationGradient)
    };
    let all: Vec<_> = live.holdings.iter().filter(is_activation).collect();
    if all.is_empty() {
        return String::new();
    }
    let row = |holding: &&Holding| {
        let kind = if holding.owner.category == Category::Activation { "" } else { "gradients" };
        let module =
            if holding.owner.module.is_empty() { "outside of modules" } else { &holding.owner.module };
        let name = format!("{module} {kind}");
        let count = counted(holding.blocks, "block");
        vec![name.trim().to_owned(), count, grouped(holding.bytes), format!("({})", bytes(holding.bytes))]
    };
    let mut rows: Vec<_> = all.iter().take(MODULES).map(row).collect();
    let rest: u64 = all.iter().skip(MODULES).map(|holding| holding.bytes).sum();
    if rest > 0 {
        rows.push(vec!["others".to_owned(), String::new(), grouped(rest), format!("({})", bytes(rest))]);
    }
    format!("\nactivations at the peak of rank {} by module\n{}", line.plan.rank, aligned(&rows, 1, &[]))
}

#[cfg(test)]
mod tests {
    #[test]
    fn ranks_are_abbreviated() {
        for (ranks, text) in [
            (&[5][..], "5"),
            (&[0, 1, 2, 3, 8], "0-3,8"),
            (&[0, 8], "0,8"),
            (&[1, 9, 17, 25], "1-25 by 8"),
            (&[0, 8, 16, 17], "0,8,16-17"),
        ] {
            assert_eq!(super::in_steps(ranks), text);
        }
    }
}
