//! `plimsoll bench scaling`: one training step on several numbers of ranks, with the same global batch and with the same
//! batch for each rank; and reports of what was measured.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::RangedU64ValueParser;
use telemetry::run_files::atomic_write;
use telemetry::scaling::{Run, Scaling, efficiency_plot, memory_plot, read_runs, scaling_table};
use telemetry::units::grouped;
use trainer::config::RunConfig;
use trainer::{
    BenchOptions, DeviceChoice, ScalingCase, Startup, TrainError, bench_scaling, bench_scaling_as,
};

use crate::bench_model::{BenchModel, StepArgs, TraceArgs};

/// The arguments of `plimsoll bench scaling`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchScalingArgs {
    /// Measure nothing, and report on these files of JSON lines
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["model", "ranks", "json"])]
    report: Vec<PathBuf>,
    /// Which model, as in bench step [default: gpt2-124m on a GPU, else small]
    #[arg(long)]
    model: Option<String>,
    #[command(flatten)]
    step: StepArgs,
    #[command(flatten)]
    trace: TraceArgs,
    /// The numbers of ranks, such as 1,2,4 [default: powers of two up to the GPUs, on the CPU 1,2]; under mpirun all numbers
    /// of the series, of which the job measures its own
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    ranks: Vec<usize>,
    /// Micro-batches of a step on the most ranks [default: one for each]: strong scaling has as many on every number of
    /// ranks, weak scaling as many for each rank as there
    #[arg(long, value_name = "M")]
    micro_batches: Option<usize>,
    /// Strong scaling alone: the same global batch
    #[arg(long, conflicts_with = "weak")]
    strong: bool,
    /// Weak scaling alone: the same batch for each rank
    #[arg(long)]
    weak: bool,
    /// Who adds gradients over ranks: tree, nccl or both [default: tree, on GPUs tree,nccl]
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = ["tree", "nccl"])]
    reduction: Vec<String>,
    /// Also what the devices of the most ranks do alone, all at the same time: a world of one rank on each, with as much to do
    /// as a rank has in the other runs. Under mpirun nothing else
    #[arg(long)]
    alone: bool,
    /// Measure everything so often, in turn; the median round of a run counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    rounds: usize,
    /// The number of the first round, as lines have it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    first_round: usize,
    /// Divide the optimizer's state among the ranks
    #[arg(long)]
    shard: bool,
    /// Nothing but a line of JSON for every run on standard output
    #[arg(long)]
    json: bool,
    /// Where efficiency.svg and memory.svg go
    #[arg(long, value_name = "DIR", conflicts_with = "json")]
    plots: Option<PathBuf>,
}

/// What the suite itself says of a run.
const OWN: [&str; 5] = [
    "parallel.data",
    "parallel.pipeline",
    "parallel.reduction",
    "parallel.shard_optimizer",
    "train.micro_batches",
];
/// Lanes of a run where nobody says otherwise, at most: more ranks need more.
const DEFAULT_LANES: usize = 8;
/// The most ranks on the CPU, unless somebody says otherwise.
const CPU_RANKS: usize = 2;

/// Measures or reports. 0: done; 1: a run failed; 2: arguments that are wrong.
pub(crate) fn run(args: &BenchScalingArgs) -> ExitCode {
    let done = if args.report.is_empty() { measure(args) } else { report(args) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error, TrainError::Said { .. }) {
                let _ = writeln!(std::io::stderr(), "plimsoll: {error}");
            }
            ExitCode::from(error.exit_status())
        }
    }
}

fn report(args: &BenchScalingArgs) -> Result<(), TrainError> {
    let refused = |error: telemetry::TelemetryError| TrainError::Refused(error.to_string());
    let read: Result<Vec<_>, _> = args.report.iter().map(|path| read_runs(path).map_err(refused)).collect();
    conclude(args, &read?.concat())
}

