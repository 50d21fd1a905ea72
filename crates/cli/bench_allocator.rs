//! `plimsoll bench allocator`.
//!
//! *Steady* allocates and frees one size repeatedly and times batches of 1000 pairs. *Replay* runs the
//! operations of a recording and times each call, so every time includes one reading of the clock.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use crate::arguments::count;
use crate::error::CliError;
use crate::output::print;
use memory::drivers::Counting;
use memory::replay::{self, Operation, Player, Recording};
use memory::{Allocator, Settings, Stream, Tag};
use telemetry::units::grouped;

/// Measure the caching allocator: nanoseconds per allocation and per free
#[derive(Debug, clap::Args)]
pub(crate) struct BenchAllocatorArgs {
    /// Recordings to replay [default: a built-in one]
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Number of times to replay each recording
    #[arg(long, default_value_t = 200, value_parser = count::<usize>)]
    rounds: usize,
}

const BUILT_IN: &[u8] = include_bytes!("../../tests/golden/default_mixed.json.gz");
const BUILT_IN_NAME: &str = "default_mixed (built in)";
const HISTORY_EVENTS: usize = 100_000;
const PAIRS: usize = 1000;
const BATCHES: usize = 1000;

/// PyTorch 2.11's allocator called from C++ on an H200 host: bytes, and ns for an allocation and its free.
const PYTORCH_STEADY: [(u64, f64); 4] =
    [(512, 295.0), (64 << 10, 295.0), (4 << 20, 325.0), (64 << 20, 325.0)];
/// PyTorch 2.11's allocator replaying `default_mixed`: ns for an allocation and for a free, including the
/// clock.
const PYTORCH_REPLAY: (Quantiles, Quantiles) =
    (Quantiles { median: 369.0, p99: 706.0 }, Quantiles { median: 268.0, p99: 514.0 });

/// Column titles for PyTorch's times, which were measured on another machine.
const COMPARED: &str = "PyTorch on an H200 host  PyTorch there/here";

#[derive(Clone, Copy)]
struct Quantiles {
    median: f64,
    p99: f64,
}

fn quantiles(samples: &mut [f64]) -> Quantiles {
    samples.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        samples.get(((samples.len() as f64 - 1.0) * share) as usize).copied().unwrap_or(f64::NAN)
    };
    Quantiles { median: at(0.5), p99: at(0.99) }
}

/// Runs the command: measures and prints.
///
/// # Errors
/// A file is not a recording, or an allocation fails.
pub(crate) fn run(args: &BenchAllocatorArgs) -> Result<(), CliError> {
    let mut named: Vec<(String, _)> =
        args.traces.iter().map(|path| (path.display().to_string(), replay::read(path))).collect();
    if named.is_empty() {
        named.push((BUILT_IN_NAME.to_owned(), replay::parse(BUILT_IN)));
    }
    let mut recordings = Vec::new();
    for (name, read) in named {
        let list = read.map_err(|error| CliError::Refused(format!("{name}: {error}")))?;
        recordings.extend(list.into_iter().map(|recording| (name.clone(), recording)));
    }
    measure(&recordings, args.rounds.max(1))
}

