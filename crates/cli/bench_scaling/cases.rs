//! The runs measured by `plimsoll bench scaling`.

use std::path::Path;

use crate::error::CliError;
use bench::{BenchOptions, ScalingCase};
use config::RunConfig;
use telemetry::scaling::Scaling;
use worker::DeviceChoice;

use super::arguments::BenchScalingArgs;
use crate::bench_model::BenchModel;

/// Keys that the benchmark sets itself.
const OWN: [&str; 5] = [
    "parallel.data",
    "parallel.pipeline",
    "parallel.reduction",
    "train.micro_batch_size",
    "train.global_batch_size",
];
/// Largest default number of lanes; more ranks get more lanes.
const DEFAULT_LANES: usize = 8;
/// Default maximum number of ranks on the CPU.
const CPU_RANKS: usize = 2;

/// Returns the runs to measure, all validated before the first one starts.
pub(super) fn prepare(
    args: &BenchScalingArgs,
    in_job: bool,
) -> Result<(Vec<ScalingCase>, BenchOptions), CliError> {
    let (device, gpus) = args.step.device_of_ranks()?;
    let on_gpus = device == DeviceChoice::Cuda;
    if let Some(own) = OWN.iter().find(|own| args.step.sets(own)) {
        return Err(CliError::Refused(format!(
            "--set {own}: the suite sets it: use --ranks, --micro-batch-size, --micro-batches, --reduction and \
             --shard"
        )));
    }
    if in_job && args.rounds > 1 {
        return Err(CliError::Refused(format!(
            "--rounds {}: under a launcher, a job measures one run once: use benches/scaling/run, which \
             starts a job for each",
            args.rounds
        )));
    }
    let default: &[String] =
        if on_gpus { &["tree".to_owned(), "nccl".to_owned()] } else { &["tree".to_owned()] };
    let reductions = if args.reduction.is_empty() { default } else { &args.reduction };
    let sizes = Sizes::from_arguments(args, if on_gpus { gpus.max(1) } else { CPU_RANKS })?;
    let kinds = args.series();
    let mut cases = Vec::new();
    for scaling in if args.alone && in_job { &[] } else { kinds } {
        for reduction in reductions {
            for ranks in &sizes.ranks {
                cases.push(case(args, on_gpus, &sizes, *scaling, reduction, *ranks)?);
            }
        }
    }
    if args.alone {
        for micro_batches in sizes.of_each_rank(kinds) {
            cases.push(case_alone(args, on_gpus, sizes.most, micro_batches)?);
        }
    }
    let trace = args.trace.directory()?;
    Ok((cases, BenchOptions { trace, ..args.step.options(device) }))
}

/// Numbers of ranks to measure, and micro-batches of their steps.
struct Sizes {
    ranks: Vec<usize>,
    /// The largest of `ranks`.
    most: usize,
    /// Number of micro-batches in a step on `most` ranks.
    micro_batches: usize,
}

impl Sizes {
    /// Reads the sizes from the arguments; by default, powers of two up to `there` ranks.
    ///
    /// # Errors
    /// The micro-batches cannot be divided evenly among the ranks.
    fn from_arguments(args: &BenchScalingArgs, there: usize) -> Result<Self, CliError> {
        let powers = std::iter::successors(Some(1_usize), |ranks| ranks.checked_mul(2));
        let ranks = match args.ranks.as_slice() {
            [] => powers.take_while(|ranks| *ranks <= there).collect(),
            asked => asked.to_vec(),
        };
        let most = ranks.iter().copied().max().unwrap_or(1);
        let micro_batches = args.micro_batches.unwrap_or(most);
        match ranks.iter().find(|ranks| !micro_batches.is_multiple_of(**ranks)) {
            None => Ok(Sizes { ranks, most, micro_batches }),
            Some(wrong) => Err(CliError::Refused(format!(
                "--ranks {wrong}: {micro_batches} micro-batches cannot be divided among {wrong} ranks: \
                 choose another --micro-batches"
            ))),
        }
    }

    /// Returns the number of micro-batches in a step on `ranks` ranks, and the number of lanes that they
    /// need.
    fn on(&self, ranks: usize, scaling: Scaling) -> (usize, usize) {
        match scaling {
            Scaling::Strong => (self.micro_batches, self.most),
            Scaling::Weak | Scaling::Alone => (self.micro_batches / self.most * ranks, ranks),
        }
    }

    /// Returns the distinct numbers of micro-batches per rank in runs of these kinds.
    fn of_each_rank(&self, kinds: &[Scaling]) -> Vec<usize> {
        let mut all: Vec<usize> = Vec::new();
        for scaling in kinds {
            for ranks in &self.ranks {
                let each = self.on(*ranks, *scaling).0 / ranks;
                if !all.contains(&each) {
                    all.push(each);
                }
            }
        }
        all
    }
}

fn case(
    args: &BenchScalingArgs,
    on_gpus: bool,
    sizes: &Sizes,
    scaling: Scaling,
    reduction: &str,
    ranks: usize,
) -> Result<ScalingCase, CliError> {
    let (micro_batches, lanes) = sizes.on(ranks, scaling);
    let mut parallel = format!(
        "[parallel]\ndata = {ranks}\nreduction = \"{reduction}\"\nzero_stage = {}\n",
        u32::from(args.shard)
    );
    if lanes > DEFAULT_LANES {
        parallel += &format!("lanes = {lanes}\n");
    }
    let (model, config) = configuration(args, on_gpus, micro_batches, &parallel)?;
    Ok(ScalingCase { model, scaling, config, worlds: 1 })
}

/// Returns the case of `worlds` single-rank worlds with `micro_batches` micro-batches each.
fn case_alone(
    args: &BenchScalingArgs,
    on_gpus: bool,
    worlds: usize,
    micro_batches: usize,
) -> Result<ScalingCase, CliError> {
    let (model, config) = configuration(args, on_gpus, micro_batches, "[parallel]\ndata = 1\n")?;
    Ok(ScalingCase { model, scaling: Scaling::Alone, config, worlds })
}

/// Returns the model's name, and its configuration with the section text `parallel` appended.
fn configuration(
    args: &BenchScalingArgs,
    on_gpus: bool,
    micro_batches: usize,
    parallel: &str,
) -> Result<(String, RunConfig), CliError> {
    let (model, precision) = if on_gpus { ("gpt2-124m", "bf16") } else { ("small", "f32") };
    let model = BenchModel::named(args.model.as_deref().unwrap_or(model))?;
    let precision = args.step.precision.as_deref().unwrap_or(precision);
    let text = model.configuration(args.step.micro_batch_size, micro_batches, precision)? + parallel;
    let config = RunConfig::parse(&text, "bench scaling", Path::new("/"), &args.step.overrides)?;
    Ok((model.name.to_owned(), config))
}
