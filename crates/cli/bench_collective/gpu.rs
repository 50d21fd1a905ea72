//! Collectives between GPUs, over NCCL.
//!
//! Calls are enqueued one after another and awaited at the end, as in a training step. The time of a call is
//! the total time divided by the number of calls, on the slowest rank. Sums in Plimsoll's fixed order are
//! shown next to the library's all-reduce, with the ratio of their times: `tree` is an exchange, additions
//! and a gather over NCCL. With peer access, `tree N` sums in peer memory by a kernel of N blocks that writes
//! to all ranks; `tree N copied` distributes the sums by copy engines; `tree engines` also fetches the
//! addends by copy engines.

use std::time::{Duration, Instant};

use collective::{
    Collective, Communicator, PeerAccess, PeerAccessOptions, PeerMethod, RankTree, TreeSum, nccl, tree_sums,
};
use device::{Category, DType, Device, DeviceOptions, Region, Request};
use serde::Serialize;
use telemetry::units::bytes;
use tensor::Tensor;

use super::choice::Choice;
use super::connect::{connections, peer_options};
use super::measurement::{
    BOTH_WAYS, BenchError, Bus, Measurement, ONCE, ONE_WAY, Result, STREAM, say, say_json,
};

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

/// Device models with [`NVLINK_GIGABYTES`] of NVLink bandwidth.
const NVLINK: [&str; 2] = ["NVIDIA H100 80GB HBM3", "NVIDIA H200"];
/// NVLink bandwidth per GPU and direction according to data sheets, in GB/s.
const NVLINK_GIGABYTES: u32 = 450;

/// Runs an operation on the first bytes of two buffers.
type Call = fn(&mut GpuBench, &Buffers, usize) -> Result<()>;

/// Two buffers of the largest size, with elements of one dtype.
struct Buffers {
    first: Tensor,
    second: Tensor,
    dtype: DType,
}

/// One rank of the measurement on GPUs.
pub(super) struct GpuBench {
    communicator: Communicator,
    device: Device,
    choice: Choice,
    /// Device bytes that NCCL took to find the other ranks.
    meeting_bytes: u64,
    /// Device bytes that NCCL took for connections.
    connection_bytes: u64,
}

impl GpuBench {
    /// Connects the rank on GPU `ordinal` for the measured operations.
    pub(super) fn new(communicator: Communicator, ordinal: usize, choice: Choice) -> Result<Self> {
        let options = DeviceOptions { settings: choice.allocator.clone(), ..DeviceOptions::default() };
        let device = Device::cuda(communicator.rank(), ordinal, tensor::ops::FAMILIES, &options)?;
        let taken = || -> Result<u64> { Ok(device.ledger()?.map_or(0, |ledger| ledger.communicators)) };
        let communicator =
            device.connecting(|| Ok::<_, BenchError>(communicator.over_nccl(&device, TIMEOUT)?))?;
        let meeting_bytes = taken()?;
        let uses = connections(&choice, communicator.world_size());
        device.connecting(|| Ok::<_, BenchError>(communicator.group.warm_up(&uses)?))?;
        let connection_bytes = taken()? - meeting_bytes;
        Ok(GpuBench { communicator, device, choice, meeting_bytes, connection_bytes })
    }

