//! The copy of a rank's state from which a checkpoint is written.
//!
//! Every rank knows which ranks hold which elements. So each rank determines alone what it writes, and rank 0
//! the index of all files. If replicas hold the same elements, the first one writes them.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use checkpoint::{FileRange, Index, Snapshot};
use device::{DType, Region};
use nn::ElementRun;
use tensor::Tensor;

use crate::error::Result;
use crate::state::{Array, arrays, buffers};
use crate::worker::Worker;

/// Returns the arrays of a checkpoint in two parts: f32 arrays, which precede the losses, and all others. The
/// others are sorted by decreasing element size, which aligns every array of the file.
fn saved(worker: &Worker) -> Result<[Vec<Array>; 2]> {
    let mut all = arrays(worker)?;
    if worker.setup().leaves_out_frozen {
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
    /// Starts copying this rank's arrays to the memory of `snapshot`, without waiting for the device; the
    /// next update waits for the copies. Only offloaded state is copied synchronously, after the last update.
    /// Rank 0 also adds the losses of `steps` steps, whose values the caller sets, the optimizer's counters
    /// and, for several files, their index. Allocates nothing on the device.
    pub fn take_snapshot(&mut self, snapshot: &mut Snapshot, steps: u64) -> Result<()> {
        let copies = self.lay_out(snapshot, steps as usize)?;
        if copies.is_empty() {
            return Ok(());
        }
        let device = self.device();
        let memory = snapshot.fit(device.host_memory());
        let is_here = |(tensor, _): &&(Tensor, usize)| tensor.device().is(device);
        let (own, offloaded): (Vec<_>, Vec<_>) = copies.iter().partition(is_here);
        if let Some(host) = self.host() {
            host.copy_to_host_buffer(&regions(offloaded), memory)?;
        }
        let copied = device.copy_to_host_buffer(&regions(own), memory)?;
        self.add_copying(copied);
        Ok(())
    }

    /// Returns the bytes of memory that a snapshot of this rank takes.
    pub fn snapshot_bytes(&self) -> Result<usize> {
        let mut snapshot = Snapshot::default();
        self.lay_out(&mut snapshot, 0)?;
        Ok(snapshot.memory_bytes())
    }

    /// Adds everything that this rank writes to `snapshot`. Returns the tensors to copy, each with its offset
    /// in the memory.
    fn lay_out(&self, snapshot: &mut Snapshot, steps: usize) -> Result<Vec<(Tensor, usize)>> {
        let [before, after] = saved(self)?;
        let rank = self.grid().rank();
        let writers = writers(before.iter().chain(&after));
        let is_first = rank == 0;
        if writers.len() > 1 {
            snapshot.set_file(writers.binary_search(&rank).ok(), writers.len());
            if is_first {
                snapshot.set_index(index(before.iter().chain(&after), &writers, steps));
            }
        }
        let mut copies = Vec::new();
        before.iter().try_for_each(|array| array.add_to(snapshot, rank, &mut copies))?;
        if is_first {
            snapshot.add_losses(steps);
        }
        after.iter().try_for_each(|array| array.add_to(snapshot, rank, &mut copies))?;
        if is_first {
            let start = snapshot.add_counters(self.has_loss_scale());
            copies.push((self.counters_tensor()?, start));
        }
        Ok(copies)
    }
}

/// Returns the memory regions of tensors, each with its offset in the snapshot.
fn regions(copies: Vec<&(Tensor, usize)>) -> Vec<(Region<'_>, usize)> {
    copies.into_iter().map(|(tensor, start)| (tensor.region(), *start)).collect()
}

/// Returns the ranks that write a file, in order: those that hold elements, and rank 0.
fn writers<'a>(arrays: impl Iterator<Item = &'a Array>) -> Vec<usize> {
    let sources = arrays.flat_map(|array| &array.sources);
    let holders = sources.filter(|source| source.runs.iter().any(|run| run.elements > 0));
    let writers: BTreeSet<_> = holders.map(|source| source.rank).chain([0]).collect();
    writers.into_iter().collect()
}

/// Builds the index of the files of all `writers`.
fn index<'a>(arrays: impl Iterator<Item = &'a Array>, writers: &[usize], losses: usize) -> Index {
    let mut index = Index::new(writers.len());
    for array in arrays {
        index.add(array.name.clone(), array.dtype, array.shape.dims(), array.parts(writers));
    }
    index.add_losses(losses);
    index
}

impl Array {
    /// Returns the ranges of the array in the files of `writers`.
    fn parts(&self, writers: &[usize]) -> Vec<FileRange> {
        let mut parts = Vec::new();
        for source in &self.sources {
            let Ok(file) = writers.binary_search(&source.rank) else { continue };
            let runs = source.runs.iter().filter(|run| run.elements > 0);
            parts.extend(runs.map(|run| (file, run.whole, run.elements)));
        }
        if parts.windows(2).all(|pair| pair[0].0 == pair[1].0) {
            // One file has the whole array, in its own order.
            parts.sort_by_key(|(_, first, _)| *first);
        }
        parts
    }

    /// Adds the elements that this rank, `rank`, writes to `snapshot`, and the tensors to copy to `copies`.
    fn add_to(&self, snapshot: &mut Snapshot, rank: usize, copies: &mut Vec<(Tensor, usize)>) -> Result<()> {
        let own = self.sources.iter().filter(|source| source.rank == rank);
        let runs = own.flat_map(|source| source.runs.iter().map(move |run| (source.lane, *run)));
        let mut runs: Vec<_> = runs.filter(|(_, run)| run.elements > 0).collect();
        let elements: usize = runs.iter().map(|(_, run)| run.elements).sum();
        let is_whole = elements == self.shape.elements();
        if is_whole {
            // A whole array is in its own order; parts are in the order of the index.
            runs.sort_by_key(|(_, run)| run.whole);
        }
        if elements == 0 && !(is_whole && rank == 0) {
            return Ok(());
        }
        let part = [elements];
        let shape = if is_whole { self.shape.dims() } else { &part[..] };
        let mut start = snapshot.add(self.name.clone(), self.dtype, shape);
        for (lane, run) in joined(&runs) {
            if let Some(Some(own)) = self.own.get(lane) {
                copies.push((own.view(run.local, [run.elements])?, start));
            }
            start += self.dtype.bytes() * run.elements;
        }
        Ok(())
    }
}

/// Merges adjacent ranges of tensors.
fn joined(runs: &[(usize, ElementRun)]) -> Vec<(usize, ElementRun)> {
    let mut joined: Vec<(usize, ElementRun)> = Vec::new();
    for (lane, run) in runs {
        match joined.last_mut() {
            Some((of, last)) if of == lane && last.local + last.elements == run.local => {
                last.elements += run.elements;
            }
            _ => joined.push((*lane, *run)),
        }
    }
    joined
}
