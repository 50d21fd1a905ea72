//! Collectives between ranks, with operands in host memory.

use std::time::Instant;

use collective::{Collective, Communicator};
use device::{Buffer, Category, DType, Device, DeviceOptions, Region, Request};

use super::choice::Choice;
use super::measurement::{
    BOTH_WAYS, BenchError, Bus, Measurement, ONCE, ONE_WAY, Result, STREAM, say, say_json,
};
use crate::bench_allocator::hardware;

const SIZES: [usize; 10] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Size in bytes at which the MPI library's own all-reduce is measured.
#[cfg(feature = "mpi")]
const COMPARED: usize = 4 << 20;
#[cfg(feature = "mpi")]
const TURNS: usize = 5;
/// Largest size in bytes on the control channel, which carries small messages.
const LARGEST_CONTROL: usize = 1 << 20;
const WARM_UP: usize = 3;
const ROUNDS: std::ops::RangeInclusive<u64> = 3..=10_000;

/// A measured operation.
struct Operation {
    name: &'static str,
    bus: Bus,
    call: fn(&mut HostBench, usize) -> Result<()>,
}

const OPERATIONS: [Operation; 6] = [
    Operation { name: "all-reduce", bus: BOTH_WAYS, call: HostBench::all_reduce },
    Operation { name: "reduce-scatter", bus: ONE_WAY, call: HostBench::reduce_scatter },
    Operation { name: "all-gather", bus: ONE_WAY, call: HostBench::all_gather },
    Operation { name: "broadcast", bus: ONCE, call: HostBench::broadcast },
    Operation { name: "exchange", bus: ONCE, call: HostBench::exchange },
    Operation { name: "control all-gather", bus: ONE_WAY, call: HostBench::control },
];

/// One rank of the measurement in host memory.
pub(super) struct HostBench {
    communicator: Communicator,
    first: Buffer,
    second: Buffer,
    choice: Choice,
}

impl HostBench {
    /// Allocates two buffers of the largest size, filled with zeros.
    pub(super) fn new(communicator: Communicator, choice: Choice) -> Result<Self> {
        let device = Device::cpu(communicator.rank(), &DeviceOptions::default())?;
        let sizes = choice.sizes(&SIZES);
        // Every rank's share must be at least one f32.
        let largest = sizes.into_iter().fold(4 * communicator.world_size(), usize::max);
        let buffer = || device.allocate(largest, Request::new(Category::Communication, "bench").on(STREAM));
        let first = buffer()?;
        let second = buffer()?;
        for buffer in [&first, &second] {
            device.zero(buffer.region(0, largest))?;
        }
        Ok(HostBench { communicator, first, second, choice })
    }

    /// Measures and prints every selected operation.
    pub(super) fn run(&mut self, transport: &str) -> Result<()> {
        self.head(transport)?;
        for operation in OPERATIONS {
            if !self.choice.wants(operation.name) {
                continue;
            }
            let control = operation.name.starts_with("control");
            let sizes = self.choice.sizes(&SIZES);
            for bytes in sizes.into_iter().filter(|bytes| !control || *bytes <= LARGEST_CONTROL) {
                let seconds = self.seconds(|bench| (operation.call)(bench, bytes))?;
                let operand = ("f32", bytes);
                self.print(&Measurement::new(self.ranks(), operation.name, operand, seconds, operation.bus))?;
            }
        }
        if !self.choice.wants("barrier") {
            return Ok(());
        }
        let seconds =
            self.seconds(|bench| Ok(bench.communicator.group.run(Collective::Barrier, STREAM)?))?;
        self.print(&Measurement::barrier(self.ranks(), "f32", seconds))
    }

    fn ranks(&self) -> usize {
        self.communicator.world_size()
    }

    /// Returns the bytes of each rank's share of an operand: a whole number of f32 values, at least one.
    fn share(&self, bytes: usize) -> usize {
        (bytes / self.ranks() / 4).max(1) * 4
    }

    fn enqueue(&self, collective: Collective<Region<'_>>) -> Result<()> {
        Ok(self.communicator.group.run(collective, STREAM)?)
    }

