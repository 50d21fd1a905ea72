//! `plimsoll bench collective`: time and bandwidth of every collective by message size, on the transport in use, as
//! nccl-tests reports them.
//!
//! *Size* is that of the whole operand: what is reduced, gathered, scattered or sent. *Algorithm bandwidth* is size over
//! time; *bus bandwidth* multiplies it by what each rank has to move for each byte, so that it can be held against the
//! hardware's whatever the number of ranks: 2(n−1)/n for all-reduce, (n−1)/n for reduce-scatter and all-gather, else 1.

mod choice;
mod gpu;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use choice::{Choice, OPERATIONS, size};
use collective::{CollectiveError, Communicator, PeerAccessOptions, threads};
use device::{Buffer, Category, DType, Device, DeviceError, DeviceOptions, Request, StreamKind};
use gpu::GpuBench;
use parallel::ParallelError;
use run::Startup;
use tensor::TensorError;
use worker::TrainError;

/// The arguments of `plimsoll bench collective`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchCollectiveArgs {
    /// Ranks, as threads of this process [default: 2, and on GPUs as many as there are]; under mpirun its processes are
    /// the ranks
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// What the ranks own: host memory, or a GPU each, which NCCL connects
    #[arg(long, value_enum, default_value_t = Place::Cpu)]
    device: Place,
    /// How long each size is measured, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200)]
    milliseconds: u64,
    /// Measure these sizes instead of the usual ones: bytes, or with KiB, MiB or GiB behind the number
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size)]
    sizes: Option<Vec<usize>>,
    /// Measure these operations only
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = OPERATIONS)]
    only: Option<Vec<String>>,
    /// On GPUs that reach each other's memory: blocks of the kernel that sums there, each number measured
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [PeerAccessOptions::default().blocks])]
    peer_blocks: Vec<u32>,
    /// How the GPUs' memory is taken, in the syntax of PYTORCH_CUDA_ALLOC_CONF
    #[arg(long, value_name = "SETTINGS", default_value = worker::DEFAULT_ALLOCATOR)]
    allocator: String,
    /// A line of JSON for each measurement instead of a table
    #[arg(long)]
    json: bool,
}

/// Where operands lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Place {
    Cpu,
    Cuda,
}

const SIZES: [usize; 10] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// The size at which the MPI library's own all-reduce is measured.
#[cfg(feature = "mpi")]
const COMPARED: usize = 4 << 20;
#[cfg(feature = "mpi")]
const TURNS: usize = 5;
const STREAM: StreamKind = StreamKind::Reduce;
const WARM_UP: usize = 3;
const ROUNDS: std::ops::RangeInclusive<u64> = 3..=10_000;

#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    #[error("the output: {0}")]
    Output(#[from] std::io::Error),
}

type Result<T> = std::result::Result<T, BenchError>;

/// Measures and prints. 0: done; 1: a collective failed; 2: arguments that do not go together.
pub(crate) fn run(args: &BenchCollectiveArgs) -> ExitCode {
    match start(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error, TrainError::Said { .. }) {
                let _ = writeln!(std::io::stderr(), "plimsoll: {error}");
            }
            ExitCode::from(error.exit_status())
        }
    }
}

fn start(args: &BenchCollectiveArgs) -> std::result::Result<(), TrainError> {
    let mut startup = Startup::begin()?;
    let asked = asked(args, startup.is_in_job());
    let ranks = startup.agree(asked)?;
    let choice = Choice {
        time: Duration::from_millis(args.milliseconds),
        sizes: args.sizes.clone(),
        only: args.only.clone(),
        json: args.json,
        peer_blocks: args.peer_blocks.clone(),
        allocator: memory::Settings::parse(&args.allocator)
            .map_err(|error| TrainError::Refused(format!("--allocator: {error}")))?,
    };
    let place = args.device;
    #[cfg(feature = "mpi")]
    if startup.is_in_job() {
        return over_mpi(startup, place, &choice);
    }
    let ran = threads::run(ranks, threads::Options::default(), move |communicator| {
        if place == Place::Cuda {
            let ordinal = communicator.rank();
            return GpuBench::new(communicator, ordinal, choice.clone())?.run("threads of one process");
        }
        let mut bench = Bench::new(communicator, choice.clone())?;
        bench.head("threads of one process")?;
        bench.all()
    });
    ran.map(drop).map_err(|error| TrainError::Rank { rank: error.rank, reason: error.cause.to_string() })
}

