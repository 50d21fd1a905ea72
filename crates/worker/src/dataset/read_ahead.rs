//! Samples that were read to find their lengths, kept until the data is opened.

use std::sync::{Mutex, PoisonError};

/// Samples of training and of validation.
pub(super) type Split<T> = (Vec<T>, Vec<T>);

/// The samples that were read last, with the settings by which they were read, for the next reader of them.
pub(super) struct ReadAhead<T>(Mutex<Option<(String, Split<T>)>>);

impl<T> ReadAhead<T> {
    /// Returns a store without samples.
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Keeps samples that were read by `settings`.
    pub(super) fn keep(&self, settings: String, samples: Split<T>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((settings, samples));
    }

    /// Returns the samples of `settings`, and keeps them no longer.
    pub(super) fn take(&self, settings: &str) -> Option<Split<T>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.take_if(|(other, _)| other == settings).map(|(_, samples)| samples)
    }
}
