//! Collection of arrays on rank 0, over the control plane in messages of bounded length.

use collective::ControlPlane;
use nn::Run;
use tensor::Tensor;

use crate::error::Result;
use crate::state::{Array, PIECE, to_host};
use crate::worker::Worker;

impl Array {
    /// Collects the bytes of all elements on the host of rank 0, in `whole`, which other ranks neither read
    /// nor write. All ranks call this with the same arrays in the same order.
    pub fn bring(&self, worker: &mut Worker, whole: &mut [u8]) -> Result<()> {
        let rank = worker.grid().rank();
        let source = self.sources.iter().find(|(source, _)| *source == rank);
        let own = source.and(self.own.as_ref());
        if rank == 0 {
            if let (Some(own), Some((_, runs))) = (own, source) {
                for run in runs {
                    to_host(own, run.local, &mut whole[self.bytes_of(run.whole, run.elements)])?;
                }
            }
            return self.receive(worker.control(), whole);
        }
        self.send(worker.control(), own)
    }

    /// Number of messages until the longest shard has been sent.
    fn rounds(&self) -> usize {
        let others = self.sources.iter().filter(|(rank, _)| *rank != 0);
        let elements = |(_, runs): &(usize, Vec<Run>)| runs.iter().map(|run| run.elements).sum::<usize>();
        (self.dtype.bytes() * others.map(elements).max().unwrap_or(0)).div_ceil(PIECE)
    }

    fn send(&self, control: &mut dyn ControlPlane, part: Option<&Tensor>) -> Result<()> {
        let (mut message, size) = (Vec::new(), self.dtype.bytes());
        for round in 0..self.rounds() {
            let len = part.map_or(0, Tensor::bytes).saturating_sub(round * PIECE).min(PIECE);
            message.resize(len, 0);
            if let Some(part) = part.filter(|_| len > 0) {
                part.view(round * PIECE / size, [len / size])?.read_bytes(&mut message)?;
            }
            control.gather(0, &message)?;
        }
        Ok(())
    }

    fn receive(&self, control: &mut dyn ControlPlane, whole: &mut [u8]) -> Result<()> {
        for round in 0..self.rounds() {
            let messages = control.gather(0, &[])?.unwrap_or_default();
            for (rank, runs) in self.sources.iter().filter(|(rank, _)| *rank != 0) {
                let piece = messages.get(*rank).map_or(&[][..], Vec::as_slice);
                self.distribute(piece, round * PIECE / self.dtype.bytes(), runs, whole);
            }
        }
        Ok(())
    }

    /// Copies `piece`, the bytes of a rank's tensor from element `first` on, to the runs of the whole.
    fn distribute(&self, piece: &[u8], first: usize, runs: &[Run], whole: &mut [u8]) {
        let end = first + piece.len() / self.dtype.bytes();
        for run in runs.iter().filter_map(|run| run.within(&(first..end))) {
            let from = &piece[self.bytes_of(run.local - first, run.elements)];
            whole[self.bytes_of(run.whole, run.elements)].copy_from_slice(from);
        }
    }
}
