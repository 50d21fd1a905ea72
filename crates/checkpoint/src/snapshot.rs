//! A copy of a run's state on the host, which a checkpoint is written from.

use crate::format::Entry;
use crate::reader::LOSSES;

/// Named f32 arrays on the host. Its memory is used again for the next snapshot.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub(crate) entries: Vec<Entry>,
    pub(crate) values: Vec<f32>,
    pub(crate) updates: u32,
}

impl Snapshot {
    /// Removes all arrays and keeps their memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.values.clear();
    }

    /// Adds an array of zeros, and returns its elements to be filled.
    pub fn add(&mut self, name: String, shape: &[usize]) -> &mut [f32] {
        let start = self.values.len();
        self.values.resize(start + shape.iter().product::<usize>(), 0.0);
        let bytes = 4 * start as u64..4 * self.values.len() as u64;
        self.entries.push(Entry { name, shape: shape.to_vec(), bytes });
        &mut self.values[start..]
    }

    /// Sets the number of updates that the optimizer has made. Equal to the number of steps unless some were
    /// skipped.
    pub fn set_updates(&mut self, updates: u32) {
        self.updates = updates;
    }

    /// Adds the loss of every step so far.
    pub fn add_losses(&mut self, losses: &[f32]) {
        self.add(LOSSES.to_owned(), &[losses.len()]).copy_from_slice(losses);
    }
}
