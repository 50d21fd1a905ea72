//! Peer access simulated over the transport between threads. Collectives of the same order sum shared memory;
//! other calls on shared regions fail.

use std::cell::RefCell;

use collective::{
    Caller, Collective, Communicator, GroupBackend, GroupCall, PeerAccess, PeerAccessOptions, ProcessGroup,
    RankTree, Reach, Result, SharedSum, SplitGroup,
};
use device::{Region, StreamKind};

/// Wraps a rank's communicator for a test.
pub(crate) type Over = fn(Communicator) -> Communicator;

/// Returns the communicator unchanged.
pub(crate) fn apart(communicator: Communicator) -> Communicator {
    communicator
}

/// Adds simulated peer access to a communicator.
pub(crate) fn over(mut communicator: Communicator) -> Communicator {
    let rank = communicator.rank();
    let ranks = communicator.world_size();
    // A second group of all ranks serves as the inner one.
    let inner = communicator.group.split(&[(0..ranks).collect()]).unwrap();
    communicator.group = ProcessGroup::new(rank, ranks, Direct { inner, shared: RefCell::default() });
    communicator
}

struct Direct {
    inner: ProcessGroup,
    /// Address and bytes of each shared region; empty after a sum in another order than the inner group's.
    shared: RefCell<Vec<(u64, usize)>>,
}

fn span(region: &Region<'_>) -> (u64, usize) {
    (region.buffer.address() + region.offset as u64, region.bytes)
}

impl Direct {
    fn is_shared(&self, region: &Region<'_>) -> bool {
        let (start, bytes) = span(region);
        let holds =
            |(base, length): &(u64, usize)| *base <= start && start + bytes as u64 <= base + *length as u64;
        self.shared.borrow().iter().any(holds)
    }

    fn sum(&self, sum: &SharedSum<Region<'_>>, stream: StreamKind) -> Result<()> {
        let SharedSum { region, scratch, dtype, everywhere } = *sum;
        assert!(
            self.is_shared(&region) && !self.is_shared(&scratch),
            "the summed region must be shared, and the scratch must not"
        );
        assert!(scratch.bytes >= region.bytes);
        if everywhere {
            return self.inner.run(Collective::AllReduce { region, dtype }, stream);
        }
        let part = region.bytes / self.inner.world_size();
        let output = region.part(part * self.inner.rank(), part);
        self.inner.run(Collective::ReduceScatter { input: region, output, dtype }, stream)
    }
}

impl GroupBackend for Direct {
    fn reach(&self) -> Reach {
        Reach::Host
    }

    fn enqueue(&mut self, call: &GroupCall<'_>) -> Result<()> {
        let only_elsewhere = |regions: &[Region<'_>]| {
            let is_shared = regions.iter().any(|region| self.is_shared(region));
            assert!(!is_shared, "a shared region was passed to another call");
        };
        match call.collective {
            Collective::SumShared { sums, .. } => {
                return sums.iter().try_for_each(|sum| self.sum(sum, call.stream));
            }
            Collective::ExchangeShared { sends, receives } => {
                let mut all = sends.iter().chain(receives);
                assert!(all.all(|(_, region)| self.is_shared(region)), "all parts must be shared");
                let sends = sends.clone();
                let receives = receives.clone();
                return self.inner.run(Collective::Exchange { sends, receives }, call.stream);
            }
            Collective::AllReduce { region, .. }
            | Collective::ReduceScatter { input: region, .. }
            | Collective::AllGather { output: region, .. } => only_elsewhere(&[*region]),
            Collective::Exchange { sends, receives } => {
                sends.iter().chain(receives).for_each(|(_, region)| only_elsewhere(&[*region]));
            }
            _ => {}
        }
        self.inner.run(call.collective.clone(), call.stream)
    }

    fn supports(&self, collective: &Collective<Region<'_>>) -> bool {
        if let Collective::SumShared { tree, .. } = collective
            && *tree != RankTree::balanced(self.inner.world_size())
        {
            self.shared.borrow_mut().clear();
        }
        !collective.is_shared() || !self.shared.borrow().is_empty()
    }

    fn synchronize(&mut self, _: Caller, stream: StreamKind) -> Result<()> {
        self.inner.synchronize(stream)
    }

    fn split(&mut self, _: Caller, groups: &[Vec<usize>], own: &SplitGroup) -> Result<Box<dyn GroupBackend>> {
        let inner = self.inner.split(groups)?;
        assert_eq!((inner.rank(), inner.world_size()), (own.rank, own.members.len()));
        Ok(Box::new(Direct { inner, shared: RefCell::default() }))
    }

    fn connects(&self) -> bool {
        true
    }

    fn share(&mut self, _: Caller, regions: &[Region<'_>], _: PeerAccessOptions) -> Result<PeerAccess> {
        *self.shared.get_mut() = regions.iter().map(span).collect();
        Ok(PeerAccess::Granted)
    }
}
