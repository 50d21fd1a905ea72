//! Sums and copies between ranks with access to each other's memory.
//!
//! Every call runs between two meetings of all ranks. At the first meeting, all ranks have written the values
//! to be read and read the values to be overwritten. Between the meetings, each range of a region is used by
//! only one rank, which sums or copies it on all ranks. After the second, each rank may use its own memory
//! again.

use device::{DType, Region, Result, StreamKind};
use tensor::ops::tree::{self, SumTree, TreeKernel};

use crate::rank_tree::RankTree;

/// Tuning of peer-to-peer sums. Affects speed, never results.
#[derive(Clone, Copy, Debug)]
pub struct PeerAccessOptions {
    /// Maximum number of blocks, and so of multiprocessors, of the kernel that reads the other ranks' memory.
    pub blocks: u32,
    /// How values move between ranks while the device has other work.
    pub method: PeerMethod,
    /// Kernels for sums; without them, ranks do not share memory.
    pub sums: Option<SumKernels>,
    /// Order of the shared regions on ranks with several parts of a sum.
    pub layout: SharedLayout,
}

/// Order of the shared regions. Ranks with several parts of a sum share more regions than others.
///
/// Every rank has the first `common` regions. Sums are made in the first `summed` of them. Further parts of
/// the summed regions follow, first all second parts, then all third parts, each as long as its first part.
/// By default all ranks share equally many regions and have one part of each sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedLayout {
    /// Number of regions that every rank has.
    pub common: usize,
    /// Number of regions that may have further parts.
    pub summed: usize,
}

impl SharedLayout {
    /// Returns the index of a rank's part of a region; `None` if the region has no further parts.
    fn part(self, region: usize, part: usize) -> Option<usize> {
        match part.checked_sub(1) {
            None => Some(region),
            Some(further) => (region < self.summed).then_some(self.common + further * self.summed + region),
        }
    }

    /// Returns whether two ranks with regions of these lengths may share memory.
    pub(crate) fn agrees(self, lengths: &[u64], others: &[u64]) -> bool {
        if self.summed == 0 {
            return lengths == others;
        }
        let common = |lengths: &[u64]| lengths.get(..self.common).map(<[u64]>::to_vec);
        let repeats = |lengths: &[u64]| {
            let further = lengths.iter().skip(self.common).enumerate();
            further.into_iter().all(|(index, length)| lengths.get(index % self.summed) == Some(length))
        };
        common(lengths).is_some() && common(lengths) == common(others) && repeats(lengths) && repeats(others)
    }
}

impl Default for PeerAccessOptions {
    fn default() -> Self {
        let layout = SharedLayout::default();
        PeerAccessOptions { blocks: 16, method: PeerMethod::Kernel, sums: None, layout }
    }
}

/// Kernels that sum the parts of several ranks as a binary tree, rounding each node to the dtype.
#[derive(Clone, Copy, Debug)]
pub struct SumKernels {
    /// Returns the kernel for a dtype and an order; `None` if none exists.
    pub kernel: fn(DType, &SumTree) -> Option<TreeKernel>,
    /// Returns the number of thread blocks for (vectors, parts, maximum).
    pub blocks: fn(usize, usize, u32) -> u32,
    /// Threads per block.
    pub threads: u32,
}

impl SumKernels {
    /// The kernels of [`tensor::ops::tree`].
    pub const OF_TREES: Self =
        SumKernels { kernel: TreeKernel::find, blocks: tree::blocks, threads: tree::THREADS };
}

system::names! {
    /// How values move between ranks that have access to each other's memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PeerMethod {
        /// One kernel reads the values of all ranks, sums them, and writes the sum to all ranks.
        Kernel = "kernel",
        /// A kernel reads and sums the values; copy engines distribute the sum.
        Copies = "copies",
        /// Copy engines fetch and distribute the values; a kernel sums the copies.
        Engines = "engines",
    }
}

/// A sum over ranks of one range of a shared region, in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedSum<R> {
    /// The range in this rank's first part, which the sum replaces.
    pub region: R,
    /// Private workspace on the same device, overwritten. At least [`RankTree::scratch_elements`] of the
    /// region's length.
    pub scratch: R,
    /// Type of the elements.
    pub dtype: DType,
    /// Whether every rank gets the whole sum; if false, each rank gets only its own equal shard.
    pub everywhere: bool,
}

/// Result of [`ProcessGroup::share`](crate::ProcessGroup::share).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// Ranks have access to each other's memory.
    Granted,
    /// Ranks have no access to each other's memory; the reason.
    Denied(String),
}

/// Bytes of the vectors that kernels move; shards begin at multiples of it.
const VECTOR: usize = 16;

/// A range of a shared region, equal on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedRange {
    /// Index of the region.
    pub(crate) region: usize,
    /// Offset of the first byte in the region.
    pub(crate) offset: usize,
    /// Number of bytes.
    pub(crate) bytes: usize,
}

/// The parts that one rank sums for its shard.
#[derive(Clone, Debug)]
pub(crate) struct PeerSum<'a> {
    /// The shard within each rank's first part, which the sum replaces.
    pub(crate) own: SharedRange,
    /// Rank and range of each part, in the order of the tree.
    pub(crate) parts: Vec<(usize, SharedRange)>,
    /// The order of additions.
    pub(crate) tree: &'a SumTree,
    /// Type of the elements.
    pub(crate) dtype: DType,
}

