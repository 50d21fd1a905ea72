//! Captures a step while it runs.

use std::cell::RefCell;
use std::rc::Rc;

use device::{Captured, CapturedPart, Device};
use memory::ScriptEnd;

use super::captured::{CapturedStep, Outcome, ReplayedPart};
use crate::error::Result;

/// Captures steps while they run, and runs host work within them. Clones share the capture.
#[derive(Clone, Debug)]
pub struct Recorder {
    device: Device,
    capture: Rc<RefCell<Option<Capture>>>,
}

/// The capture of the current step.
#[derive(Debug)]
struct Capture {
    parts: Vec<ReplayedPart>,
    /// The first call that could not be captured, after which capturing stopped.
    interrupted: Option<&'static str>,
    /// The device's FLOP count before the step.
    flops: u64,
}

impl Recorder {
    /// Returns a recorder for the steps of a rank on `device`.
    pub(crate) fn new(device: &Device) -> Self {
        Recorder { device: device.clone(), capture: Rc::default() }
    }

    /// Starts capturing.
    pub fn start(&self) -> Result<()> {
        self.device.begin_capture()?;
        self.device.with_allocator(|allocator| allocator.begin_script());
        let capture = Capture { parts: Vec::new(), interrupted: None, flops: self.device.flops() };
        self.capture.replace(Some(capture));
        Ok(())
    }

    /// Runs host work, which is not captured, after launching the calls before it. Every replay runs it
    /// again, so it must own handles of everything it uses, at unchanged addresses.
    ///
    /// # Errors
    /// The work or the driver fails.
    pub(crate) fn host(&self, mut work: impl FnMut() -> Result<()> + 'static) -> Result<()> {
        if !self.end_graph()? {
            return work();
        }
        let operations = self.device.with_allocator(|allocator| allocator.script_length());
        work()?;
        if let Some(capture) = &mut *self.capture.borrow_mut() {
            capture.parts.push(ReplayedPart::Host { operations, work: Box::new(work) });
        }
        Ok(self.device.begin_capture()?)
    }

    /// Ends the current graph. Returns whether the step is still being captured.
    fn end_graph(&self) -> Result<bool> {
        let mut capture = self.capture.borrow_mut();
        let Some(capture) = capture.as_mut().filter(|capture| capture.interrupted.is_none()) else {
            return Ok(false);
        };
        match self.device.end_capture()? {
            Captured::Whole(pieces) => capture.parts.extend(pieces.into_iter().map(ReplayedPart::Piece)),
            Captured::Interrupted(call) => capture.interrupted = Some(call),
        }
        Ok(capture.interrupted.is_none())
    }

    /// Ends the capture of a step. `first_number` is the number of its first micro-batch. The step has been
    /// enqueued, whatever the result.
    pub fn finish(&self, first_number: u64) -> Result<Outcome> {
        self.end(first_number).inspect_err(|_| self.abandon())
    }

    fn end(&self, first_number: u64) -> Result<Outcome> {
        self.end_graph()?;
        let script = self.device.with_allocator(|allocator| allocator.end_script());
        let Some(Capture { parts, interrupted, flops }) = self.capture.take() else { return Ok(Ok(None)) };
        if let Some(call) = interrupted {
            return Ok(Err(format!("a step contains {call}, which cannot be captured")));
        }
        let script = match script {
            ScriptEnd::Whole(script) => script,
            ScriptEnd::Grown => return Ok(Ok(None)),
            ScriptEnd::Unclosed => {
                return Ok(Err("a step leaves other memory allocated than it found".to_owned()));
            }
        };
        let flops = self.device.flops() - flops;
        let has_calls = parts.iter().any(|part| matches!(part, ReplayedPart::Piece(CapturedPart::Call(_))));
        if has_calls {
            self.device.join_streams()?;
        }
        Ok(Ok(Some(CapturedStep { parts, has_calls, script, flops, first_number })))
    }

    /// Ends the capture after an error of the step. Calls since the last host work are discarded.
    pub fn abandon(&self) {
        if let Some(Capture { flops, .. }) = self.capture.take() {
            self.device.abandon_capture();
            self.device.take_back_flops(flops);
            self.device.with_allocator(|allocator| drop(allocator.end_script()));
        }
    }
}