    fn all_reduce(&mut self, bytes: usize) -> Result<()> {
        self.enqueue(Collective::AllReduce { region: self.first.region(0, bytes), dtype: DType::F32 })
    }

    fn reduce_scatter(&mut self, bytes: usize) -> Result<()> {
        let share = self.share(bytes);
        let input = self.first.region(0, share * self.ranks());
        let output = self.second.region(0, share);
        self.enqueue(Collective::ReduceScatter { input, output, dtype: DType::F32 })
    }

    fn all_gather(&mut self, bytes: usize) -> Result<()> {
        let share = self.share(bytes);
        let input = self.second.region(0, share);
        let output = self.first.region(0, share * self.ranks());
        self.enqueue(Collective::AllGather { input, output })
    }

    fn broadcast(&mut self, bytes: usize) -> Result<()> {
        self.enqueue(Collective::Broadcast { root: 0, region: self.first.region(0, bytes) })
    }

    /// Sends to the next rank of a ring and receives from the previous one.
    fn exchange(&mut self, bytes: usize) -> Result<()> {
        let rank = self.communicator.rank();
        let ranks = self.ranks();
        if ranks == 1 {
            return Ok(());
        }
        let sends = vec![((rank + 1) % ranks, self.first.region(0, bytes))];
        let receives = vec![((rank + ranks - 1) % ranks, self.second.region(0, bytes))];
        self.enqueue(Collective::Exchange { sends, receives })
    }

    fn control(&mut self, bytes: usize) -> Result<()> {
        let message = vec![0; self.share(bytes)];
        self.communicator.control.all_gather(&message)?;
        Ok(())
    }

    /// Returns the mean seconds of `call`, over as many calls as fit into the time.
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
        // All ranks make as many calls as rank 0 has time for.
        let mut rounds = fitting.to_le_bytes().to_vec();
        self.communicator.control.broadcast(0, &mut rounds)?;
        let rounds = rounds.try_into().map_or(*ROUNDS.start(), u64::from_le_bytes);
        timed(self, rounds, &mut call)
    }

    fn print(&self, measured: &Measurement<'_>) -> Result<()> {
        if self.choice.json {
            return say_json(&self.communicator, measured);
        }
        let Measurement { operation, bytes, seconds, .. } = *measured;
        let mut line = format!("{operation:<20} {bytes:>10} {:>12.1}", seconds * 1e6);
        if let Some(bandwidth) = measured.bandwidth {
            line += &format!(" {:>10.3} {:>10.3}", bandwidth.algorithm, bandwidth.bus);
        }
        say(&self.communicator, &line)
    }

    fn head(&self, transport: &str) -> Result<()> {
        if self.choice.json {
            return Ok(());
        }
        say(&self.communicator, &format!("{}: {} ranks, {transport}", hardware(), self.ranks()))?;
        let [size, time, algorithm, bus] = ["bytes", "µs", "alg GB/s", "bus GB/s"];
        say(
            &self.communicator,
            &format!("{:<20} {size:>10} {time:>12} {algorithm:>10} {bus:>10}", "operation"),
        )
    }

    /// Prints the times of this crate's all-reduce and of the MPI library's own.
    #[cfg(feature = "mpi")]
    pub(super) fn compare(&mut self) -> Result<()> {
        let values = vec![0f32; COMPARED / 4];
        let mut sums = vec![0f32; COMPARED / 4];
        let mut own = f64::INFINITY;
        let mut library = f64::INFINITY;
        // Alternating, with the best of each, so that other load on the host affects both alike.
        for _ in 0..TURNS {
            own = own.min(self.seconds(|bench| bench.all_reduce(COMPARED))?);
            library = library.min(self.seconds(|_| {
                collective::mpi::library_all_reduce(&values, &mut sums);
                Ok(())
            })?);
        }
        let ratio = own / library;
        let own = own * 1e6;
        let library = library * 1e6;
        let line = format!(
            "all-reduce of {COMPARED} bytes, best of {TURNS}: {own:.1} µs; MPI_Allreduce: {library:.1} µs; \
             ratio {ratio:.2}"
        );
        say(&self.communicator, &line)
    }
}
