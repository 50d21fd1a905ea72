//! The sample at the end of a run.

use std::fmt;
use std::sync::Arc;

use worker::Worker;

use crate::error::Result;

type Draw = dyn Fn(&mut Worker) -> Result<Option<Sample>> + Send + Sync;

/// A prompt and its continuation.
pub type Sample = (String, String);

/// A function that draws a sample from the model of each rank after the last step. All ranks call it; rank 0
/// has the sample, unless the model makes no text.
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
