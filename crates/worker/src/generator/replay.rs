//! Decode steps that are captured in CUDA graphs, and replayed: the pass over all rows with the choice of their
//! tokens. The state of a step is copied to the device before, new texts are read before, and the tokens are
//! copied to the host after.

use super::Generator;
use crate::error::Result;
use crate::graphs::{Course, Recorder};

impl Generator {
    /// Extends all slots by a token and chooses the next ones: from the step's graph if it has been captured.
    /// Returns whether this rank has the model's end.
    pub(super) fn extend(&mut self) -> Result<bool> {
        let device = self.device().clone();
        match self.graphs.next(&device, device.refuses_capture()) {
            Course::Plain => self.compute(),
            Course::Recorded => self.record(),
            Course::Replayed => self.replay(),
        }
    }

    /// Makes the calls of [`Generator::extend`].
    fn compute(&mut self) -> Result<bool> {
        let logits = self.passes.extend(&self.state)?;
        self.choose(logits)
    }

    /// Makes the calls while they are captured. If that fails they are made again, as they change nothing that
    /// they read: a token's keys and values are written to their place in the cache, and its bit is set.
    fn record(&mut self) -> Result<bool> {
        let recorder = Recorder::start(self.device())?;
        match self.compute().and_then(|has_end| Ok((has_end, recorder.finish(0)?))) {
            Ok((has_end, captured)) => self.graphs.keep(captured).map(|()| has_end),
            Err(error) => {
                recorder.abandon();
                self.graphs.keep(Err(format!("a call failed while it was captured: {error}")))?;
                self.compute()
            }
        }
    }

    fn replay(&mut self) -> Result<bool> {
        let Some(mut captured) = self.graphs.take() else { return self.compute() };
        captured.replay(self.device(), 0, |_, _| Ok(()))?;
        self.graphs.restore(captured);
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
