//! A copy of a rank's part of a run's state on the host, from which a checkpoint is written.

use device::DType;

use crate::format::{Entry, LOSSES};
use crate::index::Index;
use crate::manifest::LossScale;

/// Named arrays on the host, whose memory is reused by the next snapshot.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub(crate) entries: Vec<Entry>,
    /// The arrays one after another.
    pub(crate) bytes: Vec<u8>,
    pub(crate) updates: u32,
    pub(crate) loss_scale: Option<LossScale>,
    /// The file that this rank writes.
    pub(crate) file: FileNumber,
    /// The index of all files, on rank 0 of a run that writes several.
    pub(crate) index: Option<Index>,
}

/// The file that a rank writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FileNumber {
    /// The only one.
    #[default]
    Only,
    /// One of several, counted from 0, and their number; `None` for a rank that writes nothing.
    OneOf(Option<usize>, usize),
}

impl Snapshot {
    /// Removes all arrays and keeps their memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        (self.file, self.index) = (FileNumber::Only, None);
    }

    /// Takes memory for `bytes` more bytes of arrays at once.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve_exact(bytes);
    }

    /// Adds an array of zeros, and returns its bytes for filling.
    pub fn add(&mut self, name: String, dtype: DType, shape: &[usize]) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + dtype.bytes() * shape.iter().product::<usize>(), 0);
        let bytes = start as u64..self.bytes.len() as u64;
        self.entries.push(Entry { name, dtype, shape: shape.to_vec(), bytes });
        &mut self.bytes[start..]
    }

    /// Makes this one of `files` files, counted from 0; `None`: this rank writes nothing.
    pub fn set_file(&mut self, number: Option<usize>, files: usize) {
        self.file = FileNumber::OneOf(number, files);
    }

    /// Sets the index of all files, which rank 0 writes if there are several.
    pub fn set_index(&mut self, index: Index) {
        self.index = Some(index);
    }

    /// Sets the number of updates that the optimizer has made; by default, the number of steps.
    pub fn set_updates(&mut self, updates: u32) {
        self.updates = updates;
    }

    /// Sets the loss scale of a run that has one.
    pub fn set_loss_scale(&mut self, scale: Option<LossScale>) {
        self.loss_scale = scale;
    }

    /// Adds the loss of every step so far.
    pub fn add_losses(&mut self, losses: &[f32]) {
        let bytes = self.add(LOSSES.to_owned(), DType::F32, &[losses.len()]);
        let (indices, _) = bytes.as_chunks_mut::<4>();
        indices.iter_mut().zip(losses).for_each(|(index, loss)| *index = loss.to_le_bytes());
    }
}