    /// Measures and prints every selected operation.
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
        let seconds = self.seconds(|bench| bench.enqueue(Collective::Barrier))?;
        self.print(&Measurement::barrier(self.ranks(), "", seconds), "")
    }

    /// Returns the sizes at which to measure `operation`; empty if it is not selected.
    fn sizes(&self, operation: &str) -> Vec<usize> {
        if self.choice.wants(operation) { self.choice.sizes(&SIZES) } else { Vec::new() }
    }

    /// Measures all-reduces, sums in the fixed order, and reduce-scatters.
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

    /// Measures sums in peer memory. `libraries` has the seconds of the library's all-reduce by size.
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
        if let PeerAccess::Denied(why) = self.communicator.group.share(&[buffers.first.region()], options)? {
            return if self.choice.json {
                Ok(())
            } else {
                say(&self.communicator, &format!("{name}: {why}"))
            };
        }
        for (bytes, library) in libraries {
            let seconds = self.seconds(|bench| bench.tree(&buffers.first, &buffers.second, *bytes))?;
            let ratio = ratio(seconds, *library);
            self.line(&name, buffers.dtype.name(), *bytes, seconds, BOTH_WAYS, &ratio)?;
        }
        // The buffers must be dropped before the communicator.
        self.communicator.group.share(&[], options)?;
        Ok(())
    }

    /// Allocates buffers filled with zeros, whose sums stay zero.
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

    /// Returns the bytes of each rank's share of an operand, a multiple of 16.
    fn share(&self, bytes: usize) -> usize {
        bytes / self.ranks() / 16 * 16
    }

    fn enqueue(&self, collective: Collective<Region<'_>>) -> Result<()> {
        Ok(self.communicator.group.run(collective, STREAM)?)
    }

    fn all_reduce(&mut self, buffers: &Buffers, bytes: usize) -> Result<()> {
        let region = buffers.first.region().part(0, bytes);
        self.enqueue(Collective::AllReduce { region, dtype: buffers.dtype })
    }

    /// Sums in peer memory if `bucket` is shared, otherwise by exchanges.
    fn tree(&mut self, bucket: &Tensor, scratch: &Tensor, bytes: usize) -> Result<()> {
        let elements = self.share(bytes) * self.ranks() / bucket.dtype().bytes();
        let parts = [bucket.view(0, [elements])?];
        let scratch = scratch.view(0, [elements])?;
        let sum = TreeSum { parts: &parts, scratch: &scratch, everywhere: true };
        let tree = RankTree::balanced(self.ranks());
        Ok(tree_sums(&self.communicator.group, &[sum], &tree, false, STREAM)?)
    }

    fn reduce_scatter(&mut self, buffers: &Buffers, bytes: usize) -> Result<()> {
        let share = self.share(bytes);
        let input = buffers.first.region().part(0, share * self.ranks());
        let output = buffers.second.region().part(0, share);
        self.enqueue(Collective::ReduceScatter { input, output, dtype: buffers.dtype })
    }

    fn all_gather(&mut self, buffers: &Buffers, bytes: usize) -> Result<()> {
        let share = self.share(bytes);
        let input = buffers.second.region().part(0, share);
        let output = buffers.first.region().part(0, share * self.ranks());
        self.enqueue(Collective::AllGather { input, output })
    }

    fn broadcast(&mut self, buffers: &Buffers, bytes: usize) -> Result<()> {
        self.enqueue(Collective::Broadcast { root: 0, region: buffers.first.region().part(0, bytes) })
    }

    /// Sends to the next rank of a ring and receives from the previous one.
    fn exchange(&mut self, buffers: &Buffers, bytes: usize) -> Result<()> {
        let rank = self.communicator.rank();
        let ranks = self.ranks();
        let sends = vec![((rank + 1) % ranks, buffers.first.region().part(0, bytes))];
        let receives = vec![((rank + ranks - 1) % ranks, buffers.second.region().part(0, bytes))];
        self.enqueue(Collective::Exchange { sends, receives })
    }

    /// Returns the seconds per call over many calls, on the slowest rank.
    fn seconds(&mut self, mut call: impl FnMut(&mut Self) -> Result<()>) -> Result<f64> {
        let mut timed = |bench: &mut Self, rounds: u64| {
            bench.communicator.control.barrier()?;
            let began = Instant::now();
            (0..rounds).try_for_each(|_| call(bench))?;
            bench.communicator.group.synchronize(STREAM)?;
            bench.slowest(began.elapsed().as_secs_f64() / rounds as f64)
        };
        let once = timed(self, WARM_UP)?;
        // `once` is the same on all ranks, so they make equally many calls.
        let rounds = ((self.choice.time.as_secs_f64() / once) as u64).clamp(*ROUNDS.start(), *ROUNDS.end());
        timed(self, rounds)
    }

    /// Returns the maximum of all ranks' `seconds`.
    fn slowest(&mut self, seconds: f64) -> Result<f64> {
        let all = self.communicator.control.all_gather(&seconds.to_le_bytes())?;
        let times = all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok().map(f64::from_le_bytes));
        Ok(times.fold(seconds, f64::max))
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
        self.print(&Measurement::new(self.ranks(), name, (dtype, bytes), seconds, bus), beside)
    }

    fn print(&self, measured: &Measurement<'_>, beside: &str) -> Result<()> {
        if self.choice.json {
            return say_json(&self.communicator, measured);
        }
        let Measurement { operation, dtype, bytes, seconds, .. } = *measured;
        let mut line = format!("{operation:<15} {dtype:<5} {bytes:>11} {:>11.1}", seconds * 1e6);
        if let Some(bandwidth) = measured.bandwidth {
            line += &format!(" {:>9.2} {:>9.2}  {beside}", bandwidth.algorithm, bandwidth.bus);
        }
        say(&self.communicator, &line)
    }

    fn head(&self, transport: &str) -> Result<()> {
        let description = self.device.description();
        let head = Head {
            ranks: self.ranks(),
            device: &description.model,
            transport,
            nccl: nccl::version().unwrap_or_default(),
            meeting_bytes: self.meeting_bytes,
            connection_bytes: self.connection_bytes,
        };
        if self.choice.json {
            return say_json(&self.communicator, &head);
        }
        let Head { ranks, device, nccl, .. } = &head;
        let say = |line: &str| say(&self.communicator, line);
        say(&format!("{ranks} × {device}, {transport}, NCCL {nccl}, {}", description.libraries))?;
        if NVLINK.iter().any(|model| device.starts_with(model)) {
            say(&format!("datasheet: NVLink {NVLINK_GIGABYTES} GB/s per GPU and direction"))?;
        }
        let meeting = bytes(self.meeting_bytes);
        let connections = bytes(self.connection_bytes);
        say(&format!(
            "NCCL takes {meeting} of each GPU to find the other ranks and {connections} for connections"
        ))?;
        let [size, time, algorithm, bus] = ["bytes", "µs", "alg GB/s", "bus GB/s"];
        say(&format!("{:<15} {:<5} {size:>11} {time:>11} {algorithm:>9} {bus:>9}", "operation", "dtype"))
    }
}

/// First line of JSON: the ranks, and NCCL's memory on each GPU.
#[derive(Serialize)]
struct Head<'a> {
    ranks: usize,
    device: &'a str,
    transport: &'a str,
    nccl: String,
    meeting_bytes: u64,
    connection_bytes: u64,
}

/// Formats the time of a sum relative to the library's all-reduce.
fn ratio(seconds: f64, library: Option<f64>) -> String {
    library.map(|library| format!("{:.2} × all-reduce", seconds / library)).unwrap_or_default()
}
