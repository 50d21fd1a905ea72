//! The measurement between GPUs, over NCCL.
//!
//! Calls are enqueued one behind the other and waited for at the end, as a training step does it: the time of one is that
//! of all over their number, on the slowest rank. Beside the library's all-reduce stands the sum in Plimsoll's fixed order,
//! with its time over that of the all-reduce: `tree`, which `parallel` makes of an exchange, additions and a gather over NCCL,
//! and where GPUs reach each other's memory `tree N`, which a kernel of N blocks makes there and writes to all, `tree N
//! copied`, which copy engines move afterwards, and `tree engines`, for which copy engines also bring what is added.

use std::io::Write;
use std::time::{Duration, Instant};

use collective::{CollectiveUse, Communicator, PeerAccess, PeerAccessOptions, PeerMethod, SumKernels, nccl};
use device::{Category, DType, Device, DeviceOptions, Request};
use parallel::data::{TreeSum, tree_sums};
use tensor::Tensor;
use tensor::ops::tree;

use super::choice::Choice;
use super::{BenchError, Result, STREAM, json_line};

const SIZES: [usize; 11] = [
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
    1 << 30,
];
const WARM_UP: u64 = 3;
const ROUNDS: std::ops::RangeInclusive<u64> = 5..=2_000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Models with this many bytes per second from one GPU to the others over NVLink, by their datasheets.
const NVLINK: [&str; 2] = ["NVIDIA H100 80GB HBM3", "NVIDIA H200"];
const NVLINK_GIGABYTES: u32 = 450;

/// How many GPUs there are, for ranks that own one each. Errors: why they cannot, in one sentence.
pub(super) fn available() -> std::result::Result<usize, String> {
    let found = device::cuda::availability().map_err(|why| format!("--device cuda: {why}"))?.len();
    match found {
        1 => Err("--device cuda: there is 1 GPU, and collectives are between two or more".to_owned()),
        _ if !nccl::is_there() => {
            Err("--device cuda: NCCL's library libnccl.so cannot be opened: install NCCL or set LD_LIBRARY_PATH; where \
                 there is only libnccl.so.2, a link libnccl.so to it is needed"
                .to_owned())
        }
        _ => Ok(found),
    }
}

/// How often each byte of an operand crosses a rank's link.
type Bus = fn(f64) -> f64;

/// An operation on two buffers of which it uses so many bytes.
type Call = fn(&mut GpuBench, &Buffers, usize) -> Result<()>;

const BOTH_WAYS: Bus = |n| 2.0 * (n - 1.0) / n;
const ONE_WAY: Bus = |n| (n - 1.0) / n;
const ONCE: Bus = |_| 1.0;

/// Two buffers of the largest size, seen as elements of one type.
struct Buffers {
    first: Tensor,
    second: Tensor,
    dtype: DType,
}

/// One rank of the measurement.
pub(super) struct GpuBench {
    communicator: Communicator,
    device: Device,
    choice: Choice,
    /// Bytes of the GPU that NCCL took to meet the other ranks, and then for connections.
    taken: [u64; 2],
}

impl GpuBench {
    /// The rank on GPU `ordinal`.
    pub(super) fn new(communicator: Communicator, ordinal: usize, choice: Choice) -> Result<Self> {
        let options = DeviceOptions { settings: choice.allocator.clone(), ..DeviceOptions::default() };
        let device = Device::cuda(communicator.rank(), ordinal, tensor::ops::FAMILIES, &options)?;
        let taken = || -> Result<u64> { Ok(device.ledger()?.map_or(0, |ledger| ledger.communicators)) };
        let mut communicator =
            device.connecting(|| Ok::<_, BenchError>(communicator.over_nccl(&device, TIMEOUT)?))?;
        let met = taken()?;
        let uses = uses(&choice, communicator.world_size());
        device.connecting(|| Ok::<_, BenchError>(communicator.data.warm_up(&uses)?))?;
        let connected = taken()?;
        Ok(GpuBench { communicator, device, choice, taken: [met, connected - met] })
    }

