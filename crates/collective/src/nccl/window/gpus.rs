//! One GPU's operations on the memory of its group: the implementation of [`PeerEngine`].

use std::cell::Cell;
use std::rc::Rc;

use device::cuda::{PeerAddress, PeerMemory, SignalPage};
use device::{DType, Device, DeviceError, Region, StreamKind};
use tensor::ops::tree::{SumTree, TreeKernel};

use crate::peer_access::{PeerEngine, PeerSum, SharedRange, SumKernels};

/// Amount added to a signal word to end all waits on it.
const RELEASED: u32 = 1 << 30;

/// Words of host memory through which a rank signals that it has reached a synchronization point.
#[derive(Debug)]
pub(in crate::nccl) struct Signals {
    pub(super) rank: usize,
    /// Signal pages, by waiting rank.
    pub(super) pages: Vec<SignalPage>,
    /// Number of the last meeting enqueued.
    pub(super) meetings: Cell<u32>,
}

impl Signals {
    /// Ends this rank's waits for others. Repeated until its work is done, because other ranks may still
    /// write lower numbers.
    pub(in crate::nccl) fn release(&self) {
        let others = (0..self.pages.len()).filter(|rank| *rank != self.rank);
        others.for_each(|rank| self.pages[self.rank].store(rank, self.meetings.get().wrapping_add(RELEASED)));
    }
}

/// The shared memory of a group's ranks, as accessed by one GPU.
#[derive(Debug)]
pub(in crate::nccl) struct Gpus {
    pub(super) device: Device,
    pub(super) rank: usize,
    /// Addresses of each rank's regions in that rank's address space.
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

    /// Returns a region's range in the shared regions; `None` if it is not shared.
    pub(in crate::nccl) fn range(&self, region: Region<'_>) -> Option<SharedRange> {
        let address = region.buffer.address() + region.offset as u64;
        let bytes = region.bytes;
        let holds = |(base, length): (&u64, &u64)| {
            *base <= address && address.checked_add(bytes as u64).is_some_and(|end| end <= base + length)
        };
        let index = self.bases[self.rank].iter().zip(&self.lengths).position(holds)?;
        Some(SharedRange { region: index, offset: (address - self.bases[self.rank][index]) as usize, bytes })
    }

    /// Runs every operation once, so that the driver loads and connects nothing while ranks wait: kernels
    /// over 0 bytes, and a copy of a few bytes of every rank to `scratch`.
    pub(super) fn rehearse(&mut self, scratch: Region<'_>) -> device::Result<()> {
        let Some(bytes) = self.lengths.first().map(|bytes| scratch.bytes.min(*bytes as usize)) else {
            return Ok(());
        };
        // The kernel for one fixed order, and the kernel for any order.
        let own = SharedRange { region: 0, offset: 0, bytes: 0 };
        let ranks: Vec<usize> = (0..self.memory.len()).collect();
        for (dtype, ranks) in [DType::F32, DType::Bf16].into_iter().flat_map(|d| [(d, &*ranks), (d, &[0; 3])])
        {
            let tree = SumTree::balanced(ranks.len());
            let parts = ranks.iter().map(|rank| (*rank, own)).collect();
            self.add(&PeerSum { own, parts, tree: &tree, dtype }, true, StreamKind::Reduce)?;
        }
        let some = SharedRange { region: 0, offset: 0, bytes };
        let target = scratch.part(0, bytes);
        for rank in 0..self.memory.len() {
            self.device.copy_from_peer(self.at(rank, some)?, target, StreamKind::Reduce)?;
        }
        self.device.synchronize()
    }

    /// Returns whether a kernel sums this dtype in this order.
    pub(in crate::nccl) fn adds(&self, dtype: DType, tree: &SumTree) -> bool {
        (self.sums.kernel)(dtype, tree).is_some()
    }

