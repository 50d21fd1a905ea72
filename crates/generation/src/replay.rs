//! Captures decode steps in CUDA graphs and replays them. A graph has the pass over all rows and the choice
//! of tokens. Before it, the step's input is copied to the device and slots are filled; after it, the tokens
//! are copied to the host.

use crate::generator::Generator;
use worker::Result;
use worker::graphs::{Outcome, StepMode};

impl Generator {
    /// Extends all slots by a token and chooses the next ones, replaying the step's graph if it was captured.
    /// Returns whether this rank has the last stage.
    pub(crate) fn extend(&mut self) -> Result<bool> {
        let device = self.device().clone();
        match self.graphs.next(&device, 0, device.refuses_capture()) {
            StepMode::Plain => self.compute(),
            StepMode::Recorded => self.record(),
            StepMode::Replayed => self.replay(),
        }
    }

    /// Makes the device calls of [`Generator::extend`].
    fn compute(&mut self) -> Result<bool> {
        let logits = self.passes.extend(&self.state)?;
        self.choose(logits)
    }

    /// Makes the device calls while capturing them. If capturing fails, makes them again, which is safe: the
    /// same keys and values are overwritten, and no other input changes.
    fn record(&mut self) -> Result<bool> {
        match self.try_record() {
            Ok((has_end, captured)) => self.graphs.keep(0, captured).map(|()| has_end),
            Err(error) => {
                self.graphs.keep(0, Err(format!("a call failed while it was captured: {error}")))?;
                self.compute()
            }
        }
    }

    fn try_record(&mut self) -> Result<(bool, Outcome)> {
        let recorder = self.passes.engine.recorder.clone();
        recorder.start()?;
        let ran = self.compute().and_then(|has_end| Ok((has_end, recorder.finish(0)?)));
        ran.inspect_err(|_| recorder.abandon())
    }

    fn replay(&mut self) -> Result<bool> {
        self.graphs.replay(&self.passes.engine.device, 0, 0)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
