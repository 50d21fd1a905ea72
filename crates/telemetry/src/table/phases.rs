//! The table of time by phase.

use std::fmt::Write;

use super::{EXTREMES, aligned, extreme};
use crate::phase::Phase;
use crate::rank_statistics::RankStatistics;
use crate::statistic::Statistic;
use crate::units::{grouped, milliseconds, percent};

/// Fraction of a step above which differences between ranks are reported.
const IMBALANCE: f64 = 0.01;

/// Returns a table with a row for each phase: its median time, its fraction of the step, and its total time.
/// Several ranks have the maximum and minimum median with their ranks; fraction and total are means over
/// ranks. Phases in which ranks differ by more than 1 % of a step are listed below. Empty if nothing was
/// timed.
pub fn phase_table(ranks: &[RankStatistics]) -> String {
    let steps = ranks.iter().map(|rank| rank.get(Statistic::TimedSteps)).min().unwrap_or(0);
    if steps == 0 {
        return String::new();
    }
    let mean = |statistic: Statistic| {
        ranks.iter().map(|rank| rank.get(statistic) as f64).sum::<f64>() / ranks.len() as f64
    };
    let whole_step = mean(Statistic::WholeStepTime).max(1.0);
    let columns: &[&str] = if ranks.len() == 1 { &["median"] } else { &["maximum", "minimum"] };
    let mut header = vec!["phase".to_owned()];
    header.extend(columns.iter().map(|name| (*name).to_owned()));
    header.extend(["share of the step".to_owned(), "all steps".to_owned()]);
    let mut rows = vec![header];
    let mut line = |name: &str, median: Statistic, whole: Statistic| {
        let mut row = vec![name.to_owned()];
        match ranks {
            [only] => row.push(milliseconds(only.get(median))),
            _ => row.extend(EXTREMES.map(|(_, wins)| extreme(ranks, median, wins))),
        }
        row.push(percent(mean(whole) / whole_step));
        row.push(format!("{:.3} s", mean(whole) / 1e6));
        rows.push(row);
    };
    for phase in Phase::ALL {
        // Runs without a pipeline have no pipeline row, and runs without tensor or context parallelism no
        // exchange row.
        let is_rare = matches!(phase, Phase::Pipeline | Phase::Exchange);
        if is_rare && mean(Statistic::WholeTime(phase)) == 0.0 {
            continue;
        }
        let name = match phase {
            Phase::Reduce | Phase::Exchange => format!("{}, exposed", phase.name()),
            _ => phase.name().to_owned(),
        };
        line(&name, Statistic::MedianTime(phase), Statistic::WholeTime(phase));
    }
    line("step", Statistic::MedianStepTime, Statistic::WholeStepTime);
    let mut text = format!("time by phase, median of {} steps\n", grouped(steps));
    text += &aligned(&rows, 1, &[1, rows.len() - 1]);
    text += &imbalances(ranks);
    text
}

/// Returns a line for each phase in which the slowest rank exceeds the fastest by more than 1 % of a step.
fn imbalances(ranks: &[RankStatistics]) -> String {
    let mut text = String::new();
    let step = ranks.iter().map(|rank| rank.get(Statistic::MedianStepTime)).max().unwrap_or(0) as f64;
    for phase in Phase::ALL {
        let time = |rank: &&RankStatistics| rank.get(Statistic::MedianTime(phase));
        // Of equal ranks the first is named, as in the table.
        let slowest = ranks.iter().rev().max_by_key(time);
        let (Some(slowest), Some(fastest)) = (slowest, ranks.iter().min_by_key(time)) else { continue };
        let apart = time(&slowest) - time(&fastest);
        if apart as f64 <= IMBALANCE * step {
            continue;
        }
        let verb = if phase.waits() { "waits" } else { "takes" };
        let name = phase.name();
        let share = percent(apart as f64 / step);
        let behind = slowest.rank;
        let ahead = fastest.rank;
        let time = milliseconds(apart);
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "{name}: rank {behind} {verb} {time} longer than rank {ahead}, {share} of a step");
    }
    text
}
