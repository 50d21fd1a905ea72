//! Sums and copies between ranks that have access to each other's memory.
//!
//! Every call runs between two meetings of all ranks. After the first meeting, all ranks have written the
//! values to be read and read the values to be overwritten. Between the meetings, each range of a region
//! belongs on all ranks to the one rank that sums or copies it. After the second, each rank may use its own
//! memory again.

use device::{DType, Region, Result, StreamKind};
use tensor::ops::tree::{self, SumTree, TreeKernel};

use crate::rank_tree::RankTree;

/// Tuning of peer-to-peer sums. Affects speed, never results.
#[derive(Clone, Copy, Debug)]
pub struct PeerAccessOptions {
    /// Most blocks, and so multiprocessors, of the kernel that reads the other ranks' memory.
    pub blocks: u32,
    /// How values move between ranks while other work runs.
    pub method: PeerMethod,
    /// Kernels that sum; without them, ranks do not share memory.
    pub sums: Option<SumKernels>,
    /// The regions of ranks with several parts of a sum.
    pub layout: SharedLayout,
}

/// The order of the regions that ranks share, of which those with several parts of a sum have more.
///
/// The first `common` regions are those that every rank has, and the sums are made in the first `summed` of
/// them. Second parts follow the common regions, one of each summed region and as long, then third ones. By
/// default all ranks share equally many regions, and have one part of each sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedLayout {
    /// Number of regions that every rank has.
    pub common: usize,
    /// Number of regions that may have further parts.
    pub summed: usize,
}

impl SharedLayout {
    /// Returns the index of a rank's part of a region; `None` for a further part of one that has none.
    fn part(self, region: usize, part: usize) -> Option<usize> {
        match part.checked_sub(1) {
            None => Some(region),
            Some(further) => (region < self.summed).then_some(self.common + further * self.summed + region),
        }
    }

    /// Returns whether ranks may share regions of these lengths together.
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
    /// Returns the kernel for a dtype and an order; `None` if there is none.
    pub kernel: fn(DType, &SumTree) -> Option<TreeKernel>,
    /// Returns the blocks of a launch over a number of vectors of a number of parts, at most the third
    /// argument.
    pub blocks: fn(usize, usize, u32) -> u32,
    /// Threads of a block.
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

/// A sum over ranks of the same range of a shared region on every rank, and of its further parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedSum<R> {
    /// The range that is summed in place, of this rank's first part.
    pub region: R,
    /// Workspace of at least [`RankTree::scratch_elements`] of that length, on the same device, not shared;
    /// overwritten.
    pub scratch: R,
    /// Type of the elements.
    pub dtype: DType,
    /// Whether every rank gets the whole sum; if false, each gets only its own of the equal shards.
    pub everywhere: bool,
}

/// The answer to [`ProcessGroup::share`](crate::ProcessGroup::share).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// Ranks have access to each other's memory.
    Granted,
    /// Ranks have no access to each other's memory, for this reason.
    Denied(String),
}

/// Bytes of a vector that kernels move; shards begin at multiples of it.
const VECTOR: usize = 16;

/// A range of a shared region, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedRange {
    /// Index of the region.
    pub(crate) region: usize,
    /// Offset of the first byte in the region.
    pub(crate) offset: usize,
    /// Number of bytes.
    pub(crate) bytes: usize,
}

/// The parts of a shard that one rank sums.
#[derive(Clone, Debug)]
pub(crate) struct PeerSum<'a> {
    /// The shard in the first part of each rank, where the sum goes.
    pub(crate) own: SharedRange,
    /// Rank and range of each part, in the order of the tree.
    pub(crate) parts: Vec<(usize, SharedRange)>,
    /// The order of additions.
    pub(crate) tree: &'a SumTree,
    /// Type of the elements.
    pub(crate) dtype: DType,
}

/// One rank's operations on the shared memory. Each call is enqueued on a stream, in order.
pub(crate) trait PeerEngine {
    /// Blocks later work until all ranks have reached their meeting of this number and finished their work
    /// before it.
    fn meet(&mut self, number: u32, stream: StreamKind) -> Result<()>;

    /// Sums all parts into this rank's memory or into all ranks' memory.
    fn add(&mut self, sum: &PeerSum<'_>, everywhere: bool, stream: StreamKind) -> Result<()>;

    /// Copies the other ranks' parts to `scratch`, and sums all into this rank's memory.
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
    /// Number of meetings so far; it wraps around.
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

    /// Returns whether `range` splits into one shard of whole vectors per rank, in all parts of a tree.
    pub(crate) fn divides(&self, range: SharedRange, tree: &RankTree) -> bool {
        let has_parts = tree.has_one_part_each() || self.layout.part(range.region, 1).is_some();
        let whole = range.offset.is_multiple_of(VECTOR) && range.bytes.is_multiple_of(VECTOR * self.ranks);
        whole && has_parts && tree.ranks() == self.ranks
    }

    /// Sums over ranks at each range; [`PeerWindow::divides`] must hold for all of them.
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

    /// Does this rank's part of one sum, between the meetings.
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
            // Until the second meeting only this rank accesses that shard on other ranks, and its read is
            // done.
            self.others().try_for_each(|peer| self.engine.put(own, peer, stream))?;
        }
        Ok(())
    }

    /// Copies ranges of this rank, each to one other rank. No other rank sends the same range.
    pub(crate) fn exchange(&mut self, parts: &[(usize, SharedRange)], stream: StreamKind) -> Result<()> {
        self.meet(stream)?;
        for peer in self.others() {
            let parts = parts.iter().filter(|(to, _)| *to == peer);
            parts.into_iter().try_for_each(|(_, part)| self.engine.put(*part, peer, stream))?;
        }
        self.meet(stream)
    }

    /// The other ranks, starting with the next one, so that not all ranks write to the same one.
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
