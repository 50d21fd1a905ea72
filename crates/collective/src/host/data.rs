//! The data plane over queues of messages, for regions of host memory and of Meta.

mod shards;

use device::{DType, Region, StreamKind};

use crate::call::{Call, Operation, Plane, Signature};
use crate::control::Observer;
use crate::data::DataPlane;
use crate::error::{CollectiveError, Result};
use crate::group::SplitGroup;
use crate::host::region::on_meta;
use crate::host::{Moved, Transfers, barrier, begin, broadcast_tree, copy, same_groups};
use crate::link::Link;
use crate::operands::{Caller, Membership, Operands, PeerRegion, Reach};
use crate::payload::{PAYLOAD_BYTES, PayloadPool};
use crate::shards::ByteShards;
use crate::traffic::{Meter, Traffic};

/// A [`DataPlane`] over its own link. Every call is done on return, whatever its stream.
#[derive(Debug)]
pub(crate) struct HostData<L> {
    link: L,
    collectives: u64,
    /// Number of messages sent to each peer.
    sent: Vec<u64>,
    received: Vec<u64>,
    meter: Meter,
    observer: Observer,
    pool: PayloadPool,
}

impl<L: Link> HostData<L> {
    pub(crate) fn new(link: L, meter: Meter) -> Self {
        let world_size = link.world_size();
        HostData {
            link,
            collectives: 0,
            sent: vec![0; world_size],
            received: vec![0; world_size],
            meter,
            observer: Observer::default(),
            pool: PayloadPool::default(),
        }
    }

    fn next(&mut self, operation: Operation) -> (Signature, Caller) {
        let sequence = self.collectives;
        self.collectives += 1;
        let call = Call { plane: Plane::Data, operation, sequence };
        self.observer.begins(call);
        (Signature::new(call), self.caller(call))
    }

    fn caller(&self, call: Call) -> Caller {
        Caller { rank: self.link.world_rank(self.link.rank()), call }
    }

    fn record(&mut self, operation: Operation, moved: Moved) {
        self.meter.record(operation, moved.sent, moved.received);
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<L> {
        let rank = self.link.rank();
        (0..self.link.world_size()).filter(move |peer| *peer != rank)
    }

    fn check(&self, caller: Caller, operands: &Operands<'_>) -> Result<()> {
        let (rank, size) = (self.link.rank(), self.link.world_size());
        // In a group of one nothing is moved, so any kind of memory is accepted.
        let reach = if size == 1 { Reach::Any } else { Reach::Host };
        operands.check(caller, Membership { rank, size, reach })
    }

    /// Runs sends and receives between pairs of ranks, as part of `operation`.
    fn point_to_point(
        &mut self,
        operation: Operation,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
    ) -> Result<()> {
        let first = match (sends.first(), receives.first()) {
            (Some((to, _)), _) => self.sent.get(*to),
            (None, Some((from, _))) => self.received.get(*from),
            (None, None) => None,
        };
        let call = Call { plane: Plane::Data, operation, sequence: first.copied().unwrap_or(0) };
        self.observer.begins(call);
        self.check(self.caller(call), &Operands::PointToPoint { sends, receives })?;
        let mut transfers = Transfers::new(call);
        let message = |count: &mut u64, region: &Region<'_>| {
            let call = Call { plane: Plane::Data, operation: Operation::Send, sequence: *count };
            *count += 1;
            Signature::new(call).bytes(region.bytes)
        };
        for (to, region) in sends {
            transfers.send(*to, message(&mut self.sent[*to], region), *region);
        }
        for (from, region) in receives {
            transfers.receive(*from, message(&mut self.received[*from], region), *region);
        }
        let moved = transfers.run(&mut self.link, &mut self.pool)?;
        self.record(operation, moved);
        Ok(())
    }
}

impl<L: Link> DataPlane for HostData<L> {
    fn rank(&self) -> usize {
        self.link.rank()
    }

    fn world_size(&self) -> usize {
        self.link.world_size()
    }

    fn all_reduce(&mut self, region: Region<'_>, dtype: DType, _stream: StreamKind) -> Result<()> {
        let (signature, caller) = self.next(Operation::AllReduce);
        let signature = signature.bytes(region.bytes).dtype(dtype);
        self.check(caller, &Operands::AllReduce { region, dtype })?;
        begin(&mut self.link, &signature)?;
        let mut moved = Moved::default();
        if self.world_size() > 1 {
            let shards = ByteShards::of_elements(region.bytes, dtype.bytes(), self.world_size());
            let mine = shards.range(self.rank());
            let output = region.part(mine.start, mine.len());
            moved += self.reduce_shards(signature, dtype, region, shards, output)?;
            moved += self.gather_shards(signature, region, shards)?;
        }
        self.record(Operation::AllReduce, moved);
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        input: Region<'_>,
        output: Region<'_>,
        dtype: DType,
        _stream: StreamKind,
    ) -> Result<()> {
        let (signature, caller) = self.next(Operation::ReduceScatter);
        let signature = signature.bytes(output.bytes).dtype(dtype);
        self.check(caller, &Operands::ReduceScatter { input, output, dtype })?;
        begin(&mut self.link, &signature)?;
        if self.world_size() == 1 {
            copy(caller, input, output)?;
            self.record(Operation::ReduceScatter, Moved::default());
            return Ok(());
        }
        let shards = ByteShards::equal(output.bytes, self.world_size());
        let moved = self.reduce_shards(signature, dtype, input, shards, output)?;
        self.record(Operation::ReduceScatter, moved);
        Ok(())
    }

