//! A host copy of a rank's part of the training state, from which a checkpoint is written.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use device::{DType, HostBuffer};

use crate::format::{Entry, LOSSES};
use crate::index::Index;
use crate::manifest::LossScale;

/// Interval at which the writing thread checks whether the device has filled the memory.
const PAUSE: Duration = Duration::from_millis(1);

/// Named arrays in host memory, which a device may still be filling. The next snapshot reuses the memory.
///
/// All arrays are added before [`Snapshot::fit`] provides the memory; their bytes are then copied into it.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub(crate) entries: Vec<Entry>,
    /// The arrays one after another, followed by the counters.
    memory: HostBuffer,
    /// Total bytes of the arrays in `memory`.
    arrays: usize,
    /// The bytes of the losses, and the number of array bytes before them.
    losses: (Vec<u8>, usize),
    counters: Counters,
    /// The file that this rank writes.
    pub(crate) file: FileNumber,
    /// The index of all files, on rank 0 of a run that writes several.
    pub(crate) index: Option<Index>,
}

/// Whether the optimizer's counters follow the arrays of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Counters {
    /// No counters, because no update was made.
    #[default]
    Absent,
    /// Counters; the loss scale among them is valid if `has_loss_scale`.
    Present { has_loss_scale: bool },
}

/// Bytes of the counters, three u32: number of updates, loss scale, updates since the scale last changed.
const COUNTER_BYTES: usize = 3 * size_of::<u32>();

/// Identifies the file that a rank writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FileNumber {
    #[default]
    Only,
    /// One of several files: its index from 0 and their number. The index is `None` for a rank that writes
    /// nothing.
    OneOf(Option<usize>, usize),
}

impl Snapshot {
    /// Removes all arrays and keeps the memory.
    pub fn clear(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        *self = Snapshot { memory, ..Snapshot::default() };
    }

    /// Adds an array. Returns the offset of its bytes in the memory. All arrays must be added before the
    /// counters.
    pub fn add(&mut self, name: String, dtype: DType, shape: &[usize]) -> usize {
        let start = self.arrays;
        let bytes = dtype.bytes() * shape.iter().product::<usize>();
        self.arrays += bytes;
        self.push(name, dtype, shape, start + self.losses.0.len(), bytes);
        start
    }

    /// Adds the array of `steps` losses, once. [`Snapshot::set_losses`] sets the values, which may leave the
    /// device later.
    pub fn add_losses(&mut self, steps: usize) {
        let bytes = vec![0; steps * size_of::<f32>()];
        self.push(LOSSES.to_owned(), DType::F32, &[steps], self.arrays, bytes.len());
        self.losses = (bytes, self.arrays);
    }

    /// Sets the values of the losses; does nothing if none were added, as on ranks other than 0.
    pub fn set_losses(&mut self, losses: &[f32]) {
        let (targets, _) = self.losses.0.as_chunks_mut();
        targets.iter_mut().zip(losses).for_each(|(target, loss)| *target = loss.to_le_bytes());
    }

    fn push(&mut self, name: String, dtype: DType, shape: &[usize], start: usize, bytes: usize) {
        let bytes = start as u64..(start + bytes) as u64;
        self.entries.push(Entry { name, dtype, shape: shape.to_vec(), bytes });
    }

    /// Adds the optimizer's counters, three u32: its number of updates, the bits of the loss scale, and the
    /// updates since the scale last changed. The last two are valid if `has_loss_scale`. Returns the offset
    /// of their bytes in the memory.
    pub fn add_counters(&mut self, has_loss_scale: bool) -> usize {
        self.counters = Counters::Present { has_loss_scale };
        self.arrays
    }

    /// Sets which of `files` files this rank writes, counted from 0; `None` if it writes nothing.
    pub fn set_file(&mut self, number: Option<usize>, files: usize) {
        self.file = FileNumber::OneOf(number, files);
    }

    /// Sets the index of all files, which rank 0 writes if there are several.
    pub fn set_index(&mut self, index: Index) {
        self.index = Some(index);
    }

    /// Returns the bytes that the arrays and counters need in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.arrays + if self.counters == Counters::Absent { 0 } else { COUNTER_BYTES }
    }

    /// Replaces the memory if it is too small; `allocate` receives the number of bytes needed. Returns the
    /// memory, into which the caller copies arrays and counters.
    pub fn fit(&mut self, allocate: impl FnOnce(usize) -> HostBuffer) -> &mut HostBuffer {
        let bytes = self.memory_bytes();
        if self.memory.len() < bytes {
            // Freed first: both may not fit.
            self.memory = HostBuffer::default();
            self.memory = allocate(bytes);
        }
        &mut self.memory
    }

    pub(crate) fn set_memory(&mut self, memory: HostBuffer) {
        self.memory = memory;
    }

    /// Waits until the device has filled the memory.
    ///
    /// # Errors
    /// The device failed, or `is_abandoned` was set.
    pub(crate) fn wait(&self, is_abandoned: &AtomicBool) -> Result<(), String> {
        while !self.memory.is_filled().map_err(|error| error.to_string())? {
            if is_abandoned.load(Ordering::Relaxed) {
                return Err("the run ended before the state was copied".to_owned());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Returns the bytes of all arrays in order, in three parts: before the losses, the losses, after the
    /// losses.
    pub(crate) fn parts(&self) -> Result<[&[u8]; 3], String> {
        let (losses, before) = &self.losses;
        let (before, after) = self.bytes(0..self.arrays)?.split_at(*before);
        Ok([before, losses, after])
    }

    fn bytes(&self, range: Range<usize>) -> Result<&[u8], String> {
        let all = self.memory.bytes().map_err(|error| error.to_string())?;
        all.get(range).ok_or_else(|| "its memory was not provided".to_owned())
    }

    /// Returns the optimizer's number of updates, and its loss scale if it has one.
    pub(crate) fn counters(&self) -> Result<(u32, Option<LossScale>), String> {
        let Counters::Present { has_loss_scale } = self.counters else { return Ok((0, None)) };
        let (words, _) = self.bytes(self.arrays..self.arrays + COUNTER_BYTES)?.as_chunks::<4>();
        let word = |index: usize| words.get(index).map_or(0, |word| u32::from_le_bytes(*word));
        let scale = LossScale { scale_bits: word(1), good_steps: word(2) };
        Ok((word(0), has_loss_scale.then_some(scale)))
    }
}