fn measure(args: &BenchScalingArgs) -> Result<(), TrainError> {
    let mut startup = Startup::begin()?;
    let prepared = prepare(args, startup.is_in_job());
    let (cases, options) = startup.agree(prepared)?;
    if startup.is_in_job() {
        let Some(run) = bench_scaling_as(startup, cases, &options)? else { return Ok(()) };
        let run = Run { round: args.first_round, ..run };
        return if args.json { print_line(&run) } else { conclude(args, &[run]) };
    }
    let mut runs: Vec<Run> = Vec::new();
    for round in 0..args.rounds {
        runs.extend(round_of(args, &cases, &options, args.first_round + round)?);
    }
    if args.json { Ok(()) } else { conclude(args, &runs) }
}

/// Measures every case once.
fn round_of(
    args: &BenchScalingArgs,
    cases: &[ScalingCase],
    options: &BenchOptions,
    round: usize,
) -> Result<Vec<Run>, TrainError> {
    let mut runs: Vec<Run> = Vec::new();
    for case in cases {
        // On the most ranks strong and weak scaling are the same run.
        let same = |other: &ScalingCase| {
            (other.scaling == Scaling::Alone) == (case.scaling == Scaling::Alone)
                && other.config.to_toml() == case.config.to_toml()
        };
        let known = cases.iter().zip(&runs).find(|(other, _)| same(other));
        let run = match known {
            Some((_, run)) => Run { scaling: case.scaling, ..run.clone() },
            None => Run { round, ..bench_scaling(case.clone(), options)? },
        };
        if args.json {
            print_line(&run)?;
        } else {
            let of = if args.rounds == 1 { String::new() } else { format!("round {round}: ") };
            // Progress is for whoever looks.
            let _ = writeln!(std::io::stderr(), "{of}{}", progress(&run));
        }
        runs.push(run);
    }
    Ok(runs)
}

fn progress(run: &Run) -> String {
    let ends = if run.ranks == 1 { "" } else { "s" };
    let what = match run.scaling {
        Scaling::Alone => format!("alone, {} micro-batches", run.micro_batches),
        scaling => format!("{}, {}", scaling.name(), run.reduction),
    };
    let tokens = grouped(run.tokens_per_second().round() as u64);
    format!("{what}, {} rank{ends}: {tokens} tokens/s", run.ranks)
}

/// Every run, checked before the first one starts.
fn prepare(args: &BenchScalingArgs, in_job: bool) -> Result<(Vec<ScalingCase>, BenchOptions), TrainError> {
    let (device, gpus) = args.step.device_of_ranks()?;
    let on_gpus = device == DeviceChoice::Cuda;
    if let Some(own) = OWN.iter().find(|own| args.step.overrides.iter().any(|set| key_of(set) == **own)) {
        return Err(TrainError::Refused(format!(
            "--set {own}: the suite sets it itself; --ranks, --micro-batches, --reduction and --shard say how"
        )));
    }
    if in_job && args.rounds > 1 {
        return Err(TrainError::Refused(format!(
            "--rounds {}: under a launcher a job measures one run once; benches/scaling/run starts a job for each",
            args.rounds
        )));
    }
    let default: &[String] =
        if on_gpus { &["tree".to_owned(), "nccl".to_owned()] } else { &["tree".to_owned()] };
    let reductions = if args.reduction.is_empty() { default } else { &args.reduction };
    let sizes = Sizes::of(args, if on_gpus { gpus.max(1) } else { CPU_RANKS })?;
    let kinds = args.kinds();
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

impl BenchScalingArgs {
    /// The series that are measured.
    fn kinds(&self) -> &'static [Scaling] {
        match (self.strong, self.weak) {
            (true, _) => &[Scaling::Strong],
            (_, true) => &[Scaling::Weak],
            _ => &[Scaling::Strong, Scaling::Weak],
        }
    }
}

/// The key that an override is of.
fn key_of(set: &str) -> &str {
    set.split_once('=').map_or(set, |(key, _)| key).trim()
}

/// The numbers of ranks of a suite, and the micro-batches of its steps.
struct Sizes {
    ranks: Vec<usize>,
    most: usize,
    /// On the most ranks.
    micro_batches: usize,
}