    pub(super) fn run(&mut self, transport: &str) -> Result<()> {
        self.head(transport)?;
        for dtype in [DType::F32, DType::Bf16] {
            let buffers = self.buffers(dtype)?;
            self.sums(&buffers)?;
        }
        let buffers = self.buffers(DType::F32)?;
        let moves: [(&str, Bus, Call); 3] = [
            ("all-gather", ONE_WAY, Self::all_gather),
            ("broadcast", ONCE, Self::broadcast),
            ("exchange", ONCE, Self::exchange),
        ];
        for (name, bus, call) in moves {
            for bytes in self.sizes(name) {
                let seconds = self.seconds(|bench| call(bench, &buffers, bytes))?;
                self.line(name, "", bytes, seconds, bus, "")?;
            }
        }
        if !self.choice.wants("barrier") {
            return Ok(());
        }
        let seconds = self.seconds(|bench| Ok(bench.communicator.data.barrier(STREAM)?))?;
        if self.choice.json {
            return self.say(&json_line(self.ranks(), "barrier", "", 0, seconds, None));
        }
        self.say(&format!("{:<15} {:<5} {:>11} {:>11.1}", "barrier", "", 0, seconds * 1e6))
    }

    /// The sizes at which an operation is measured; none if it is not.
    fn sizes(&self, operation: &str) -> Vec<usize> {
        if self.choice.wants(operation) { self.choice.sizes(&SIZES) } else { Vec::new() }
    }

    fn sums(&mut self, buffers: &Buffers) -> Result<()> {
        let dtype = buffers.dtype.name();
        let mut libraries = Vec::new();
        for bytes in self.choice.sizes(&SIZES) {
            let mut library = None;
            if self.choice.wants("all-reduce") {
                let seconds = self.seconds(|bench| bench.all_reduce(buffers, bytes))?;
                self.line("all-reduce", dtype, bytes, seconds, BOTH_WAYS, "")?;
                library = Some(seconds);
            }
            if self.choice.wants("tree") {
                let tree = self.seconds(|bench| bench.tree(&buffers.second, &buffers.first, bytes))?;
                self.line("tree", dtype, bytes, tree, BOTH_WAYS, &ratio(tree, library))?;
            }
            libraries.push((bytes, library));
        }
        let trees = self.choice.wants("tree");
        let blocks = if trees { self.choice.peer_blocks.clone() } else { Vec::new() };
        for blocks in &blocks {
            for method in [PeerMethod::Kernel, PeerMethod::Copies] {
                self.peers(buffers, peer_options(*blocks, method), &libraries)?;
            }
        }
        if let Some(blocks) = blocks.first() {
            self.peers(buffers, peer_options(*blocks, PeerMethod::Engines), &libraries)?;
        }
        for bytes in self.sizes("reduce-scatter") {
            let seconds = self.seconds(|bench| bench.reduce_scatter(buffers, bytes))?;
            self.line("reduce-scatter", dtype, bytes, seconds, ONE_WAY, "")?;
        }
        Ok(())
    }

    /// The tree in the GPUs' memory, beside the library's times by size.
    fn peers(
        &mut self,
        buffers: &Buffers,
        options: PeerAccessOptions,
        libraries: &[(usize, Option<f64>)],
    ) -> Result<()> {
        let name = match options.method {
            PeerMethod::Kernel => format!("tree {}", options.blocks),
            PeerMethod::Copies => format!("tree {} copied", options.blocks),
            PeerMethod::Engines => "tree engines".to_owned(),
        };
        if let PeerAccess::Denied(why) = self.communicator.data.share(&[buffers.first.region()], options)? {
            return if self.choice.json { Ok(()) } else { self.say(&format!("{name}: {why}")) };
        }
        for (bytes, library) in libraries {
            let seconds = self.seconds(|bench| bench.tree(&buffers.first, &buffers.second, *bytes))?;
            let ratio = ratio(seconds, *library);
            self.line(&name, buffers.dtype.name(), *bytes, seconds, BOTH_WAYS, &ratio)?;
        }
        // The buffers go before the communicator does.
        self.communicator.data.share(&[], options)?;
        Ok(())
    }

