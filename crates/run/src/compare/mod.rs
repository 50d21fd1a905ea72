//! `plimsoll compare`: whether two runs computed the same bits, and where they first differ.

mod compared;
mod rerun;
mod settings;

use std::fmt;
use std::path::Path;

use serde::Serialize;
use telemetry::hashes::{self, HashComparison, Parting};
use telemetry::report::{Curve, Notice, Report, StepPoint};
use telemetry::run_files::Summary;
use telemetry::units::{counted, sparkline};
use worker::TensorHook;

use crate::error::Result;
pub use compared::ComparedRun;
pub use rerun::{Rerun, RerunOptions};
pub use settings::Difference;

/// Width of a learning curve in terminal columns.
const COLUMNS: usize = 60;

/// Options of [`compare`].
#[derive(Clone, Debug, Default)]
pub struct CompareOptions {
    /// If set, train both runs again from their nearest checkpoints with every step hashed, to find the
    /// operator.
    pub rerun: Option<RerunOptions>,
    /// A tensor hook for each rerun.
    pub hooks: [Option<TensorHook>; 2],
}

/// The first step whose loss or gradient norm differs between two runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MetricsParting {
    /// The step, from 1.
    pub step: u64,
    /// Loss in each run.
    pub losses: [Option<f64>; 2],
    /// Gradient norm in each run.
    pub gradient_norms: [Option<f64>; 2],
}

/// The result of [`compare`].
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The two runs.
    pub runs: [ComparedRun; 2],
    /// Configuration keys whose values differ.
    pub settings: Vec<Difference>,
    /// Differing device, libraries and version.
    pub software: Vec<Difference>,
    /// Comparison of hashes; `None` if no step is hashed in both runs.
    pub hashes: Option<HashComparison>,
    /// The first step whose loss or gradient norm differs; `None` if all are equal.
    pub metrics: Option<MetricsParting>,
    /// Number of steps that both metrics files have.
    pub steps: usize,
    /// SHA-256 of the final weights of each run; `None` if a run has not ended or the step counts differ.
    pub weights: Option<[String; 2]>,
    /// Result of the rerun, if `CompareOptions::rerun` was set.
    pub rerun: Option<Rerun>,
}

/// Compares the runs in two directories.
///
/// # Errors
/// A directory has no run, a file cannot be read, or a rerun fails.
pub fn compare(directories: [&Path; 2], options: CompareOptions) -> Result<Comparison> {
    let [first, second] = directories.map(ComparedRun::read);
    let runs = [first?, second?];
    let files = runs.each_ref().map(|run| hashes::read(&run.path.join(hashes::FILE), run.summary.is_some()));
    let [first, second] = files;
    let hashes = Some(hashes::compare(&first?, &second?)).filter(|comparison| comparison.steps > 0);
    let (metrics, steps) = metrics(&runs);
    let mut comparison = Comparison {
        settings: settings::of_configurations([&runs[0].config, &runs[1].config]),
        software: settings::of_software([&runs[0].summary, &runs[1].summary]),
        weights: weights(&runs),
        runs,
        hashes,
        metrics,
        steps,
        rerun: None,
    };
    if let Some(rerun) = options.rerun.filter(|_| !comparison.is_same()) {
        comparison.rerun =
            Some(rerun::run(&comparison.runs, comparison.parted_within(), &rerun, options.hooks)?);
    }
    Ok(comparison)
}

/// Returns the final weight hashes of two finished runs with equal step counts.
fn weights(runs: &[ComparedRun; 2]) -> Option<[String; 2]> {
    let [first, second] = [runs[0].summary.as_ref()?, runs[1].summary.as_ref()?];
    let hash = |summary: &Summary| summary.weights_sha256.clone();
    (first.steps == second.steps).then(|| [hash(first), hash(second)])
}

/// Returns the first step whose loss or gradient norm differs, and the number of steps that both runs have.
fn metrics(runs: &[ComparedRun; 2]) -> (Option<MetricsParting>, usize) {
    let [first, second] = [&runs[0].history, &runs[1].history];
    let pairs = || {
        first.iter().filter_map(|point| {
            let index = second.binary_search_by_key(&point.step, |other| other.step).ok()?;
            Some([point, &second[index]])
        })
    };
    let values = |point: &StepPoint| (point.loss, point.gradient_norm, point.is_finite);
    let parting = pairs().find(|[a, b]| values(a) != values(b)).map(|[a, b]| MetricsParting {
        step: a.step,
        losses: [a.loss, b.loss],
        gradient_norms: [a.gradient_norm, b.gradient_norm],
    });
    (parting, pairs().count())
}

impl Comparison {
    /// Returns whether everything that was compared is bit-identical.
    #[must_use]
    pub fn is_same(&self) -> bool {
        let weights = self.weights.as_ref().is_none_or(|[first, second]| first == second);
        self.parting().is_none() && self.metrics.is_none() && weights
    }

    /// Returns the first array whose hash differs.
    #[must_use]
    pub fn parting(&self) -> Option<&Parting> {
        self.hashes.as_ref()?.parting.as_ref()
    }

