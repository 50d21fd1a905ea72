//! Keeps samples that were read to determine their lengths until the data is opened.

use std::sync::{Mutex, PoisonError};

/// (training samples, validation samples).
pub(super) type Split<T> = (Vec<T>, Vec<T>);

/// The samples read last, with the settings that determined them.
pub(super) struct ReadAhead<T>(Mutex<Option<(String, Split<T>)>>);

impl<T> ReadAhead<T> {
    /// Returns an empty store.
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Stores samples that were read with `settings`.
    pub(super) fn keep(&self, settings: String, samples: Split<T>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((settings, samples));
    }

    /// Removes and returns the samples that were read with `settings`; `None` if there are none.
    pub(super) fn take(&self, settings: &str) -> Option<Split<T>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.take_if(|(other, _)| other == settings).map(|(_, samples)| samples)
    }
}
