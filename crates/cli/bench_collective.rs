//! `plimsoll bench collective`, with the metrics of nccl-tests.
//!
//! *Size* is the size of the whole operand. *Algorithm bandwidth* is size over time. *Bus bandwidth*
//! multiplies it by the bytes that each rank must move for each byte of the operand: 2(n−1)/n for all-reduce,
//! (n−1)/n for reduce-scatter and all-gather, else 1. It is therefore comparable with the hardware's
//! bandwidth for any number of ranks.

mod choice;
mod connect;
mod gpu;
mod host;
mod measurement;

use std::time::Duration;

use crate::arguments::count;
use crate::error::CliError;
use choice::{Choice, OPERATIONS, size};
use collective::{PeerAccessOptions, threads};
use gpu::GpuBench;
use host::HostBench;
use run::Startup;
use system::threads::check_ranks as threads_of_one_process;
use worker::DeviceChoice;

/// Measure every collective: time and bandwidth by message size, between threads or a launcher's processes
#[derive(Debug, clap::Args)]
pub(crate) struct BenchCollectiveArgs {
    /// Number of ranks, as threads of this process [default: 2; on GPUs, the number of GPUs]. Under a
    /// launcher, its processes are the ranks
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    ranks: Option<usize>,
    /// Memory of the operands: cpu; cuda (a GPU for each rank, connected by NCCL); or auto (GPUs if there are
    /// two or more)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// Milliseconds for which each size is measured
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = count::<u64>)]
    milliseconds: u64,
    /// Sizes to measure instead of the usual ones, as in 4096,64KiB,1GiB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size)]
    sizes: Option<Vec<usize>>,
    /// Operations to measure [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = OPERATIONS)]
    only: Option<Vec<String>>,
    /// On GPUs with peer access: numbers of thread blocks to measure for the kernel that sums in peer memory
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_values_t = [PeerAccessOptions::default().blocks]
    )]
    peer_blocks: Vec<u32>,
    /// Allocator settings on the GPUs, in the syntax of PYTORCH_CUDA_ALLOC_CONF
    #[arg(long, value_name = "SETTINGS", default_value = worker::DEFAULT_ALLOCATOR)]
    allocator: String,
    /// Print a line of JSON for each measurement instead of a table
    #[arg(long)]
    json: bool,
}

/// Transport between ranks as threads, as printed.
const THREADS: &str = "threads of one process";

/// A measurement with validated arguments.
struct Asked {
    ranks: usize,
    on_gpus: bool,
    choice: Choice,
}

/// Runs the command: measures and prints.
///
/// # Errors
/// Arguments contradict each other, or a collective fails.
pub(crate) fn run(args: &BenchCollectiveArgs) -> Result<(), CliError> {
    let mut startup = Startup::begin()?;
    let asked = Asked::from_arguments(args, startup.is_in_job());
    let Asked { ranks, on_gpus, choice } = startup.agree(asked)?;
    if startup.is_in_job() {
        return between_processes(startup, on_gpus, &choice);
    }
    let ran = threads::run(ranks, threads::Options::default(), move |communicator| {
        let ordinal = communicator.rank();
        match on_gpus {
            true => GpuBench::new(communicator, ordinal, choice.clone())?.run(THREADS),
            false => HostBench::new(communicator, choice.clone())?.run(THREADS),
        }
    });
    ran.map(drop).map_err(|error| CliError::Rank { rank: error.rank, reason: error.cause.to_string() })
}

impl Asked {
    /// Validates the arguments.
    ///
    /// # Errors
    /// Arguments contradict each other or this host.
    fn from_arguments(args: &BenchCollectiveArgs, in_job: bool) -> Result<Self, CliError> {
        let gpus = gpus(DeviceChoice::from_name(&args.device)?)?;
        let allocator = memory::Settings::parse(&args.allocator)
            .map_err(|error| CliError::Refused(format!("--allocator: {error}")))?;
        let choice = Choice {
            time: Duration::from_millis(args.milliseconds),
            sizes: args.sizes.clone(),
            only: args.only.clone(),
            json: args.json,
            peer_blocks: args.peer_blocks.clone(),
            allocator,
        };
        Ok(Asked { ranks: ranks(args.ranks, gpus, in_job)?, on_gpus: gpus.is_some(), choice })
    }
}

/// Returns the number of GPUs to measure on; `None` for the CPU.
///
/// # Errors
/// There are too few GPUs, or NCCL is missing.
fn gpus(device: DeviceChoice) -> Result<Option<usize>, CliError> {
    match device {
        DeviceChoice::Cpu => Ok(None),
        DeviceChoice::Cuda => connect::available().map(Some).map_err(CliError::Refused),
        DeviceChoice::Auto => Ok(connect::available().ok()),
        DeviceChoice::Meta => Err(CliError::Refused(
            "--device meta: nothing is computed there, so no times can be measured".to_owned(),
        )),
    }
}

/// Returns the number of ranks to run as threads.
///
/// # Errors
/// The number contradicts the launcher or the GPUs.
fn ranks(asked: Option<usize>, gpus: Option<usize>, in_job: bool) -> Result<usize, CliError> {
    let refused = |text: String| Err(CliError::Refused(text));
    match (asked, gpus) {
        (Some(ranks), _) if in_job => refused(format!(
            "--ranks {ranks}: the launcher's processes are the ranks: remove --ranks, or run without the \
             launcher"
        )),
        (Some(1), Some(_)) => {
            refused("--ranks 1: collectives between GPUs need at least two ranks".to_owned())
        }
        (Some(ranks), Some(gpus)) if ranks > gpus => {
            refused(format!("--ranks {ranks}: every rank needs a GPU, and this host has {gpus}"))
        }
        (ranks, gpus) => {
            let ranks = ranks.or(gpus).unwrap_or(2);
            let refused = |text: String| CliError::Refused(format!("--ranks {ranks}: {text}"));
            threads_of_one_process(ranks).map_err(refused).map(|()| ranks)
        }
    }
}

fn between_processes(startup: Startup, on_gpus: bool, choice: &Choice) -> Result<(), CliError> {
    let ran = startup.run_job(|world, communicator| {
        let transport = format!("processes, {}", world.transport());
        if on_gpus {
            let (ordinal, local) = world.local();
            connect::enough(world.size(), local)?;
            let measured = GpuBench::new(communicator, ordinal, choice.clone())
                .and_then(|mut bench| bench.run(&transport));
            return measured.map_err(|error| error.to_string());
        }
        let measured = || {
            let mut bench = HostBench::new(communicator, choice.clone())?;
            bench.run(&transport)?;
            #[cfg(feature = "mpi")]
            if choice.only.is_none() && !choice.json && world.transport() != collective::Transport::Tcp {
                bench.compare()?;
            }
            Ok::<_, measurement::BenchError>(())
        };
        measured().map_err(|error| error.to_string())
    });
    Ok(ran?)
}
