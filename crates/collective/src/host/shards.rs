//! Reduce-scatter and all-gather of shards over host memory.

use device::{DType, Region};

use super::HostBackend;
use crate::call::{Call, Signature};
use crate::error::{CollectiveError, Result};
use crate::host::Transfers;
use crate::host::region::{on_meta, read, write};
use crate::link::Link;
use crate::payload::{PAYLOAD_BYTES, Payload};
use crate::shards::ByteShards;
use crate::sum;
use crate::traffic::Moved;

impl<L: Link> HostBackend<L> {
    /// Sums this rank's shard of `input` over ranks into `output`, one payload per rank at a time.
    pub(super) fn reduce_shards(
        &mut self,
        signature: Signature,
        dtype: DType,
        input: Region<'_>,
        shards: ByteShards,
        output: Region<'_>,
    ) -> Result<Moved> {
        let chunk_bytes = if on_meta(&input) { usize::MAX } else { PAYLOAD_BYTES };
        let rounds = shards.longest().div_ceil(chunk_bytes);
        let rank = self.link.rank();
        let mut moved = Moved::default();
        for round in 0..rounds {
            let mine = shards.chunk(rank, round, chunk_bytes);
            let mut parts: Vec<Payload> = (0..self.link.world_size()).map(|_| Payload::default()).collect();
            let mut transfers = Transfers::new(signature.call);
            for peer in self.peers() {
                let theirs = shards.chunk(peer, round, chunk_bytes);
                if !theirs.is_empty() {
                    transfers.send(peer, signature, input.part(theirs.start, theirs.len()));
                }
            }
            if !mine.is_empty() {
                for (peer, part) in parts.iter_mut().enumerate().filter(|(peer, _)| *peer != rank) {
                    transfers.receive_payload(peer, signature, input.part(mine.start, mine.len()), part);
                }
            }
            moved += transfers.run(&mut self.link, &mut self.pool)?;
            if !mine.is_empty() {
                let source = input.part(mine.start, mine.len());
                let target = output.part(mine.start - shards.range(rank).start, mine.len());
                self.add_parts(signature.call, dtype, source, parts, target)?;
            }
        }
        Ok(moved)
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<L> {
        let rank = self.link.rank();
        (0..self.link.world_size()).filter(move |peer| *peer != rank)
    }

    /// Sums `own` and the other ranks' `parts` in tree order into `target`.
    fn add_parts(
        &mut self,
        call: Call,
        dtype: DType,
        own: Region<'_>,
        mut parts: Vec<Payload>,
        target: Region<'_>,
    ) -> Result<()> {
        let rank = self.link.rank();
        let world_rank = self.link.world_rank(rank);
        let device = |source| CollectiveError::device(world_rank, call)(source);
        parts[rank] = read(own, &mut self.pool).map_err(device)?;
        sum::tree(&mut parts, dtype);
        write(parts[0].bytes(), target).map_err(device)?;
        parts.into_iter().for_each(|part| self.pool.put(part));
        Ok(())
    }

    /// Sends every rank's shard of `region` to all ranks.
    pub(super) fn gather_shards(
        &mut self,
        signature: Signature,
        region: Region<'_>,
        shards: ByteShards,
    ) -> Result<Moved> {
        let mine = shards.range(self.link.rank());
        let mut transfers = Transfers::new(signature.call);
        for peer in self.peers() {
            let theirs = shards.range(peer);
            if !mine.is_empty() {
                transfers.send(peer, signature, region.part(mine.start, mine.len()));
            }
            if !theirs.is_empty() {
                transfers.receive(peer, signature, region.part(theirs.start, theirs.len()));
            }
        }
        transfers.run(&mut self.link, &mut self.pool)
    }
}
