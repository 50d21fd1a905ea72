//! A plane with peer access simulated over the threads' transport. It answers calls on shared memory by
//! collectives that sum in the same order, and refuses other calls on shared regions.

use collective::{
    Communicator, DataPlane, Observer, PeerAccess, PeerAccessOptions, RankTree, Result, SharedPlane,
    SharedSum, Traffic,
};
use device::{DType, Region, StreamKind};

/// A test's wrapper of a rank's communicator.
pub(crate) type Over = fn(Communicator) -> Communicator;

/// Returns the communicator unchanged.
pub(crate) fn apart(communicator: Communicator) -> Communicator {
    communicator
}

/// Adds simulated peer access to a communicator.
pub(crate) fn over(mut communicator: Communicator) -> Communicator {
    let alone: Vec<Vec<usize>> = vec![(0..communicator.world_size()).collect()];
    // A second plane of all ranks serves as the inner one.
    let inner = communicator.data.split(&alone).unwrap();
    communicator.data = SharedPlane::new(Direct { inner, shared: Vec::new() });
    communicator
}

struct Direct {
    inner: Box<dyn DataPlane>,
    /// Addresses and bytes of shared regions.
    shared: Vec<(u64, usize)>,
}

fn span(region: &Region<'_>) -> (u64, usize) {
    (region.buffer.address() + region.offset as u64, region.bytes)
}

impl Direct {
    fn is_shared(&self, region: &Region<'_>) -> bool {
        let (start, bytes) = span(region);
        let holds =
            |(base, length): &(u64, usize)| *base <= start && start + bytes as u64 <= base + *length as u64;
        self.shared.iter().any(holds)
    }

    fn only_elsewhere(&self, regions: &[Region<'_>]) {
        assert!(
            !regions.iter().any(|region| self.is_shared(region)),
            "a shared region was passed to another call"
        );
    }
}

impl DataPlane for Direct {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn all_reduce(&mut self, region: Region<'_>, dtype: DType, stream: StreamKind) -> Result<()> {
        self.only_elsewhere(&[region]);
        self.inner.all_reduce(region, dtype, stream)
    }

    fn reduce_scatter(
        &mut self,
        input: Region<'_>,
        output: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()> {
        self.only_elsewhere(&[input]);
        self.inner.reduce_scatter(input, output, dtype, stream)
    }

    fn all_gather(&mut self, input: Region<'_>, output: Region<'_>, stream: StreamKind) -> Result<()> {
        self.only_elsewhere(&[output]);
        self.inner.all_gather(input, output, stream)
    }

    fn broadcast(&mut self, root: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.inner.broadcast(root, region, stream)
    }

    fn send(&mut self, to: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.inner.send(to, region, stream)
    }

    fn receive(&mut self, from: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.inner.receive(from, region, stream)
    }

    fn exchange(
        &mut self,
        sends: &[(usize, Region<'_>)],
        receives: &[(usize, Region<'_>)],
        stream: StreamKind,
    ) -> Result<()> {
        sends.iter().chain(receives).for_each(|(_, region)| self.only_elsewhere(&[*region]));
        self.inner.exchange(sends, receives, stream)
    }

    fn barrier(&mut self, stream: StreamKind) -> Result<()> {
        self.inner.barrier(stream)
    }

    fn synchronize(&mut self, stream: StreamKind) -> Result<()> {
        self.inner.synchronize(stream)
    }

    fn split(&mut self, groups: &[Vec<usize>]) -> Result<Box<dyn DataPlane>> {
        self.inner.split(groups)
    }

    fn share(&mut self, regions: &[Region<'_>], _options: PeerAccessOptions) -> Result<PeerAccess> {
        self.shared = regions.iter().map(span).collect();
        Ok(PeerAccess::Granted)
    }

    fn sum_shared(&mut self, sums: &[SharedSum<'_>], _alone: bool, stream: StreamKind) -> Result<bool> {
        // The inner plane's order is that of one part each.
        if sums.iter().any(|sum| *sum.tree != RankTree::balanced(self.world_size())) {
            self.shared.clear();
            return Ok(false);
        }
        for SharedSum { region, scratch, dtype, everywhere, .. } in sums {
            assert!(
                self.is_shared(region) && !self.is_shared(scratch),
                "the summed region must be shared, and the scratch must not"
            );
            assert!(scratch.bytes >= region.bytes);
            if *everywhere {
                self.inner.all_reduce(*region, *dtype, stream)?;
            } else {
                let part = region.bytes / self.world_size();
                let own = region.part(part * self.rank(), part);
                self.inner.reduce_scatter(*region, own, *dtype, stream)?;
            }
        }
        Ok(true)
    }

    fn exchange_shared(
        &mut self,
        sends: &[(usize, Region<'_>)],
        receives: &[(usize, Region<'_>)],
        stream: StreamKind,
    ) -> Result<bool> {
        if self.shared.is_empty() {
            return Ok(false);
        }
        assert!(
            sends.iter().chain(receives).all(|(_, region)| self.is_shared(region)),
            "all parts must be shared"
        );
        self.inner.exchange(sends, receives, stream)?;
        Ok(true)
    }

    fn observe(&mut self, observer: Observer) {
        self.inner.observe(observer);
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn rank_traffic(&self) -> Traffic {
        self.inner.rank_traffic()
    }
}
