//! The copy of a rank's part of the state from which a checkpoint is written.
//!
//! Every rank knows which ranks hold which elements, so each finds alone what it writes, and rank 0 the index
//! of all. Of replicas, the first writes.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use checkpoint::{Index, Part, Snapshot};
use device::DType;

use crate::error::Result;
use crate::state::{Array, arrays, buffers, to_host};
use crate::worker::Worker;

/// Returns the arrays of a checkpoint: those in f32, which precede the losses, and all others, the longest
/// element types first, which aligns every array of the file to its elements.
fn saved(worker: &Worker) -> Result<[Vec<Array>; 2]> {
    let mut all = arrays(worker)?;
    if worker.setup().base.is_some() {
        let frozen = worker.blueprint().parameters.iter().filter(|entry| !entry.trained);
        let frozen: BTreeSet<_> = frozen.map(|entry| entry.name.as_str()).collect();
        all.retain(|array| !frozen.contains(array.name.as_str()));
    }
    let (before, narrow): (Vec<_>, Vec<_>) = all.into_iter().partition(|array| array.dtype == DType::F32);
    let mut after = buffers(worker);
    after.extend(narrow);
    after.sort_by_key(|array| Reverse(array.dtype.bytes()));
    Ok([before, after])
}

impl Worker {
    /// Copies the arrays that this rank writes to its host, piece by piece; allocates nothing on the device.
    /// Rank 0 also writes the losses and, if there are several files, their index.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn take_snapshot(&mut self, snapshot: &mut Snapshot, losses: &[f32]) -> Result<()> {
        let [before, after] = saved(self)?;
        let (rank, writers) = (self.grid().rank(), writers(before.iter().chain(&after)));
        let is_first = rank == 0;
        if writers.len() > 1 {
            snapshot.set_file(writers.binary_search(&rank).ok(), writers.len());
            if is_first {
                snapshot.set_index(index(before.iter().chain(&after), &writers, losses.len()));
            }
        }
        let own: usize = before.iter().chain(&after).map(|array| array.bytes_on(rank)).sum();
        snapshot.reserve(own + if is_first { size_of_val(losses) } else { 0 });
        before.iter().try_for_each(|array| array.copy_to(snapshot, rank))?;
        if is_first {
            snapshot.add_losses(losses);
        }
        after.iter().try_for_each(|array| array.copy_to(snapshot, rank))?;
        snapshot.set_updates(self.updates()?);
        snapshot.set_loss_scale(self.loss_scale()?);
        Ok(())
    }
}

/// Returns the ranks that write a file, in order: those that hold elements of an array, and rank 0.
fn writers<'a>(arrays: impl Iterator<Item = &'a Array>) -> Vec<usize> {
    let sources = arrays.flat_map(|array| &array.sources);
    let holders = sources.filter(|(_, runs)| runs.iter().any(|run| run.elements > 0));
    let writers: BTreeSet<_> = holders.map(|(rank, _)| *rank).chain([0]).collect();
    writers.into_iter().collect()
}

/// Returns the index of the files of all `writers`.
fn index<'a>(arrays: impl Iterator<Item = &'a Array>, writers: &[usize], losses: usize) -> Index {
    let mut index = Index::new(writers.len());
    for array in arrays {
        index.add(array.name.clone(), array.dtype, array.shape.dims(), array.parts(writers));
    }
    index.add_losses(losses);
    index
}

impl Array {
    /// Bytes of the elements that `rank` writes.
    fn bytes_on(&self, rank: usize) -> usize {
        let runs = self.sources.iter().filter(|(source, _)| *source == rank).flat_map(|(_, runs)| runs);
        self.dtype.bytes() * runs.map(|run| run.elements).sum::<usize>()
    }

    /// Returns the parts of the array in the files of `writers`.
    fn parts(&self, writers: &[usize]) -> Vec<Part> {
        let mut parts = Vec::new();
        for (rank, runs) in &self.sources {
            let Ok(file) = writers.binary_search(rank) else { continue };
            let runs = runs.iter().filter(|run| run.elements > 0);
            parts.extend(runs.map(|run| (file, run.whole, run.elements)));
        }
        parts
    }

    /// Copies the elements that `rank`, this rank, writes.
    fn copy_to(&self, snapshot: &mut Snapshot, rank: usize) -> Result<()> {
        let Some((_, runs)) = self.sources.iter().find(|(source, _)| *source == rank) else { return Ok(()) };
        let Some(own) = &self.own else { return Ok(()) };
        let elements: usize = runs.iter().map(|run| run.elements).sum();
        let part = [elements];
        let shape = if elements == self.shape.elements() { self.shape.dims() } else { &part[..] };
        let mut bytes = snapshot.add(self.name.clone(), self.dtype, shape);
        for run in runs {
            let (piece, rest) = bytes.split_at_mut(self.dtype.bytes() * run.elements);
            to_host(own, run.local, piece)?;
            bytes = rest;
        }
        Ok(())
    }
}