/// How many ranks there are to be as threads. Errors: arguments that do not go together, or not with the machine.
fn asked(args: &BenchCollectiveArgs, in_job: bool) -> std::result::Result<usize, TrainError> {
    let refused = |text: String| Err(TrainError::Refused(text));
    let gpus = match args.device {
        Place::Cpu => None,
        Place::Cuda => Some(gpu::available().map_err(TrainError::Refused)?),
    };
    match (args.ranks, gpus) {
        (Some(0), _) => refused("--ranks 0: there is at least one rank".to_owned()),
        (Some(ranks), _) if in_job => {
            refused(format!("--ranks {ranks}: the launcher's processes are the ranks"))
        }
        (Some(1), Some(_)) => {
            refused("--ranks 1: on GPUs collectives are between two ranks or more".to_owned())
        }
        (Some(ranks), Some(gpus)) if ranks > gpus => {
            refused(format!("--ranks {ranks}: every rank owns a GPU, and there are {gpus}"))
        }
        (ranks, gpus) => Ok(ranks.or(gpus).unwrap_or(2)),
    }
}

#[cfg(feature = "mpi")]
fn over_mpi(startup: Startup, place: Place, choice: &Choice) -> std::result::Result<(), TrainError> {
    startup.run_job(|world, communicator| {
        let transport = format!("processes, {}", world.library_version());
        let on_gpus = |communicator| {
            let (ordinal, local) = world.local();
            let gpus = gpu::available()?;
            if world.size() == 1 {
                return Err("on GPUs collectives are between two ranks or more".to_owned());
            }
            if local > gpus {
                return Err(format!(
                    "every rank owns a GPU: there are {local} ranks and {gpus} GPUs on this host"
                ));
            }
            let measured = GpuBench::new(communicator, ordinal, choice.clone())
                .and_then(|mut bench| bench.run(&transport));
            measured.map_err(|error| error.to_string())
        };
        if place == Place::Cuda {
            return on_gpus(communicator);
        }
        let measured = || -> Result<()> {
            let mut bench = Bench::new(communicator, choice.clone())?;
            bench.head(&transport)?;
            bench.all()?;
            if choice.only.is_none() && !choice.json { bench.compare(world) } else { Ok(()) }
        };
        measured().map_err(|error| error.to_string())
    })
}

/// A measurement as a line of JSON.
fn json_line(
    ranks: usize,
    operation: &str,
    dtype: &str,
    bytes: usize,
    seconds: f64,
    bandwidth: Option<(f64, f64)>,
) -> String {
    let bandwidth = bandwidth.map_or_else(String::new, |(algorithm, bus)| {
        format!(",\"algorithm_gigabytes_per_second\":{algorithm},\"bus_gigabytes_per_second\":{bus}")
    });
    format!(
        "{{\"ranks\":{ranks},\"operation\":{operation:?},\"dtype\":{dtype:?},\"bytes\":{bytes},\
         \"seconds\":{seconds}{bandwidth}}}"
    )
}

/// An operation, and how often each byte of its operand crosses a rank's link.
struct Measure {
    name: &'static str,
    bus: fn(f64) -> f64,
    call: fn(&mut Bench, usize) -> Result<()>,
}