    /// Zeros, whose sums are zeros however often they are taken.
    fn buffers(&self, dtype: DType) -> Result<Buffers> {
        let request = Request::new(Category::Communication, "bench").on(STREAM);
        let largest = self.choice.sizes(&SIZES).into_iter().fold(0, usize::max);
        let zeros = || Tensor::zeros(&self.device, [largest / dtype.bytes()], dtype, request);
        let buffers = Buffers { first: zeros()?, second: zeros()?, dtype };
        self.device.synchronize()?;
        Ok(buffers)
    }

    fn ranks(&self) -> usize {
        self.communicator.world_size()
    }

    /// A part of an operand for each rank, a multiple of 16 bytes.
    fn part(&self, bytes: usize) -> usize {
        bytes / self.ranks() / 16 * 16
    }

    fn all_reduce(&mut self, buffers: &Buffers, bytes: usize) -> Result<()> {
        Ok(self.communicator.data.all_reduce(buffers.first.region().part(0, bytes), buffers.dtype, STREAM)?)
    }

    /// In the GPUs' memory where `bucket` is shared, else by exchanges.
    fn tree(&mut self, bucket: &Tensor, scratch: &Tensor, bytes: usize) -> Result<()> {
        let elements = self.part(bytes) * self.ranks() / bucket.dtype().bytes();
        let (bucket, scratch) = (bucket.view(0, [elements])?, scratch.view(0, [elements])?);
        let sum = TreeSum { bucket: &bucket, scratch: &scratch, everywhere: true };
        Ok(tree_sums(&mut *self.communicator.data, &[sum], false, STREAM)?)
    }

    fn reduce_scatter(&mut self, buffers: &Buffers, bytes: usize) -> Result<()> {
        let part = self.part(bytes);
        let input = buffers.first.region().part(0, part * self.ranks());
        let output = buffers.second.region().part(0, part);
        Ok(self.communicator.data.reduce_scatter(input, output, buffers.dtype, STREAM)?)
    }

    fn all_gather(&mut self, buffers: &Buffers, bytes: usize) -> Result<()> {
        let part = self.part(bytes);
        let input = buffers.second.region().part(0, part);
        let output = buffers.first.region().part(0, part * self.ranks());
        Ok(self.communicator.data.all_gather(input, output, STREAM)?)
    }

    fn broadcast(&mut self, buffers: &Buffers, bytes: usize) -> Result<()> {
        Ok(self.communicator.data.broadcast(0, buffers.first.region().part(0, bytes), STREAM)?)
    }

    /// To the next rank and from the one before, in a ring.
    fn exchange(&mut self, buffers: &Buffers, bytes: usize) -> Result<()> {
        let (rank, ranks) = (self.communicator.rank(), self.ranks());
        let sends = [((rank + 1) % ranks, buffers.first.region().part(0, bytes))];
        let receives = [((rank + ranks - 1) % ranks, buffers.second.region().part(0, bytes))];
        Ok(self.communicator.data.exchange(&sends, &receives, STREAM)?)
    }

    /// Seconds that one of many calls takes on the slowest rank.
    fn seconds(&mut self, mut call: impl FnMut(&mut Self) -> Result<()>) -> Result<f64> {
        let mut timed = |bench: &mut Self, rounds: u64| {
            bench.communicator.control.barrier()?;
            let began = Instant::now();
            (0..rounds).try_for_each(|_| call(bench))?;
            bench.communicator.data.synchronize(STREAM)?;
            bench.slowest(began.elapsed().as_secs_f64() / rounds as f64)
        };
        let once = timed(self, WARM_UP)?;
        // All ranks know the same time, and so make as many calls.
        let rounds = ((self.choice.time.as_secs_f64() / once) as u64).clamp(*ROUNDS.start(), *ROUNDS.end());
        timed(self, rounds)
    }