fn measure(recordings: &[(String, Recording)], rounds: usize) -> Result<(), CliError> {
    let failed = |error: memory::AllocationError| CliError::Measurement(error.to_string());
    print(&hardware())?;
    print(&format!("one reading of the clock: {:.1} ns", clock_ns()))?;
    print(&format!(
        "\n{:<44}{:>8} {:>7}   {COMPARED}",
        "steady, ns for an allocation and a free", "median", "p99"
    ))?;
    for (bytes, pytorch) in PYTORCH_STEADY {
        for history in [false, true] {
            let quantiles = steady(bytes, history).map_err(failed)?;
            let name = format!("{:>9} bytes{}", grouped(bytes), if history { ", with history" } else { "" });
            let ratio = pytorch / quantiles.median;
            let median = quantiles.median;
            let p99 = quantiles.p99;
            print(&format!("  {name:<42}{median:8.1} {p99:7.1}   {pytorch:23.0}{ratio:20.1}"))?;
        }
    }
    print(&format!(
        "\n{:<44}{:>8} {:>7}   {COMPARED}",
        "replay, ns per call, including the clock", "median", "p99"
    ))?;
    for (name, recording) in recordings {
        for history in [false, true] {
            let (allocation, free) = replayed(recording, rounds, history).map_err(failed)?;
            let own = name == BUILT_IN_NAME || recording.name == "default_mixed";
            let with = if history { ", with history" } else { "" };
            print(&format!("  {name}{with}"))?;
            for (kind, quantiles, pytorch) in
                [("allocation", allocation, PYTORCH_REPLAY.0), ("free", free, PYTORCH_REPLAY.1)]
            {
                let compared = if own {
                    let ratio = pytorch.median / quantiles.median;
                    format!("{:17.0} ({:3.0}){ratio:20.1}", pytorch.median, pytorch.p99)
                } else {
                    String::new()
                };
                print(&format!("    {kind:<40}{:8.1} {:7.1}   {compared}", quantiles.median, quantiles.p99))?;
            }
        }
    }
    print(
        "\nPyTorch: its allocator, version 2.11, measured once from C++ on the host of an H200, without history. \
         Its time there divided by the median here compares two machines.",
    )
}

fn steady(bytes: u64, history: bool) -> Result<Quantiles, memory::AllocationError> {
    let mut allocator = Allocator::new(Counting::new(1 << 40), Settings::default())?;
    if history {
        allocator.record_history(HISTORY_EVENTS);
    }
    let mut batch = || {
        let start = Instant::now();
        for _ in 0..PAIRS {
            let allocation = allocator.allocate(black_box(bytes), Stream(0), Tag::default())?;
            allocator.free(black_box(allocation).block)?;
        }
        Ok::<_, memory::AllocationError>(start.elapsed().as_nanos() as f64 / PAIRS as f64)
    };
    for _ in 0..BATCHES / 10 {
        batch()?;
    }
    let mut samples = (0..BATCHES).map(|_| batch()).collect::<Result<Vec<_>, _>>()?;
    Ok(quantiles(&mut samples))
}

/// Returns quantiles of the times of allocations and of frees, in nanoseconds.
fn replayed(
    recording: &Recording,
    rounds: usize,
    history: bool,
) -> Result<(Quantiles, Quantiles), memory::AllocationError> {
    let mut allocations = Vec::new();
    let mut frees = Vec::new();
    for _ in 0..rounds {
        let mut player = Player::new(recording)?;
        if history {
            player.allocator.record_history(HISTORY_EVENTS);
        }
        for step in &recording.steps {
            let start = Instant::now();
            let result = player.play(black_box(&step.operation));
            let elapsed = start.elapsed().as_nanos() as f64;
            match (&step.operation, result) {
                (Operation::Allocate { .. }, Ok(_)) => allocations.push(elapsed),
                (Operation::Free(_), Ok(_)) => frees.push(elapsed),
                (_, Ok(_)) => {}
                // Failed requests in a recording are not measured.
                (_, Err(memory::AllocationError::OutOfMemory(_))) => {}
                (_, Err(error)) => return Err(error),
            }
        }
    }
    Ok((quantiles(&mut allocations), quantiles(&mut frees)))
}

fn clock_ns() -> f64 {
    let start = Instant::now();
    for _ in 0..100_000 {
        black_box(Instant::now());
    }
    start.elapsed().as_nanos() as f64 / 100_000.0
}

/// Returns the processor's model and its number of hardware threads.
pub(crate) fn hardware() -> String {
    let threads = system::threads::processors();
    format!("{}, {threads} threads", device::Description::host().model)
}
