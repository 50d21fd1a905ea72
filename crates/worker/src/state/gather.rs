//! Gathers arrays on rank 0, over the control channel, in messages of bounded length.

use collective::ControlChannel;
use tensor::Tensor;

use crate::error::Result;
use crate::state::{Array, PIECE, Source};
use crate::worker::Worker;

impl Array {
    /// Gathers all bytes of an array in `whole` on rank 0; other ranks ignore `whole`. Every rank must call
    /// this with the same arrays in the same order.
    pub fn bring(&self, worker: &mut Worker, whole: &mut [u8]) -> Result<()> {
        let rank = worker.grid().rank();
        for lane in 0..self.own.len() {
            let sources: Vec<_> = self.sources.iter().filter(|source| source.lane == lane).collect();
            let source = sources.iter().find(|source| source.rank == rank);
            let own = source.and(self.own[lane].as_ref());
            if rank != 0 {
                self.send(worker.control(), own, self.rounds(&sources))?;
                continue;
            }
            if let (Some(own), Some(source)) = (own, source) {
                let mut piece = Vec::new();
                for round in 0..own.bytes().div_ceil(PIECE) {
                    self.read_piece(own, round, &mut piece)?;
                    self.distribute(&piece, round, source, whole);
                }
            }
            self.receive(worker.control(), &sources, whole)?;
        }
        Ok(())
    }

    /// Returns the number of messages needed for the longest part on ranks other than 0.
    fn rounds(&self, sources: &[&Source]) -> usize {
        let others = sources.iter().filter(|source| source.rank != 0);
        let elements = |source: &&Source| source.runs.iter().map(|run| run.elements).sum::<usize>();
        (self.dtype.bytes() * others.map(elements).max().unwrap_or(0)).div_ceil(PIECE)
    }

    /// Reads chunk `round` of a tensor; empty beyond its end.
    fn read_piece(&self, tensor: &Tensor, round: usize, piece: &mut Vec<u8>) -> Result<()> {
        let size = self.dtype.bytes();
        let start = round * PIECE;
        piece.resize(tensor.bytes().saturating_sub(start).min(PIECE), 0);
        if !piece.is_empty() {
            tensor.view(start / size, [piece.len() / size])?.read_bytes(piece)?;
        }
        Ok(())
    }

    fn send(&self, control: &mut dyn ControlChannel, part: Option<&Tensor>, rounds: usize) -> Result<()> {
        let mut message = Vec::new();
        for round in 0..rounds {
            match part {
                Some(part) => self.read_piece(part, round, &mut message)?,
                None => message.clear(),
            }
            control.gather(0, &message)?;
        }
        Ok(())
    }

    fn receive(&self, control: &mut dyn ControlChannel, sources: &[&Source], whole: &mut [u8]) -> Result<()> {
        for round in 0..self.rounds(sources) {
            let messages = control.gather(0, &[])?.unwrap_or_default();
            for source in sources.iter().filter(|source| source.rank != 0) {
                let piece = messages.get(source.rank).map_or(&[][..], Vec::as_slice);
                self.distribute(piece, round, source, whole);
            }
        }
        Ok(())
    }

    /// Copies chunk `round` of a source's bytes to its elements in `whole`.
    fn distribute(&self, piece: &[u8], round: usize, source: &Source, whole: &mut [u8]) {
        let first = round * PIECE / self.dtype.bytes();
        let end = first + piece.len() / self.dtype.bytes();
        for run in source.runs.iter().filter_map(|run| run.within(&(first..end))) {
            let from = &piece[self.bytes_of(run.local - first, run.elements)];
            whole[self.bytes_of(run.whole, run.elements)].copy_from_slice(from);
        }
    }
}
