//! Collectives of ranks that share a GPU, built from offers.

use std::rc::Rc;
use std::sync::Arc;

use device::{DType, Region, StreamKind};

use super::backend::SharedGpuBackend;
use super::engine::{Engine, span_of};
use super::offers::Span;
use crate::backend::{GroupBackend, GroupCall};
use crate::call::Signature;
use crate::caller::Caller;
use crate::collective::{Collective, Reach};
use crate::error::{CollectiveError, Result};
use crate::host::{begin, same_groups};
use crate::link::Link;
use crate::shards::ByteShards;
use crate::split::SplitGroup;

impl<L: Link, E: Engine> SharedGpuBackend<L, E> {
    fn all_reduce(
        &mut self,
        caller: Caller,
        region: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()> {
        let rank = self.tickets.rank();
        let ranks = self.tickets.world_size();
        if ranks == 1 {
            return Ok(());
        }
        let shards = ByteShards::of_elements(region.bytes, dtype.bytes(), ranks);
        let own = shards.range(rank);
        // Until all ranks have read, a rank writes only its own shard, which no other rank reads.
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
        })
    }

    fn reduce_scatter(
        &mut self,
        caller: Caller,
        (input, output): (Region<'_>, Region<'_>),
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()> {
        let start = self.tickets.rank() * output.bytes;
        self.with_all(caller, span_of(input), stream, |engine, spans| {
            let parts: Vec<_> = spans.iter().map(|span| span.part(start, output.bytes)).collect();
            match &*parts {
                [only] => engine.copy(*only, output, stream),
                _ => engine.sum(&parts, output, dtype, stream),
            }
        })
    }

    fn all_gather(
        &mut self,
        caller: Caller,
        (input, output): (Region<'_>, Region<'_>),
        stream: StreamKind,
    ) -> Result<()> {
        self.with_all(caller, span_of(input), stream, |engine, spans| {
            spans.iter().enumerate().try_for_each(|(rank, span)| {
                engine.copy(*span, output.part(rank * input.bytes, input.bytes), stream)
            })
        })
    }
}

impl<L: Link, E: Engine> GroupBackend for SharedGpuBackend<L, E> {
    fn reach(&self) -> Reach {
        self.engine.reach()
    }

    fn enqueue(&mut self, call: &GroupCall<'_>) -> Result<()> {
        let caller = call.caller;
        let stream = call.stream;
        if call.collective.is_transfer() {
            return self.transfer(call);
        }
        let signature = call.collective.signature(caller.call);
        begin(&mut self.tickets, &signature)?;
        if signature.bytes == Some(0) {
            return Ok(());
        }
        match *call.collective {
            Collective::AllReduce { region, dtype } => self.all_reduce(caller, region, dtype, stream),
            Collective::ReduceScatter { input, output, dtype } => {
                self.reduce_scatter(caller, (input, output), dtype, stream)
            }
            Collective::AllGather { input, output } => self.all_gather(caller, (input, output), stream),
            Collective::Broadcast { root, region } => self.copy_root(caller, root, region, stream),
            Collective::Barrier => {
                let nothing = Span { address: 0, bytes: 0 };
                self.with_all(caller, nothing, stream, |_, _| Ok(()))
            }
            _ => caller.refuse("ranks share no regions".to_owned()),
        }
    }

    fn synchronize(&mut self, caller: Caller, stream: StreamKind) -> Result<()> {
        match self.tickets.failure() {
            Some(failure) => Err(CollectiveError::failed(caller.rank, caller.call, failure)),
            None => self.engine.synchronize(stream).map_err(|error| caller.device_error(error)),
        }
    }

    fn split(
        &mut self,
        caller: Caller,
        groups: &[Vec<usize>],
        own: &SplitGroup,
    ) -> Result<Box<dyn GroupBackend>> {
        begin(&mut self.tickets, &Signature::new(caller.call))?;
        same_groups(&mut self.tickets, &mut self.pool, caller, groups)?;
        let sequence = caller.call.sequence;
        let tickets = self.tickets.split(sequence, own.number, &own.members);
        let news = self.news.split(sequence, own.number, &own.members);
        let engine = Rc::clone(&self.engine);
        let offers = Arc::clone(&self.offers);
        Ok(Box::new(SharedGpuBackend::new(engine, offers, (tickets, news))))
    }
}
