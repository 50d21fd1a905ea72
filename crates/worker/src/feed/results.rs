//! Copies the results of evaluated micro-batches to the host.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use device::{Device, HostCopy, OutlivingRegion};
use tensor::Tensor;
use tensor::ops::accuracy;

use crate::error::Result;
use crate::graphs::Recorder;
use crate::validation::results::Evaluated;

/// Results of a micro-batch that are being copied to the host.
struct Coming {
    loss: HostCopy<f32>,
    counts: Option<HostCopy<u32>>,
}

/// Maximum number of micro-batches whose results may still be in transit while the device computes.
const MOST_COMING: usize = 2;

/// Results of an evaluation, both arrived and in transit. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Arriving(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    /// Results that have arrived, in micro-batch order.
    arrived: Evaluated,
    /// Results still being copied to the host.
    coming: VecDeque<Coming>,
}

impl Arriving {
    /// Begins an evaluation without results. `counts`: whether classification counts are collected too.
    pub(crate) fn begin(&self, counts: bool) {
        let arrived = Evaluated { values: Vec::new(), counts: counts.then(Vec::new) };
        self.0.replace(State { arrived, coming: VecDeque::new() });
    }

    /// Starts copying a loss, and the classification counts if there are any, to the host.
    fn copy(&self, device: &Device, loss: &OutlivingRegion, counts: Option<&OutlivingRegion>) -> Result<()> {
        let counts = counts.map(|counts| device.begin_copy_to_host(counts.region())).transpose()?;
        let loss = device.begin_copy_to_host(loss.region())?;
        let mut state = self.0.borrow_mut();
        state.coming.push_back(Coming { loss, counts });
        state.wait(MOST_COMING)
    }

    fn counts_classes(&self) -> bool {
        self.0.borrow().arrived.counts.is_some()
    }

    /// Returns the number of losses that have arrived.
    fn count(&self) -> usize {
        self.0.borrow().arrived.values.len()
    }
}

impl State {
    /// Waits until the results of at most `most` micro-batches are still in transit.
    fn wait(&mut self, most: usize) -> Result<()> {
        while self.coming.len() > most {
            let Some(Coming { loss, counts }) = self.coming.pop_front() else { return Ok(()) };
            self.arrived.values.push(loss.wait()?);
            if let (Some(all), Some(counts)) = (&mut self.arrived.counts, counts) {
                all.push(counts.wait()?.try_into().unwrap_or_default());
            }
        }
        Ok(())
    }
}

/// Receives the results of evaluation passes.
pub(crate) struct Results<'a> {
    device: Device,
    recorder: Recorder,
    arriving: Arriving,
    /// Classification counts of the micro-batch whose loss comes next.
    counted: Option<Tensor>,
    /// Number of losses already reported to `on_losses`.
    reported: usize,
    /// Called with the number of losses, once for each loss.
    on_losses: Option<&'a mut dyn FnMut(usize)>,
}

impl<'a> Results<'a> {
    /// Returns a receiver that collects results in `arriving`.
    pub(crate) fn new(
        device: &Device,
        recorder: &Recorder,
        arriving: &Arriving,
        on_losses: Option<&'a mut dyn FnMut(usize)>,
    ) -> Self {
        let device = device.clone();
        let recorder = recorder.clone();
        let arriving = arriving.clone();
        Results { device, recorder, arriving, counted: None, reported: 0, on_losses }
    }

    /// Computes classification counts of a prediction, if they are collected.
    pub(crate) fn predicted(&mut self, prediction: &Tensor, targets: &Tensor) -> Result<()> {
        if self.arriving.counts_classes() {
            self.counted = Some(accuracy::count(prediction, targets)?);
        }
        Ok(())
    }

    /// Starts copying a loss to the host, with the classification counts of its micro-batch.
    pub(crate) fn loss(&mut self, loss: &Tensor) -> Result<()> {
        let counted = self.counted.take();
        let counts = counted.as_ref().map(|counted| counted.region().outlive());
        let device = self.device.clone();
        let arriving = self.arriving.clone();
        let loss = loss.region().outlive();
        self.recorder.host(move || arriving.copy(&device, &loss, counts.as_ref()))?;
        self.report();
        Ok(())
    }

    /// Reports the losses that have arrived since the last call.
    pub(crate) fn report(&mut self) {
        let arrived = self.arriving.count();
        if let Some(on_losses) = &mut self.on_losses {
            (self.reported + 1..=arrived).for_each(on_losses);
        }
        self.reported = arrived;
    }

    /// Returns all results in micro-batch order. Waits for the device.
    pub(crate) fn all(mut self) -> Result<Evaluated> {
        loop {
            let mut state = self.arriving.0.borrow_mut();
            let coming = state.coming.len();
            state.wait(coming.saturating_sub(1))?;
            drop(state);
            self.report();
            if coming == 0 {
                return Ok(std::mem::take(&mut self.arriving.0.borrow_mut().arrived));
            }
        }
    }
}
