//! Generation of the sample text at the end of a run.

use std::fmt;
use std::sync::Arc;

use worker::Worker;

use crate::error::Result;

type Draw = dyn Fn(&mut Worker) -> Result<Option<Sample>> + Send + Sync;

/// A prompt and its continuation.
pub type Sample = (String, String);

/// Generates a sample from the model after the last step. Every rank calls it; only rank 0 receives the
/// sample, and none does if the model generates no text.
#[derive(Clone)]
pub struct Sampler(Arc<Draw>);

impl Sampler {
    /// Returns a sampler that calls `draw`.
    pub fn new(draw: impl Fn(&mut Worker) -> Result<Option<Sample>> + Send + Sync + 'static) -> Self {
        Sampler(Arc::new(draw))
    }

    pub(crate) fn draw(&self, worker: &mut Worker) -> Result<Option<Sample>> {
        (self.0)(worker)
    }
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sampler")
    }
}