    /// Returns (last step known to be equal, first step known to differ). Without a difference, the second is
    /// the last step of both runs.
    fn parted_within(&self) -> (u64, u64) {
        let ends = self.runs.each_ref().map(|run| run.history.last().map_or(1, |point| point.step));
        let by_hashes = self.parting().map(|parting| (parting.last_equal.unwrap_or(0), parting.step));
        let by_metrics = self.metrics.map(|parting| (parting.step - 1, parting.step));
        let last = [by_hashes, by_metrics].into_iter().flatten().map(|(_, differs)| differs);
        let last = last.fold(ends[0].min(ends[1]), u64::min);
        // Hashes prove that weights are equal; losses and norms may round a difference away.
        let (equal, _) = by_hashes.or(by_metrics).unwrap_or_default();
        (equal.min(last.saturating_sub(1)), last)
    }

    /// Returns the findings, one sentence per entry.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        match (&self.hashes, self.parting()) {
            (None, _) => findings.push(
                "no step is hashed in both runs: `telemetry.hashes = 1` names the first array that differs"
                    .to_owned(),
            ),
            (Some(all), None) => findings.push(format!(
                "all {} of {} are equal to the bit",
                counted(all.arrays as u64, "hashed array"),
                counted(all.steps as u64, "step")
            )),
            (Some(_), Some(parting)) => findings.push(format!("they part in {parting}")),
        }
        let shown = |value: Option<f64>| value.map_or_else(|| "not finite".to_owned(), |v| v.to_string());
        findings.extend(self.hashes.as_ref().filter(|all| all.unmatched > 0).map(|all| {
            let count = counted(all.unmatched as u64, "result");
            format!("{count} of operators, fused differently in the two runs, have no counterpart")
        }));
        match &self.metrics {
            _ if self.steps == 0 => findings.push("no step is in both metrics".to_owned()),
            None => findings.push(format!(
                "losses and gradient norms of all {} in both are equal",
                counted(self.steps as u64, "step")
            )),
            Some(MetricsParting { step, losses: [a, b], gradient_norms: [c, d] }) => findings.push(format!(
                "from step {step} on, losses or gradient norms differ: loss {} and {}, norm {} and {}",
                shown(*a),
                shown(*b),
                shown(*c),
                shown(*d)
            )),
        }
        findings.extend(self.weights.as_ref().map(|[first, second]| match first == second {
            true => format!("the weights at the end are equal: {}…", &first[..first.len().min(12)]),
            false => "the weights at the end differ".to_owned(),
        }));
        findings.extend(self.runs.iter().filter_map(|run| run.damage.clone()));
        findings.extend(self.rerun.as_ref().map(ToString::to_string));
        findings
    }

    /// Returns a report page with the findings, all differences and both learning curves.
    #[must_use]
    pub fn page(&self) -> Report {
        let names = self.runs.each_ref().map(|run| run.path.display().to_string());
        let notice = |text| Notice { good: self.is_same(), text };
        let differences = self.settings.iter().chain(&self.software);
        let differences = differences.map(|difference| format!("{difference}\n"));
        let curve =
            |(run, name): (&ComparedRun, &String)| Curve { name: name.clone(), history: run.history.clone() };
        Report {
            title: format!("{} and {}", names[0], names[1]),
            subtitle: self.verdict().to_owned(),
            notices: self.findings().into_iter().map(notice).collect(),
            curves: self.runs.iter().zip(&names).map(curve).collect(),
            differences: differences.collect(),
            ..Report::default()
        }
    }

    fn verdict(&self) -> &'static str {
        match self.is_same() {
            true => "the same computation, as far as both have recorded it",
            false => "not the same computation",
        }
    }

    /// Draws the learning curves of both runs for a terminal.
    #[must_use]
    pub fn curves(&self) -> Vec<String> {
        let losses = self
            .runs
            .each_ref()
            .map(|run| run.history.iter().filter_map(|point| point.loss).collect::<Vec<_>>());
        let ends = |wins: fn(f64, f64) -> f64| losses.iter().flatten().copied().reduce(wins);
        let (Some(least), Some(most)) = (ends(f64::min), ends(f64::max)) else { return Vec::new() };
        let line = |(run, losses): (&ComparedRun, &Vec<f64>)| {
            let last = losses.last().map_or_else(String::new, |last| format!("{last:.4}"));
            format!("{}  {last}  {}", sparkline(losses, (least, most), COLUMNS), run.path.display())
        };
        self.runs.iter().zip(&losses).map(line).collect()
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.verdict())?;
        for text in self.findings() {
            writeln!(f, "  {text}")?;
        }
        for (title, differences) in [("settings", &self.settings), ("device and software", &self.software)] {
            match differences.is_empty() {
                true => writeln!(f, "{title}: no difference")?,
                false => writeln!(f, "{title}:")?,
            }
            for difference in differences {
                writeln!(f, "  {difference}")?;
            }
        }
        let curves = self.curves();
        if !curves.is_empty() {
            writeln!(f, "loss by step:")?;
        }
        curves.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}