    /// Returns the kernel of a sum.
    ///
    /// # Errors
    /// No kernel exists ([`Gpus::adds`] is false).
    fn kernel(&self, sum: &PeerSum<'_>) -> device::Result<TreeKernel> {
        let unsupported = DeviceError::Unsupported { call: "sum over ranks", dtype: sum.dtype };
        (self.sums.kernel)(sum.dtype, sum.tree).ok_or(unsupported)
    }

    fn at(&self, rank: usize, range: SharedRange) -> device::Result<PeerAddress<'_>> {
        let address = self.bases[rank].get(range.region).map(|base| base + range.offset as u64);
        let start = range.offset;
        let end = range.offset + range.bytes;
        let bytes = self.lengths.get(range.region).copied().unwrap_or(0) as usize;
        let outside = || DeviceError::OutOfBounds { start, end, bytes };
        address.and_then(|address| self.memory[rank].at(address, range.bytes)).ok_or_else(outside)
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

    fn add(&mut self, sum: &PeerSum<'_>, everywhere: bool, stream: StreamKind) -> device::Result<()> {
        let parts = sum.parts.len();
        let bytes = sum.own.bytes;
        let vectors = bytes / 16;
        let blocks = (self.sums.blocks)(vectors, parts, self.blocks);
        let kernel = self.kernel(sum)?;
        let mut launch = self.device.kernel(kernel.function()).on(stream);
        for (rank, range) in &sum.parts {
            launch = launch.peer(self.at(*rank, *range)?);
        }
        // The sum replaces the first part on every rank.
        let is_first = |(_, (_, range)): &(usize, &(usize, SharedRange))| *range == sum.own;
        let first = sum.parts.iter().enumerate().filter(|part| everywhere && is_first(part));
        let targets = first.fold(0_u64, |targets, (part, _)| targets | 1 << part);
        let own = self.at(self.rank, sum.own)?;
        let launch = kernel.finish(launch, |launch| launch.peer(own), vectors as u64, targets);
        let written = targets.count_ones().max(1) as usize;
        let launch = launch.cost((bytes * (parts + written)) as u64, (vectors * 4 * (parts - 1)) as u64);
        launch.launch([blocks, 1, 1], self.sums.threads)
    }

    fn fetch_and_add(
        &mut self,
        sum: &PeerSum<'_>,
        scratch: Region<'_>,
        stream: StreamKind,
    ) -> device::Result<()> {
        let ranks = self.memory.len();
        let bytes = sum.own.bytes;
        let copy_of = |part: usize| scratch.part(part * bytes, bytes);
        // Each rank starts with its successor, so that not all ranks read from the same one.
        for other in (1..ranks).map(|distance| (self.rank + distance) % ranks) {
            for (part, (rank, range)) in sum.parts.iter().enumerate().filter(|(_, (rank, _))| *rank == other)
            {
                self.device.copy_from_peer(self.at(*rank, *range)?, copy_of(part), stream)?;
            }
        }
        let vectors = bytes / 16;
        let parts = sum.parts.len();
        let blocks = (self.sums.blocks)(vectors, parts, self.device.description().multiprocessors);
        let own = self.at(self.rank, sum.own)?;
        let kernel = self.kernel(sum)?;
        let mut launch = self.device.kernel(kernel.function()).on(stream);
        for (part, (rank, range)) in sum.parts.iter().enumerate() {
            launch = match *rank == self.rank {
                true => launch.peer(self.at(*rank, *range)?),
                false => launch.read(copy_of(part)),
            };
        }
        let launch = kernel.finish(launch, |launch| launch.peer(own), vectors as u64, 0);
        let launch = launch.cost((bytes * (parts + 1)) as u64, (vectors * 4 * (parts - 1)) as u64);
        launch.launch([blocks, 1, 1], self.sums.threads)
    }

    fn put(&mut self, range: SharedRange, peer: usize, stream: StreamKind) -> device::Result<()> {
        self.device.copy_to_peer(self.at(self.rank, range)?, self.at(peer, range)?, stream)
    }
}