const MEASURES: [Measure; 6] = [
    Measure { name: "all-reduce", bus: |n| 2.0 * (n - 1.0) / n, call: Bench::all_reduce },
    Measure { name: "reduce-scatter", bus: |n| (n - 1.0) / n, call: Bench::reduce_scatter },
    Measure { name: "all-gather", bus: |n| (n - 1.0) / n, call: Bench::all_gather },
    Measure { name: "broadcast", bus: |_| 1.0, call: Bench::broadcast },
    Measure { name: "exchange", bus: |_| 1.0, call: Bench::exchange },
    Measure { name: "control all-gather", bus: |n| (n - 1.0) / n, call: Bench::control },
];
/// Small host messages are not for bulk.
const LARGEST_CONTROL: usize = 1 << 20;

/// One rank of the measurement.
struct Bench {
    communicator: Communicator,
    first: Buffer,
    second: Buffer,
    choice: Choice,
}

impl Bench {
    fn new(communicator: Communicator, choice: Choice) -> Result<Self> {
        let device = Device::cpu(communicator.rank(), &DeviceOptions::default())?;
        let sizes = choice.sizes(&SIZES);
        // Every rank has a part of four bytes at least.
        let largest = sizes.into_iter().fold(4 * communicator.world_size(), usize::max);
        let buffer = || device.allocate(largest, Request::new(Category::Communication, "bench").on(STREAM));
        let (first, second) = (buffer()?, buffer()?);
        for buffer in [&first, &second] {
            device.zero(buffer.region(0, largest))?;
        }
        Ok(Bench { communicator, first, second, choice })
    }

    fn ranks(&self) -> usize {
        self.communicator.world_size()
    }

    /// A part of an operand for each rank, of whole f32 values; at least one.
    fn part(&self, bytes: usize) -> usize {
        (bytes / self.ranks() / 4).max(1) * 4
    }

    fn all_reduce(&mut self, bytes: usize) -> Result<()> {
        Ok(self.communicator.data.all_reduce(self.first.region(0, bytes), DType::F32, STREAM)?)
    }

    fn reduce_scatter(&mut self, bytes: usize) -> Result<()> {
        let part = self.part(bytes);
        let (input, output) = (self.first.region(0, part * self.ranks()), self.second.region(0, part));
        Ok(self.communicator.data.reduce_scatter(input, output, DType::F32, STREAM)?)
    }

    fn all_gather(&mut self, bytes: usize) -> Result<()> {
        let part = self.part(bytes);
        let (input, output) = (self.second.region(0, part), self.first.region(0, part * self.ranks()));
        Ok(self.communicator.data.all_gather(input, output, STREAM)?)
    }

    fn broadcast(&mut self, bytes: usize) -> Result<()> {
        Ok(self.communicator.data.broadcast(0, self.first.region(0, bytes), STREAM)?)
    }

    /// To the next rank and from the one before, in a ring.
    fn exchange(&mut self, bytes: usize) -> Result<()> {
        let (rank, ranks) = (self.communicator.rank(), self.ranks());
        if ranks == 1 {
            return Ok(());
        }
        let sends = [((rank + 1) % ranks, self.first.region(0, bytes))];
        let receives = [((rank + ranks - 1) % ranks, self.second.region(0, bytes))];
        Ok(self.communicator.data.exchange(&sends, &receives, STREAM)?)
    }

    fn control(&mut self, bytes: usize) -> Result<()> {
        let message = vec![0; self.part(bytes)];
        self.communicator.control.all_gather(&message)?;
        Ok(())
    }

