//! The backend over queues of messages, for host memory and Meta.

use device::{DType, Region, StreamKind};

use crate::backend::{GroupBackend, GroupCall};
use crate::call::Signature;
use crate::caller::Caller;
use crate::collective::{Collective, Reach};
use crate::error::{CollectiveError, Result};
use crate::host::region::on_meta;
use crate::host::{Transfers, barrier, begin, broadcast_tree, copy, same_groups};
use crate::link::Link;
use crate::payload::{PAYLOAD_BYTES, PayloadPool};
use crate::shards::ByteShards;
use crate::split::SplitGroup;
use crate::traffic::Moved;

/// A [`GroupBackend`] over host memory. Every call is done on return, whatever its stream.
#[derive(Debug)]
pub(crate) struct HostBackend<L> {
    pub(super) link: L,
    pub(super) pool: PayloadPool,
}

impl<L: Link> HostBackend<L> {
    pub(crate) fn new(link: L) -> Self {
        HostBackend { link, pool: PayloadPool::default() }
    }

    /// Runs a collective that involves all ranks.
    fn collective(&mut self, caller: Caller, collective: &Collective<Region<'_>>) -> Result<Moved> {
        let rank = self.link.rank();
        let ranks = self.link.world_size();
        let signature = collective.signature(caller.call);
        begin(&mut self.link, &signature)?;
        match *collective {
            Collective::AllReduce { region, dtype } => self.all_reduce(signature, region, dtype),
            Collective::ReduceScatter { input, output, .. } if ranks == 1 => {
                copy(caller, input, output).map(|()| Moved::default())
            }
            Collective::ReduceScatter { input, output, dtype } => {
                self.reduce_shards(signature, dtype, input, ByteShards::equal(output.bytes, ranks), output)
            }
            Collective::AllGather { input, output } => {
                let shards = ByteShards::equal(input.bytes, ranks);
                copy(caller, input, output.part(shards.range(rank).start, input.bytes))?;
                self.gather_shards(signature, output, shards)
            }
            Collective::Broadcast { root, region } => self.broadcast(signature, root, region),
            Collective::Barrier => {
                barrier(&mut self.link, &mut self.pool, signature).map(|()| Moved::default())
            }
            _ => caller.refuse("ranks share no memory".to_owned()),
        }
    }

    fn all_reduce(&mut self, signature: Signature, region: Region<'_>, dtype: DType) -> Result<Moved> {
        let rank = self.link.rank();
        let ranks = self.link.world_size();
        if ranks == 1 {
            return Ok(Moved::default());
        }
        let shards = ByteShards::of_elements(region.bytes, dtype.bytes(), ranks);
        let own = shards.range(rank);
        let output = region.part(own.start, own.len());
        let moved = self.reduce_shards(signature, dtype, region, shards, output)?;
        Ok(moved + self.gather_shards(signature, region, shards)?)
    }

    fn broadcast(&mut self, signature: Signature, root: usize, region: Region<'_>) -> Result<Moved> {
        let (parent, children) = broadcast_tree(self.link.rank(), self.link.world_size(), root);
        let chunk = if on_meta(&region) { usize::MAX } else { PAYLOAD_BYTES };
        let mut moved = Moved::default();
        // Each chunk is forwarded while later chunks still arrive.
        for round in 0..region.bytes.div_ceil(chunk).max(1) {
            let range = ByteShards::equal(region.bytes, 1).chunk(0, round, chunk);
            let part = region.part(range.start, range.len());
            if let Some(parent) = parent {
                let mut transfers = Transfers::new(signature.call);
                transfers.receive(parent, signature, part);
                moved += transfers.run(&mut self.link, &mut self.pool)?;
            }
            let mut transfers = Transfers::new(signature.call);
            children.iter().for_each(|child| transfers.send(*child, signature, part));
            moved += transfers.run(&mut self.link, &mut self.pool)?;
        }
        Ok(moved)
    }

    /// Runs sends and receives between pairs of ranks.
    fn transfer(&mut self, call: &GroupCall<'_>) -> Result<Moved> {
        let mut transfers = Transfers::new(call.caller.call);
        for message in &call.sends {
            let signature = message.signature().bytes(message.region.bytes);
            transfers.send(message.peer, signature, message.region);
        }
        for message in &call.receives {
            let signature = message.signature().bytes(message.region.bytes);
            transfers.receive(message.peer, signature, message.region);
        }
        transfers.run(&mut self.link, &mut self.pool)
    }
}

impl<L: Link> GroupBackend for HostBackend<L> {
    fn reach(&self) -> Reach {
        // A group of one moves nothing, so it accepts any kind of memory.
        if self.link.world_size() == 1 { Reach::Any } else { Reach::Host }
    }

    fn enqueue(&mut self, call: &GroupCall<'_>) -> Result<()> {
        let moved = match call.collective.is_transfer() {
            true => self.transfer(call)?,
            false => self.collective(call.caller, call.collective)?,
        };
        if cfg!(debug_assertions) {
            let rank = self.link.rank();
            let ranks = self.link.world_size();
            call.collective.count(rank, ranks, |kind, counted| {
                debug_assert_eq!(moved, counted, "bytes of rank {rank} of {ranks} in {}", kind.name());
            });
        }
        Ok(())
    }

    fn synchronize(&mut self, caller: Caller, _stream: StreamKind) -> Result<()> {
        match self.link.failure() {
            Some(failure) => Err(CollectiveError::failed(caller.rank, caller.call, failure)),
            None => Ok(()),
        }
    }

    fn split(
        &mut self,
        caller: Caller,
        groups: &[Vec<usize>],
        own: &SplitGroup,
    ) -> Result<Box<dyn GroupBackend>> {
        begin(&mut self.link, &Signature::new(caller.call))?;
        same_groups(&mut self.link, &mut self.pool, caller, groups)?;
        let link = self.link.split(caller.call.sequence, own.number, &own.members);
        Ok(Box::new(HostBackend::new(link)))
    }
}
