//! One GPU's operations on the memory of its group: the implementation of [`PeerEngine`].

use std::cell::Cell;
use std::rc::Rc;

use device::cuda::{PeerAddress, PeerMemory, SignalPage};
use device::{DType, Device, DeviceError, Function, Region, StreamKind};

use crate::peer_access::{PeerEngine, SharedRange, SumKernels};

/// Number by which a released word is ahead of all waits.
const RELEASED: u32 = 1 << 30;

/// Words of host memory with which a group's ranks signal that they have reached a meeting.
#[derive(Debug)]
pub(in crate::nccl) struct Signals {
    pub(super) rank: usize,
    /// Pages of signals, by waiting rank.
    pub(super) pages: Vec<SignalPage>,
    /// Number of the last enqueued meeting.
    pub(super) meetings: Cell<u32>,
}

impl Signals {
    /// Ends this rank's waits for others. They may still write lower numbers, so this is repeated until its
    /// work is done.
    pub(in crate::nccl) fn release(&self) {
        let others = (0..self.pages.len()).filter(|rank| *rank != self.rank);
        others.for_each(|rank| self.pages[self.rank].store(rank, self.meetings.get().wrapping_add(RELEASED)));
    }
}

/// The memory of a group's ranks, as one GPU accesses it.
#[derive(Debug)]
pub(in crate::nccl) struct Gpus {
    pub(super) device: Device,
    pub(super) rank: usize,
    /// Addresses of each rank's regions on that rank.
    pub(super) bases: Vec<Vec<u64>>,
    /// Bytes of each region.
    pub(super) lengths: Vec<u64>,
    pub(super) memory: Vec<PeerMemory>,
    pub(super) signals: Rc<Signals>,
    pub(super) blocks: u32,
    pub(super) sums: SumKernels,
}

impl Gpus {
    pub(in crate::nccl) fn signals(&self) -> &Rc<Signals> {
        &self.signals
    }

    /// Returns a region's range in the shared regions.
    pub(in crate::nccl) fn range(&self, region: Region<'_>) -> Option<SharedRange> {
        let (address, bytes) = (region.buffer.address() + region.offset as u64, region.bytes);
        let holds = |(base, length): (&u64, &u64)| {
            *base <= address && address.checked_add(bytes as u64).is_some_and(|end| end <= base + length)
        };
        let index = self.bases[self.rank].iter().zip(&self.lengths).position(holds)?;
        Some(SharedRange { region: index, offset: (address - self.bases[self.rank][index]) as usize, bytes })
    }

    /// Runs the operations once, so that the driver loads and connects nothing while ranks wait: kernels over
    /// 0 bytes, and a copy of a few bytes of every rank to `scratch`.
    pub(super) fn rehearse(&mut self, scratch: Region<'_>) -> device::Result<()> {
        let Some(bytes) = self.lengths.first().map(|bytes| scratch.bytes.min(*bytes as usize)) else {
            return Ok(());
        };
        for dtype in [DType::F32, DType::Bf16] {
            self.add(SharedRange { region: 0, offset: 0, bytes: 0 }, dtype, true, StreamKind::Reduce)?;
        }
        let (some, target) = (SharedRange { region: 0, offset: 0, bytes }, scratch.part(0, bytes));
        for rank in 0..self.memory.len() {
            self.device.copy_from_peer(self.at(rank, some)?, target, StreamKind::Reduce)?;
        }
        self.device.synchronize()
    }

    /// Returns whether there is a kernel that sums all ranks' values of a type.
    pub(in crate::nccl) fn adds(&self, dtype: DType) -> bool {
        (self.sums.kernel)(dtype, self.memory.len()).is_some()
    }

    /// Returns the kernel that sums all ranks' values of a type.
    ///
    /// # Errors
    /// A type for which [`Gpus::adds`] is false.
    fn kernel(&self, dtype: DType) -> device::Result<Function> {
        let ranks = self.memory.len();
        (self.sums.kernel)(dtype, ranks).ok_or(DeviceError::Unsupported { call: "sum over ranks", dtype })
    }

    fn at(&self, rank: usize, range: SharedRange) -> device::Result<PeerAddress<'_>> {
        let address = self.bases[rank][range.region] + range.offset as u64;
        let (start, end) = (range.offset, range.offset + range.bytes);
        let outside = || DeviceError::OutOfBounds { start, end, bytes: self.lengths[range.region] as usize };
        self.memory[rank].at(address, range.bytes).ok_or_else(outside)
    }
}

impl PeerEngine for Gpus {
    fn meet(&mut self, number: u32, stream: StreamKind) -> device::Result<()> {
        let others = || (0..self.memory.len()).filter(|rank| *rank != self.rank);
        let pages = &self.signals.pages;
        let writes: Vec<_> = others().map(|other| (pages[other].word(self.rank), number)).collect();
        let waits: Vec<_> = others().map(|other| (pages[self.rank].word(other), number)).collect();
        self.signals.meetings.set(number);
        let span = self.device.span(stream, "peers", "meet");
        self.device.signal(&writes, &waits, stream)?;
        span.end()
    }

    fn add(
        &mut self,
        range: SharedRange,
        dtype: DType,
        everywhere: bool,
        stream: StreamKind,
    ) -> device::Result<()> {
        let ranks = self.memory.len();
        let vectors = range.bytes / 16;
        let blocks = (self.sums.blocks)(vectors, ranks, self.blocks);
        let mut launch = self.device.kernel(self.kernel(dtype)?).on(stream);
        for rank in 0..ranks {
            launch = launch.peer(self.at(rank, range)?);
        }
        launch = launch.peer(self.at(self.rank, range)?).u64(vectors as u64).u32(u32::from(everywhere));
        let written = if everywhere { ranks } else { 1 };
        launch = launch.cost((range.bytes * (ranks + written)) as u64, (vectors * 4 * (ranks - 1)) as u64);
        launch.launch([blocks, 1, 1], self.sums.threads)
    }

    fn fetch_and_add(
        &mut self,
        range: SharedRange,
        scratch: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> device::Result<()> {
        let (ranks, bytes) = (self.memory.len(), range.bytes);
        let copy_of = |rank: usize| scratch.part(rank * bytes, bytes);
        // Each rank starts with the next one, so that not all read from the same one.
        for other in (1..ranks).map(|distance| (self.rank + distance) % ranks) {
            self.device.copy_from_peer(self.at(other, range)?, copy_of(other), stream)?;
        }
        let vectors = bytes / 16;
        let blocks = (self.sums.blocks)(vectors, ranks, self.device.description().multiprocessors);
        let own = self.at(self.rank, range)?;
        let mut launch = self.device.kernel(self.kernel(dtype)?).on(stream);
        for rank in 0..ranks {
            launch = if rank == self.rank { launch.peer(own) } else { launch.read(copy_of(rank)) };
        }
        launch = launch.peer(own).u64(vectors as u64).u32(0);
        launch = launch.cost((bytes * (ranks + 1)) as u64, (vectors * 4 * (ranks - 1)) as u64);
        launch.launch([blocks, 1, 1], self.sums.threads)
    }

    fn put(&mut self, range: SharedRange, peer: usize, stream: StreamKind) -> device::Result<()> {
        self.device.copy_to_peer(self.at(self.rank, range)?, self.at(peer, range)?, stream)
    }
}