impl Sizes {
    /// As asked, or powers of two up to `there`. Errors: micro-batches that cannot be divided.
    fn of(args: &BenchScalingArgs, there: usize) -> Result<Self, TrainError> {
        let powers = std::iter::successors(Some(1_usize), |ranks| ranks.checked_mul(2));
        let ranks = match args.ranks.as_slice() {
            [] => powers.take_while(|ranks| *ranks <= there).collect(),
            asked => asked.to_vec(),
        };
        let most = ranks.iter().copied().max().unwrap_or(1);
        let micro_batches = args.micro_batches.unwrap_or(most);
        let divides = |ranks: &usize| *ranks > 0 && micro_batches > 0 && micro_batches.is_multiple_of(*ranks);
        match ranks.iter().find(|ranks| !divides(ranks)) {
            None => Ok(Sizes { ranks, most, micro_batches }),
            Some(wrong) => Err(TrainError::Refused(format!(
                "--ranks {wrong}: {micro_batches} micro-batches cannot be divided among so many"
            ))),
        }
    }

    /// Micro-batches of a step on `ranks`, and the lanes that they need.
    fn on(&self, ranks: usize, scaling: Scaling) -> (usize, usize) {
        match scaling {
            Scaling::Strong => (self.micro_batches, self.most),
            Scaling::Weak | Scaling::Alone => (self.micro_batches / self.most * ranks, ranks),
        }
    }

    /// Every number of micro-batches that a rank has in runs of these kinds.
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
) -> Result<ScalingCase, TrainError> {
    let (micro_batches, lanes) = sizes.on(ranks, scaling);
    let mut parallel = format!(
        "[parallel]\ndata = {ranks}\nreduction = \"{reduction}\"\nshard_optimizer = {}\n",
        args.shard
    );
    if lanes > DEFAULT_LANES {
        parallel += &format!("lanes = {lanes}\n");
    }
    let (model, config) = configuration(args, on_gpus, micro_batches, &parallel)?;
    Ok(ScalingCase { model, scaling, config, worlds: 1 })
}

/// `worlds` of one rank each, with so many micro-batches for each.
fn case_alone(
    args: &BenchScalingArgs,
    on_gpus: bool,
    worlds: usize,
    micro_batches: usize,
) -> Result<ScalingCase, TrainError> {
    let (model, config) = configuration(args, on_gpus, micro_batches, "")?;
    Ok(ScalingCase { model, scaling: Scaling::Alone, config, worlds })
}

/// The model's name, and its configuration with the section `parallel`.
fn configuration(
    args: &BenchScalingArgs,
    on_gpus: bool,
    micro_batches: usize,
    parallel: &str,
) -> Result<(String, RunConfig), TrainError> {
    let (model, precision) = if on_gpus { ("gpt2-124m", "bf16") } else { ("small", "f32") };
    let model = BenchModel::named(args.model.as_deref().unwrap_or(model))?;
    let precision = args.step.precision.as_deref().unwrap_or(precision);
    let text = model.configuration(args.step.micro_batch, micro_batches, precision) + parallel;
    let config = RunConfig::parse(&text, "bench scaling", Path::new("/"), &args.step.overrides)?;
    Ok((model.name.to_owned(), config))
}

fn unprinted(source: std::io::Error) -> TrainError {
    TrainError::File { path: "standard output".into(), source }
}

fn print_line(run: &Run) -> Result<(), TrainError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", run.to_line()?).and_then(|()| out.flush()).map_err(unprinted)
}

/// Prints the table and writes the plots.
fn conclude(args: &BenchScalingArgs, runs: &[Run]) -> Result<(), TrainError> {
    let mut out = std::io::stdout().lock();
    write!(out, "{}", scaling_table(runs)).map_err(unprinted)?;
    let Some(directory) = &args.plots else { return Ok(()) };
    std::fs::create_dir_all(directory)
        .map_err(|source| TrainError::File { path: directory.clone(), source })?;
    for (name, plot) in [("efficiency.svg", efficiency_plot(runs)), ("memory.svg", memory_plot(runs))] {
        let path = directory.join(name);
        atomic_write(&path, plot.as_bytes())?;
        writeln!(out, "{}", path.display()).map_err(unprinted)?;
    }
    Ok(())
}
