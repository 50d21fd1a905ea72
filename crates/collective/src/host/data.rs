//! The data plane over queues of messages, for regions of host memory and of Meta.

mod shards;

use device::{DType, Region, StreamKind};

use crate::call::{Call, Operation, Plane, Signature};
use crate::control::Observer;
use crate::data::DataPlane;
use crate::error::{CollectiveError, Result};
use crate::geometry::Shards;
use crate::host::region::on_meta;
use crate::host::{
    Moved, Operand, Transfers, barrier, begin, broadcast_tree, check_gather, check_groups, check_on_host,
    check_point_to_point, check_regions, check_root, check_sum, copy, my_group,
};
use crate::link::Link;
use crate::piece::{PIECE_BYTES, Pool};
use crate::traffic::{Meter, Traffic};

/// [`DataPlane`] over a link of its own. Streams need no care: every call is done when it returns.
#[derive(Debug)]
pub(crate) struct HostData<L> {
    link: L,
    collectives: u64,
    /// Messages sent to and received from each peer.
    sent: Vec<u64>,
    received: Vec<u64>,
    meter: Meter,
    observer: Observer,
    pool: Pool,
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
            pool: Pool::default(),
        }
    }

    fn next(&mut self, operation: Operation) -> (Signature, Operand) {
        let sequence = self.collectives;
        self.collectives += 1;
        let call = Call { plane: Plane::Data, operation, sequence };
        self.observer.begins(call);
        (Signature::new(call), self.at(call))
    }

    fn at(&self, call: Call) -> Operand {
        Operand { rank: self.link.world_rank(self.link.rank()), call }
    }

    fn record(&mut self, operation: Operation, moved: Moved) {
        self.meter.record(operation, moved.sent, moved.received);
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<L> {
        let rank = self.link.rank();
        (0..self.link.world_size()).filter(move |peer| *peer != rank)
    }

    /// Alone, nothing is moved, and where regions lie does not matter.
    fn check_movable(&self, at: Operand, regions: &[Region<'_>]) -> Result<()> {
        if self.world_size() == 1 { Ok(()) } else { check_on_host(at, regions) }
    }

    /// Compares the groups of a split with those that the other ranks gave.
    fn same_groups(&mut self, at: Operand, signature: Signature, groups: &[Vec<usize>]) -> Result<()> {
        let mine = format!("{groups:?}");
        let mut theirs = vec![Vec::new(); self.world_size()];
        let mut transfers = Transfers::new(signature.call);
        let rank = self.rank();
        for (peer, bytes) in theirs.iter_mut().enumerate().filter(|(peer, _)| *peer != rank) {
            transfers.send_bytes(peer, signature, mine.as_bytes());
            transfers.receive_bytes(peer, signature, bytes);
        }
        transfers.run(&mut self.link, &mut self.pool)?;
        let peer = self.peers().find(|peer| theirs[*peer] != mine.as_bytes());
        peer.map_or(Ok(()), |peer| {
            let theirs = String::from_utf8_lossy(&theirs[peer]);
            at.refuse(format!("groups {mine}, but rank {} has {theirs}", self.link.world_rank(peer)))
        })
    }

    /// Sends and receives between pairs of ranks, as part of `operation`.
    fn point_to_point(
        &mut self,
        operation: Operation,
        sends: &[(usize, Region<'_>)],
        receives: &[(usize, Region<'_>)],
    ) -> Result<()> {
        let first = match (sends.first(), receives.first()) {
            (Some((to, _)), _) => self.sent.get(*to),
            (None, Some((from, _))) => self.received.get(*from),
            (None, None) => None,
        };
        let call = Call { plane: Plane::Data, operation, sequence: first.copied().unwrap_or(0) };
        self.observer.begins(call);
        let at = self.at(call);
        check_point_to_point(at, self.link.rank(), self.link.world_size(), sends, receives)?;
        sends.iter().chain(receives).try_for_each(|(_, region)| check_on_host(at, &[*region]))?;
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
        let (signature, at) = self.next(Operation::AllReduce);
        let signature = signature.bytes(region.bytes).dtype(dtype);
        check_sum(at, dtype, &[region])?;
        self.check_movable(at, &[region])?;
        begin(&mut self.link, &signature)?;
        let mut moved = Moved::default();
        if self.world_size() > 1 {
            let shards = Shards::of_elements(region.bytes, dtype.bytes(), self.world_size());
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
        let (signature, at) = self.next(Operation::ReduceScatter);
        let signature = signature.bytes(output.bytes).dtype(dtype);
        check_sum(at, dtype, &[input, output])?;
        check_gather(at, self.world_size(), output, input)?;
        self.check_movable(at, &[input, output])?;
        begin(&mut self.link, &signature)?;
        if self.world_size() == 1 {
            copy(at, input, output)?;
            self.record(Operation::ReduceScatter, Moved::default());
            return Ok(());
        }
        let shards = Shards::equal(output.bytes, self.world_size());
        let moved = self.reduce_shards(signature, dtype, input, shards, output)?;
        self.record(Operation::ReduceScatter, moved);
        Ok(())
    }

    fn all_gather(&mut self, input: Region<'_>, output: Region<'_>, _stream: StreamKind) -> Result<()> {
        let (signature, at) = self.next(Operation::AllGather);
        let signature = signature.bytes(input.bytes);
        check_regions(at, 2, &[input, output])?;
        check_gather(at, self.world_size(), input, output)?;
        self.check_movable(at, &[input, output])?;
        begin(&mut self.link, &signature)?;
        let shards = Shards::equal(input.bytes, self.world_size());
        copy(at, input, output.part(shards.range(self.rank()).start, input.bytes))?;
        let moved = self.gather_shards(signature, output, shards)?;
        self.record(Operation::AllGather, moved);
        Ok(())
    }

    fn broadcast(&mut self, root: usize, region: Region<'_>, _stream: StreamKind) -> Result<()> {
        let (signature, at) = self.next(Operation::Broadcast);
        let signature = signature.bytes(region.bytes).root(root);
        check_root(at, self.world_size(), root)?;
        check_regions(at, 2, &[region])?;
        self.check_movable(at, &[region])?;
        let call = begin(&mut self.link, &signature)?;
        let (parent, children) = broadcast_tree(self.rank(), self.world_size(), root);
        let piece = if on_meta(&region) { usize::MAX } else { PIECE_BYTES };
        let mut moved = Moved::default();
        // Piece by piece, so that a rank hands on what it has while the rest still comes.
        for round in 0..region.bytes.div_ceil(piece).max(1) {
            let range = Shards::equal(region.bytes, 1).piece(0, round, piece);
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
        sends: &[(usize, Region<'_>)],
        receives: &[(usize, Region<'_>)],
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
            Some(failure) => Err(CollectiveError::failed(self.at(call).rank, call, failure)),
            None => Ok(()),
        }
    }

    fn split(&mut self, groups: &[Vec<usize>]) -> Result<Box<dyn DataPlane>> {
        let (signature, at) = self.next(Operation::Split);
        check_groups(at, self.world_size(), groups)?;
        let call = begin(&mut self.link, &signature)?;
        self.same_groups(at, signature, groups)?;
        let group = my_group(groups, self.rank());
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
