//! Arguments of `plimsoll bench scaling`.

use std::path::PathBuf;

use telemetry::scaling::Scaling;

use crate::arguments::count;
use crate::bench_model::{StepArgs, TraceArgs};
use crate::outputs::Force;

/// Arguments of measurements, which conflict with `--report`.
const MEASURES: [&str; 12] = [
    "model",
    "ranks",
    "micro_batches",
    "strong",
    "weak",
    "reduction",
    "alone",
    "rounds",
    "first_round",
    "shard",
    "trace",
    "json",
];

/// Measure a training step on 1, 2, 4, … ranks, as threads or, under mpirun, processes: speed, exposed
/// communication and peak memory
#[derive(Debug, clap::Args)]
pub(crate) struct BenchScalingArgs {
    /// Report on these files of JSON lines instead of measuring
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = MEASURES)]
    pub(super) report: Vec<PathBuf>,
    /// Model, as in bench step [default: gpt2-124m on GPUs, small on the CPU]
    #[arg(long)]
    pub(super) model: Option<String>,
    #[command(flatten)]
    pub(super) step: StepArgs,
    #[command(flatten)]
    pub(super) trace: TraceArgs,
    /// Numbers of ranks, as in 1,2,4 [default: powers of two up to the number of GPUs; 1,2 on the CPU]. Under
    /// mpirun, list all numbers of the series; each job measures only its own
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = count::<usize>)]
    pub(super) ranks: Vec<usize>,
    /// Number of micro-batches in a step on the largest number of ranks [default: one for each rank]. Strong
    /// scaling keeps this number, weak scaling the number per rank
    #[arg(long, value_name = "M", value_parser = count::<usize>)]
    pub(super) micro_batches: Option<usize>,
    /// Only strong scaling: the same global batch for every number of ranks
    #[arg(long, conflicts_with = "weak")]
    pub(super) strong: bool,
    /// Only weak scaling: the same batch per rank
    #[arg(long)]
    pub(super) weak: bool,
    /// Reductions of gradients over ranks: tree, nccl or both [default: tree; tree,nccl on GPUs]
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = ["tree", "nccl"])]
    pub(super) reduction: Vec<String>,
    /// Also measure the devices of the largest number of ranks alone, all at the same time: one single-rank
    /// world per device, with as many micro-batches as a rank has in the other runs. Under mpirun, only this
    /// is measured
    #[arg(long)]
    pub(super) alone: bool,
    /// Measure everything N times, alternating; the median round of each run is used
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<usize>)]
    pub(super) rounds: usize,
    /// Number of the first round, for lines of JSON
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<usize>)]
    pub(super) first_round: usize,
    /// Shard the optimizer state over the ranks
    #[arg(long)]
    pub(super) shard: bool,
    /// Print a line of JSON for each run instead of a table
    #[arg(long)]
    pub(super) json: bool,
    /// Directory in which to write efficiency.svg and memory.svg
    #[arg(long, value_name = "DIR", conflicts_with = "json")]
    pub(super) plots: Option<PathBuf>,
    #[command(flatten)]
    pub(super) force: Force,
}

impl BenchScalingArgs {
    /// Returns the series to measure.
    pub(super) fn series(&self) -> &'static [Scaling] {
        match (self.strong, self.weak) {
            (true, _) => &[Scaling::Strong],
            (_, true) => &[Scaling::Weak],
            _ => &[Scaling::Strong, Scaling::Weak],
        }
    }
}