    fn slowest(&mut self, seconds: f64) -> Result<f64> {
        let all = self.communicator.control.all_gather(&seconds.to_le_bytes())?;
        let known = all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok().map(f64::from_le_bytes));
        Ok(known.fold(seconds, f64::max))
    }

    fn line(
        &self,
        name: &str,
        dtype: &str,
        bytes: usize,
        seconds: f64,
        bus: Bus,
        beside: &str,
    ) -> Result<()> {
        let algorithm = bytes as f64 / seconds / 1e9;
        let (microseconds, bus) = (seconds * 1e6, algorithm * bus(self.ranks() as f64));
        if self.choice.json {
            let bandwidth = Some((algorithm, bus));
            return self.say(&json_line(self.ranks(), name, dtype, bytes, seconds, bandwidth));
        }
        let line = format!(
            "{name:<15} {dtype:<5} {bytes:>11} {microseconds:>11.1} {algorithm:>9.2} {bus:>9.2}  {beside}"
        );
        self.say(line.trim_end())
    }

    fn head(&self, transport: &str) -> Result<()> {
        let description = self.device.description();
        let (ranks, model, libraries) = (self.ranks(), &description.model, &description.libraries);
        let library = nccl::version().unwrap_or_default();
        let [met, connected] = self.taken;
        if self.choice.json {
            return self.say(&format!(
                "{{\"ranks\":{ranks},\"device\":{model:?},\"transport\":{transport:?},\"nccl\":{library:?},\
                 \"meeting_bytes\":{met},\"connection_bytes\":{connected}}}"
            ));
        }
        self.say(&format!("{ranks} × {model}, {transport}, NCCL {library}, {libraries}"))?;
        if NVLINK.iter().any(|known| model.starts_with(known)) {
            self.say(&format!("datasheet: NVLink {NVLINK_GIGABYTES} GB/s per GPU and direction"))?;
        }
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (met, connected) = (mebibytes(met), mebibytes(connected));
        self.say(&format!(
            "NCCL takes {met:.0} MiB of each GPU to meet, and {connected:.0} MiB for connections"
        ))?;
        let [size, time, algorithm, bus] = ["bytes", "µs", "alg GB/s", "bus GB/s"];
        self.say(&format!("{:<15} {:<5} {size:>11} {time:>11} {algorithm:>9} {bus:>9}", "operation", "type"))
    }

    /// Rank 0 prints.
    fn say(&self, line: &str) -> Result<()> {
        if self.communicator.rank() == 0 {
            writeln!(std::io::stdout(), "{line}")?;
        }
        Ok(())
    }
}

fn ratio(seconds: f64, library: Option<f64>) -> String {
    library.map(|library| format!("{:.2} × all-reduce", seconds / library)).unwrap_or_default()
}

/// What has to be connected for the operations that are measured.
fn uses(choice: &Choice, ranks: usize) -> Vec<CollectiveUse> {
    let wants = |operation: &str| choice.wants(operation);
    let wanted = |using: &CollectiveUse| match using {
        CollectiveUse::AllReduce(_) => wants("all-reduce") || wants("barrier"),
        CollectiveUse::ReduceScatter(_) => wants("reduce-scatter"),
        // Large sums go around the same ring.
        CollectiveUse::AllGather => wants("all-gather") || wants("tree") || wants("all-reduce"),
        CollectiveUse::Broadcast => wants("broadcast"),
        CollectiveUse::Peer(_) => wants("exchange") || wants("tree"),
    };
    CollectiveUse::everything(ranks).into_iter().filter(wanted).collect()
}

fn peer_options(blocks: u32, method: PeerMethod) -> PeerAccessOptions {
    let sums = SumKernels { kernel: tree::kernel, blocks: tree::blocks, threads: tree::THREADS };
    PeerAccessOptions { blocks, method, sums: Some(sums) }
}
