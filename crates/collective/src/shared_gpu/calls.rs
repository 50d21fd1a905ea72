//! The calls of the plane: checked, made of offers, and counted.

use std::rc::Rc;
use std::sync::Arc;

use device::{DType, Region, StreamKind};

use super::engine::{Engine, span_of};
use super::plane::SharedGpuPlane;
use crate::call::{Call, Operation, Plane};
use crate::control::Observer;
use crate::data::{CollectiveUse, DataPlane};
use crate::error::{CollectiveError, Result};
use crate::group::SplitGroup;
use crate::host::same_groups;
use crate::link::Link;
use crate::operands::{Operands, PeerRegion, check_rank};
use crate::shards::ByteShards;
use crate::traffic::Traffic;

impl<L: Link, E: Engine> DataPlane for SharedGpuPlane<L, E> {
    fn rank(&self) -> usize {
        self.tickets.rank()
    }

    fn world_size(&self) -> usize {
        self.tickets.world_size()
    }

    fn all_reduce(&mut self, region: Region<'_>, dtype: DType, stream: StreamKind) -> Result<()> {
        let (signature, caller) = self.next(Operation::AllReduce);
        self.check(caller, &Operands::AllReduce { region, dtype })?;
        self.begin(&signature.bytes(region.bytes).dtype(dtype))?;
        if self.world_size() > 1 && region.bytes > 0 {
            let shards = ByteShards::of_elements(region.bytes, dtype.bytes(), self.world_size());
            let own = shards.range(self.rank());
            // Until all have read, a rank writes its own shard only, which nobody else reads.
            self.with_all(caller, span_of(region), stream, |engine, spans| {
                if own.is_empty() {
                    return Ok(());
                }
                let parts: Vec<_> = spans.iter().map(|span| span.part(own.start, own.len())).collect();
                engine.sum(&parts, region.part(own.start, own.len()), dtype, stream)
            })?;
            self.with_all(caller, span_of(region), stream, |engine, spans| {
                spans.iter().enumerate().try_for_each(|(rank, span)| {
                    let shard = shards.range(rank);
                    let target = region.part(shard.start, shard.len());
                    engine.copy(span.part(shard.start, shard.len()), target, stream)
                })
            })?;
        }
        self.tally.all_reduce(region.bytes, dtype);
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        input: Region<'_>,
        output: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()> {
        let (signature, caller) = self.next(Operation::ReduceScatter);
        self.check(caller, &Operands::ReduceScatter { input, output, dtype })?;
        self.begin(&signature.bytes(output.bytes).dtype(dtype))?;
        if output.bytes > 0 {
            let start = self.rank() * output.bytes;
            self.with_all(caller, span_of(input), stream, |engine, spans| {
                let parts: Vec<_> = spans.iter().map(|span| span.part(start, output.bytes)).collect();
                match &*parts {
                    [only] => engine.copy(*only, output, stream),
                    _ => engine.sum(&parts, output, dtype, stream),
                }
            })?;
        }
        self.tally.reduce_scatter(output.bytes);
        Ok(())
    }

    fn all_gather(&mut self, input: Region<'_>, output: Region<'_>, stream: StreamKind) -> Result<()> {
        let (signature, caller) = self.next(Operation::AllGather);
        self.check(caller, &Operands::AllGather { input, output })?;
        self.begin(&signature.bytes(input.bytes))?;
        if input.bytes > 0 {
            self.with_all(caller, span_of(input), stream, |engine, spans| {
                spans.iter().enumerate().try_for_each(|(rank, span)| {
                    engine.copy(*span, output.part(rank * input.bytes, input.bytes), stream)
                })
            })?;
        }
        self.tally.all_gather(input.bytes);
        Ok(())
    }

    fn broadcast(&mut self, root: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        let (signature, caller) = self.next(Operation::Broadcast);
        self.check(caller, &Operands::Broadcast { root, region })?;
        self.begin(&signature.bytes(region.bytes).root(root))?;
        if region.bytes > 0 {
            self.copy_root(caller, root, region, stream)?;
        }
        self.tally.broadcast(root, region.bytes);
        Ok(())
    }

    fn send(&mut self, to: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.point_to_point(Operation::Send, &[(to, region)], &[], stream)
    }

    fn receive(&mut self, from: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.point_to_point(Operation::Receive, &[], &[(from, region)], stream)
    }

    fn exchange(
        &mut self,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<()> {
        self.point_to_point(Operation::Exchange, sends, receives, stream)
    }

    fn barrier(&mut self, stream: StreamKind) -> Result<()> {
        let (signature, caller) = self.next(Operation::Barrier);
        self.begin(&signature)?;
        let nothing = super::offers::Span { address: 0, bytes: 0 };
        self.with_all(caller, nothing, stream, |_, _| Ok(()))?;
        self.tally.nothing(Operation::Barrier);
        Ok(())
    }

    fn synchronize(&mut self, stream: StreamKind) -> Result<()> {
        let call = Call { plane: Plane::Data, operation: Operation::Synchronize, sequence: self.collectives };
        let rank = self.caller(call).rank;
        match self.tickets.failure() {
            Some(failure) => Err(CollectiveError::failed(rank, call, failure)),
            None => self.engine.synchronize(stream).map_err(CollectiveError::device(rank, call)),
        }
    }

    fn split(&mut self, groups: &[Vec<usize>]) -> Result<Box<dyn DataPlane>> {
        let (signature, caller) = self.next(Operation::Split);
        self.check(caller, &Operands::Split { groups })?;
        self.begin(&signature)?;
        same_groups(&mut self.tickets, &mut self.pool, caller, groups)?;
        let group = SplitGroup::of(groups, self.rank());
        self.tally.nothing(Operation::Split);
        let sequence = caller.call.sequence;
        let tickets = self.tickets.split(sequence, group.number, &group.members);
        let news = self.news.split(sequence, group.number, &group.members);
        let (engine, offers) = (Rc::clone(&self.engine), Arc::clone(&self.offers));
        let mut plane = SharedGpuPlane::new(engine, offers, (tickets, news), self.tally.meter().part());
        plane.observe(self.observer.clone());
        Ok(Box::new(plane))
    }

    fn warm_up(&mut self, uses: &[CollectiveUse]) -> Result<()> {
        let call = Call { plane: Plane::Data, operation: Operation::Connect, sequence: self.collectives };
        let (caller, ranks) = (self.caller(call), self.world_size());
        uses.iter().try_for_each(|using| match using {
            CollectiveUse::Peer(peer) => check_rank(caller, ranks, *peer),
            _ => Ok(()),
        })
    }

    fn observe(&mut self, observer: Observer) {
        self.observer = observer;
    }

    fn traffic(&self) -> Traffic {
        self.tally.meter().own()
    }

    fn rank_traffic(&self) -> Traffic {
        self.tally.meter().rank()
    }
}
