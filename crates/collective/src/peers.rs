//! Sums and copies between ranks that reach each other's memory: who touches what, and when.
//!
//! Every call lies between two meetings of all ranks. After the first, all ranks have written what is to be
//! read, and read what is to be overwritten. Then each place of a region is one rank's alone, the one that
//! adds it or copies it, on all ranks. After the second, all that is over, and each rank has its own memory
//! to itself again.

use device::{DType, Region, Result, StreamKind};

use crate::data::{SharedSum, Way};

/// Bytes of a vector that kernels move: where shards begin.
const VECTOR: usize = 16;

/// A part of a shared region, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The region's number.
    pub(crate) region: usize,
    /// Where in it the part begins, in bytes.
    pub(crate) offset: usize,
    /// How long it is.
    pub(crate) bytes: usize,
}

/// What one rank does with the memory that all reach. Each call is enqueued on a stream, in order.
pub(crate) trait Engine {
    /// Work after it begins when all ranks have come to their meeting of this number, with all their work
    /// before done.
    fn meet(&mut self, number: u32, stream: StreamKind) -> Result<()>;

    /// Adds what all ranks have at `place`, in the order of the tree, to this rank's memory or to all ranks'.
    fn add(&mut self, place: Place, dtype: DType, everywhere: bool, stream: StreamKind) -> Result<()>;

    /// Copies what the others have at `place` to `scratch`, and adds all to this rank's memory in the order
    /// of the tree.
    fn fetch_and_add(
        &mut self,
        place: Place,
        scratch: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()>;

    /// Copies what this rank has at `place` to `peer`'s memory.
    fn put(&mut self, place: Place, peer: usize, stream: StreamKind) -> Result<()>;
}

/// One rank's side of the shared regions of a group.
#[derive(Debug)]
pub(crate) struct Window<E> {
    engine: E,
    rank: usize,
    ranks: usize,
    way: Way,
    /// Meetings so far, counted around the end of the type.
    meetings: u32,
}

impl<E: Engine> Window<E> {
    pub(crate) fn new(engine: E, rank: usize, ranks: usize, way: Way) -> Self {
        Window { engine, rank, ranks, way, meetings: 0 }
    }

    pub(crate) fn engine(&self) -> &E {
        &self.engine
    }

    /// Whether `place` divides into a shard of whole vectors for every rank.
    pub(crate) fn divides(&self, place: Place) -> bool {
        place.offset.is_multiple_of(VECTOR) && place.bytes.is_multiple_of(VECTOR * self.ranks)
    }

    /// Sums over ranks, each at the place of its region, which divides.
    pub(crate) fn sum(
        &mut self,
        sums: &[(Place, SharedSum<'_>)],
        alone: bool,
        stream: StreamKind,
    ) -> Result<()> {
        let way = if alone { Way::Kernel } else { self.way };
        self.meet(stream)?;
        for (place, sum) in sums {
            self.sum_one(*place, sum, way, stream)?;
        }
        self.meet(stream)
    }

    /// What this rank does for one of them between the meetings.
    fn sum_one(&mut self, place: Place, sum: &SharedSum<'_>, way: Way, stream: StreamKind) -> Result<()> {
        let bytes = place.bytes / self.ranks;
        let own = Place { offset: place.offset + self.rank * bytes, bytes, ..place };
        let SharedSum { scratch, dtype, everywhere, .. } = *sum;
        match way {
            Way::Kernel => self.engine.add(own, dtype, everywhere, stream)?,
            Way::Copies => self.engine.add(own, dtype, false, stream)?,
            Way::Engines => self.engine.fetch_and_add(own, scratch, dtype, stream)?,
        }
        if everywhere && way != Way::Kernel {
            // Nobody but this rank reads that shard of others before the second meeting, and it has.
            self.others().try_for_each(|peer| self.engine.put(own, peer, stream))?;
        }
        Ok(())
    }

    /// Copies these places of this rank, which are in no other rank's parts, each to one other rank.
    pub(crate) fn exchange(&mut self, parts: &[(usize, Place)], stream: StreamKind) -> Result<()> {
        self.meet(stream)?;
        for peer in self.others() {
            let parts = parts.iter().filter(|(to, _)| *to == peer);
            parts.into_iter().try_for_each(|(_, part)| self.engine.put(*part, peer, stream))?;
        }
        self.meet(stream)
    }

    /// Each rank begins with the next one, so that not all write to one.
    fn others(&self) -> impl Iterator<Item = usize> + use<E> {
        let (rank, ranks) = (self.rank, self.ranks);
        (1..ranks).map(move |distance| (rank + distance) % ranks)
    }

    fn meet(&mut self, stream: StreamKind) -> Result<()> {
        self.meetings = self.meetings.wrapping_add(1);
        self.engine.meet(self.meetings, stream)
    }
}

#[cfg(test)]
mod tests;