/// One rank's operations in the shared memory. Each call is enqueued on a stream, in order.
pub(crate) trait PeerEngine {
    /// Blocks later work until all ranks have reached meeting `number` and finished their work before it.
    fn meet(&mut self, number: u32, stream: StreamKind) -> Result<()>;

    /// Sums all parts into this rank's memory or, if `everywhere`, into all ranks' memory.
    fn add(&mut self, sum: &PeerSum<'_>, everywhere: bool, stream: StreamKind) -> Result<()>;

    /// Copies the other ranks' parts to `scratch`, then sums all parts into this rank's memory.
    fn fetch_and_add(&mut self, sum: &PeerSum<'_>, scratch: Region<'_>, stream: StreamKind) -> Result<()>;

    /// Copies this rank's values at `range` to `peer`'s memory.
    fn put(&mut self, range: SharedRange, peer: usize, stream: StreamKind) -> Result<()>;
}

/// One rank's side of the shared regions of a group.
#[derive(Debug)]
pub(crate) struct PeerWindow<E> {
    engine: E,
    rank: usize,
    ranks: usize,
    method: PeerMethod,
    layout: SharedLayout,
    /// Number of meetings so far, wrapping.
    meetings: u32,
}

impl<E: PeerEngine> PeerWindow<E> {
    pub(crate) fn new(
        engine: E,
        (rank, ranks): (usize, usize),
        method: PeerMethod,
        layout: SharedLayout,
    ) -> Self {
        PeerWindow { engine, rank, ranks, method, layout, meetings: 0 }
    }

    pub(crate) fn engine(&self) -> &E {
        &self.engine
    }

    /// Returns whether `range` divides into one shard of whole vectors per rank, in all parts of the tree.
    pub(crate) fn divides(&self, range: SharedRange, tree: &RankTree) -> bool {
        let has_parts = tree.has_one_part_each() || self.layout.part(range.region, 1).is_some();
        let whole = range.offset.is_multiple_of(VECTOR) && range.bytes.is_multiple_of(VECTOR * self.ranks);
        whole && has_parts && tree.ranks() == self.ranks
    }

    /// Sums over ranks at each range. Every range must pass [`PeerWindow::divides`].
    pub(crate) fn sum(
        &mut self,
        sums: &[(SharedRange, SharedSum<Region<'_>>)],
        tree: &RankTree,
        alone: bool,
        stream: StreamKind,
    ) -> Result<()> {
        let method = if alone { PeerMethod::Kernel } else { self.method };
        self.meet(stream)?;
        for (range, sum) in sums {
            self.sum_one(*range, sum, tree, method, stream)?;
        }
        self.meet(stream)
    }

    /// Sums this rank's shard of one sum, between the meetings.
    fn sum_one(
        &mut self,
        range: SharedRange,
        sum: &SharedSum<Region<'_>>,
        tree: &RankTree,
        method: PeerMethod,
        stream: StreamKind,
    ) -> Result<()> {
        let bytes = range.bytes / self.ranks;
        let own = SharedRange { offset: range.offset + self.rank * bytes, bytes, ..range };
        let SharedSum { scratch, dtype, everywhere, .. } = *sum;
        let parts_of = |rank: usize| {
            let regions =
                (0..tree.parts_of(rank).len()).filter_map(|part| self.layout.part(own.region, part));
            regions.map(move |region| (rank, SharedRange { region, ..own }))
        };
        let parts = (0..self.ranks).flat_map(parts_of).collect();
        let shard = PeerSum { own, parts, tree: tree.tree(), dtype };
        match method {
            PeerMethod::Kernel => self.engine.add(&shard, everywhere, stream)?,
            PeerMethod::Copies => self.engine.add(&shard, false, stream)?,
            PeerMethod::Engines => self.engine.fetch_and_add(&shard, scratch, stream)?,
        }
        if everywhere && method != PeerMethod::Kernel {
            // Until the second meeting only this rank accesses this shard on other ranks, and has finished
            // reading it.
            self.others().try_for_each(|peer| self.engine.put(own, peer, stream))?;
        }
        Ok(())
    }

    /// Copies ranges of this rank's memory to other ranks. No other rank may send the same range.
    pub(crate) fn exchange(&mut self, parts: &[(usize, SharedRange)], stream: StreamKind) -> Result<()> {
        self.meet(stream)?;
        for peer in self.others() {
            let parts = parts.iter().filter(|(to, _)| *to == peer);
            parts.into_iter().try_for_each(|(_, part)| self.engine.put(*part, peer, stream))?;
        }
        self.meet(stream)
    }

    /// The other ranks, starting with the successor, so that not all ranks write to the same one.
    fn others(&self) -> impl Iterator<Item = usize> + use<E> {
        let rank = self.rank;
        let ranks = self.ranks;
        (1..ranks).map(move |distance| (rank + distance) % ranks)
    }

    fn meet(&mut self, stream: StreamKind) -> Result<()> {
        self.meetings = self.meetings.wrapping_add(1);
        self.engine.meet(self.meetings, stream)
    }
}

#[cfg(test)]
mod tests;