    fn all_gather(&mut self, input: Region<'_>, output: Region<'_>, _stream: StreamKind) -> Result<()> {
        let (signature, caller) = self.next(Operation::AllGather);
        let signature = signature.bytes(input.bytes);
        self.check(caller, &Operands::AllGather { input, output })?;
        begin(&mut self.link, &signature)?;
        let shards = ByteShards::equal(input.bytes, self.world_size());
        copy(caller, input, output.part(shards.range(self.rank()).start, input.bytes))?;
        let moved = self.gather_shards(signature, output, shards)?;
        self.record(Operation::AllGather, moved);
        Ok(())
    }

    fn broadcast(&mut self, root: usize, region: Region<'_>, _stream: StreamKind) -> Result<()> {
        let (signature, caller) = self.next(Operation::Broadcast);
        let signature = signature.bytes(region.bytes).root(root);
        self.check(caller, &Operands::Broadcast { root, region })?;
        let call = begin(&mut self.link, &signature)?;
        let (parent, children) = broadcast_tree(self.rank(), self.world_size(), root);
        let chunk = if on_meta(&region) { usize::MAX } else { PAYLOAD_BYTES };
        let mut moved = Moved::default();
        // Chunks are passed on while later ones still arrive.
        for round in 0..region.bytes.div_ceil(chunk).max(1) {
            let range = ByteShards::equal(region.bytes, 1).chunk(0, round, chunk);
            let part = region.part(range.start, range.len());
            if let Some(parent) = parent {
                let mut transfers = Transfers::new(call);
                transfers.receive(parent, signature, part);
                moved += transfers.run(&mut self.link, &mut self.pool)?;
            }
            let mut transfers = Transfers::new(call);
            children.iter().for_each(|child| transfers.send(*child, signature, part));
            moved += transfers.run(&mut self.link, &mut self.pool)?;
        }
        self.record(Operation::Broadcast, moved);
        Ok(())
    }

    fn send(&mut self, to: usize, region: Region<'_>, _stream: StreamKind) -> Result<()> {
        self.point_to_point(Operation::Send, &[(to, region)], &[])
    }

    fn receive(&mut self, from: usize, region: Region<'_>, _stream: StreamKind) -> Result<()> {
        self.point_to_point(Operation::Receive, &[], &[(from, region)])
    }

    fn exchange(
        &mut self,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        _stream: StreamKind,
    ) -> Result<()> {
        self.point_to_point(Operation::Exchange, sends, receives)
    }

    fn barrier(&mut self, _stream: StreamKind) -> Result<()> {
        let (signature, _) = self.next(Operation::Barrier);
        let call = begin(&mut self.link, &signature)?;
        barrier(&mut self.link, &mut self.pool, call, signature)?;
        self.record(Operation::Barrier, Moved::default());
        Ok(())
    }

    fn synchronize(&mut self, _stream: StreamKind) -> Result<()> {
        let sequence = self.collectives;
        let call = Call { plane: Plane::Data, operation: Operation::Synchronize, sequence };
        match self.link.failure() {
            Some(failure) => Err(CollectiveError::failed(self.caller(call).rank, call, failure)),
            None => Ok(()),
        }
    }

    fn split(&mut self, groups: &[Vec<usize>]) -> Result<Box<dyn DataPlane>> {
        let (signature, caller) = self.next(Operation::Split);
        self.check(caller, &Operands::Split { groups })?;
        let call = begin(&mut self.link, &signature)?;
        same_groups(&mut self.link, &mut self.pool, caller, groups)?;
        let group = SplitGroup::of(groups, self.rank());
        self.record(Operation::Split, Moved::default());
        let link = self.link.split(call.sequence, group.number, &group.members);
        let mut plane = HostData::new(link, self.meter.part());
        plane.observe(self.observer.clone());
        Ok(Box::new(plane))
    }

    fn observe(&mut self, observer: Observer) {
        self.observer = observer;
    }

    fn traffic(&self) -> Traffic {
        self.meter.own()
    }

    fn rank_traffic(&self) -> Traffic {
        self.meter.rank()
    }
}