    /// Seconds that `call` takes, on average over as many calls as fit into the time.
    fn seconds(&mut self, mut call: impl FnMut(&mut Self) -> Result<()>) -> Result<f64> {
        let timed = |bench: &mut Self, rounds: u64, call: &mut dyn FnMut(&mut Self) -> Result<()>| {
            bench.communicator.control.barrier()?;
            let began = Instant::now();
            (0..rounds).try_for_each(|_| call(bench))?;
            bench.communicator.control.barrier()?;
            Ok::<_, BenchError>(began.elapsed().as_secs_f64() / rounds as f64)
        };
        let once = timed(self, WARM_UP as u64, &mut call)?;
        let fitting = ((self.choice.time.as_secs_f64() / once) as u64).clamp(*ROUNDS.start(), *ROUNDS.end());
        // All ranks make as many calls as rank 0 finds to fit.
        let mut rounds = fitting.to_le_bytes().to_vec();
        self.communicator.control.broadcast(0, &mut rounds)?;
        let rounds = rounds.try_into().map_or(*ROUNDS.start(), u64::from_le_bytes);
        timed(self, rounds, &mut call)
    }

    fn all(&mut self) -> Result<()> {
        for measure in MEASURES {
            if !self.choice.wants(measure.name) {
                continue;
            }
            let control = measure.name.starts_with("control");
            let sizes = self.choice.sizes(&SIZES);
            for bytes in sizes.into_iter().filter(|bytes| !control || *bytes <= LARGEST_CONTROL) {
                let seconds = self.seconds(|bench| (measure.call)(bench, bytes))?;
                let algorithm = bytes as f64 / seconds / 1e9;
                let bus = algorithm * (measure.bus)(self.ranks() as f64);
                self.line(measure.name, bytes, seconds, Some((algorithm, bus)))?;
            }
        }
        if !self.choice.wants("barrier") {
            return Ok(());
        }
        let seconds = self.seconds(|bench| Ok(bench.communicator.data.barrier(STREAM)?))?;
        self.line("barrier", 0, seconds, None)
    }

    /// A measurement, with algorithm and bus bandwidth in gigabytes a second.
    fn line(&self, name: &str, bytes: usize, seconds: f64, bandwidth: Option<(f64, f64)>) -> Result<()> {
        if self.choice.json {
            return self.say(&json_line(self.ranks(), name, "f32", bytes, seconds, bandwidth));
        }
        let (microseconds, mut line) = (seconds * 1e6, format!("{name:<20} {bytes:>10}"));
        line += &format!(" {microseconds:>12.1}");
        if let Some((algorithm, bus)) = bandwidth {
            line += &format!(" {algorithm:>10.3} {bus:>10.3}");
        }
        self.say(&line)
    }

    /// Rank 0 prints.
    fn say(&self, line: &str) -> Result<()> {
        if self.communicator.rank() == 0 {
            writeln!(std::io::stdout(), "{line}")?;
        }
        Ok(())
    }

    fn head(&self, transport: &str) -> Result<()> {
        if self.choice.json {
            return Ok(());
        }
        self.say(&format!("{}: {} ranks, {transport}", crate::bench_allocator::hardware(), self.ranks()))?;
        let [size, time, algorithm, bus] = ["bytes", "µs", "alg GB/s", "bus GB/s"];
        self.say(&format!("{:<20} {size:>10} {time:>12} {algorithm:>10} {bus:>10}", "operation"))
    }

    /// The all-reduce beside the MPI library's own.
    #[cfg(feature = "mpi")]
    fn compare(&mut self, world: &collective::mpi::World) -> Result<()> {
        let (values, mut sums) = (vec![0f32; COMPARED / 4], vec![0f32; COMPARED / 4]);
        let (mut own, mut library) = (f64::INFINITY, f64::INFINITY);
        // In turns, and the best of each: what else runs on the machine hits both alike.
        for _ in 0..TURNS {
            own = own.min(self.seconds(|bench| bench.all_reduce(COMPARED))?);
            library = library.min(self.seconds(|_| {
                world.library_all_reduce(&values, &mut sums);
                Ok(())
            })?);
        }
        let (ratio, own, library) = (own / library, own * 1e6, library * 1e6);
        self.say(&format!(
            "all-reduce of {COMPARED} bytes, best of {TURNS}: {own:.1} µs; MPI_Allreduce: {library:.1} µs; ratio {ratio:.2}"
        ))
    }
}
