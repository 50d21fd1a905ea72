//! Results of evaluated micro-batches on their way to the host.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use device::{Device, HostCopy, OutlivingRegion};
use tensor::Tensor;
use tensor::ops::accuracy;

use crate::error::Result;
use crate::graphs::Recorder;
use crate::validation::results::Evaluated;

/// The results of a micro-batch on their way to the host.
struct Coming {
    loss: HostCopy<f32>,
    counts: Option<HostCopy<u32>>,
}

/// Micro-batches whose results may be on their way while the device computes the next one.
const MOST_COMING: usize = 2;

/// Results of a walk that have arrived, and that are still being copied. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Arriving(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    /// Results that have arrived, in the order of this rank's micro-batches.
    arrived: Evaluated,
    /// Results still being copied to the host.
    coming: VecDeque<Coming>,
}

impl Arriving {
    /// Begins a walk, without results yet; `counts`: with those of classes that are found, too.
    pub(crate) fn begin(&self, counts: bool) {
        let arrived = Evaluated { values: Vec::new(), counts: counts.then(Vec::new) };
        self.0.replace(State { arrived, coming: VecDeque::new() });
    }

    /// Starts to copy a loss to the host, with the counts of its prediction.
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

    /// Number of losses that have arrived.
    fn count(&self) -> usize {
        self.0.borrow().arrived.values.len()
    }
}

impl State {
    /// Waits until the results of at most `most` micro-batches are on their way.
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

/// Receives the results of a walk's passes.
pub(crate) struct Results<'a> {
    device: Device,
    recorder: Recorder,
    arriving: Arriving,
    /// The counts of the prediction whose loss comes next.
    counted: Option<Tensor>,
    /// Number of losses reported to `on_losses`.
    reported: usize,
    /// Called with the number of losses after each.
    on_losses: Option<&'a mut dyn FnMut(usize)>,
}

impl<'a> Results<'a> {
    /// Returns the receiver of the results of a walk, which go to `arriving`.
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

    /// Counts what a prediction has found, if classes are counted.
    pub(crate) fn predicted(&mut self, prediction: &Tensor, targets: &Tensor) -> Result<()> {
        if self.arriving.counts_classes() {
            self.counted = Some(accuracy::count(prediction, targets)?);
        }
        Ok(())
    }

    /// Starts to copy a loss to the host, with the counts of its prediction.
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

    /// Reports the losses that have arrived.
    pub(crate) fn report(&mut self) {
        let arrived = self.arriving.count();
        if let Some(on_losses) = &mut self.on_losses {
            (self.reported + 1..=arrived).for_each(on_losses);
        }
        self.reported = arrived;
    }

    /// Returns all results, in the order of this rank's micro-batches. Waits for the device.
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
