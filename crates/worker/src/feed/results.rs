//! Results of evaluated micro-batches on their way to the host.

use std::collections::VecDeque;

use device::{Device, HostCopy, OutlivingRegion};
use tensor::Tensor;
use tensor::ops::accuracy;

use crate::error::Result;
use crate::evaluation::results::Evaluated;

/// The results of a micro-batch on the device.
#[derive(Debug)]
pub(crate) struct OnDevice {
    pub(crate) loss: OutlivingRegion,
    pub(crate) counts: Option<OutlivingRegion>,
}

/// The results of a micro-batch on their way to the host.
struct Coming {
    loss: HostCopy<f32>,
    counts: Option<HostCopy<u32>>,
}

/// Micro-batches whose results may be on their way while the device computes the next one.
const MOST_COMING: usize = 2;

/// Results that have arrived and that are still being copied.
pub(crate) struct Arriving<'a> {
    /// Results that have arrived, in the order of this rank's micro-batches.
    arrived: Evaluated,
    /// Results still being copied to the host.
    coming: VecDeque<Coming>,
    /// The counts of the prediction whose loss comes next.
    counted: Option<Tensor>,
    /// The last results on the device.
    pub(crate) last: Option<OnDevice>,
    /// Called with the number of losses after each.
    pub(crate) on_losses: Option<&'a mut dyn FnMut(usize)>,
}

impl Arriving<'_> {
    /// No results yet; with `counts` those of classes that were found, too.
    pub(crate) fn new(counts: bool) -> Self {
        let arrived = Evaluated { values: Vec::new(), counts: counts.then(Vec::new) };
        Arriving { arrived, coming: VecDeque::new(), counted: None, last: None, on_losses: None }
    }

    /// Counts what a prediction has found, if classes are counted.
    pub(crate) fn predicted(&mut self, prediction: &Tensor, targets: &Tensor) -> Result<()> {
        if self.arrived.counts.is_some() {
            self.counted = Some(accuracy::count(prediction, targets)?);
        }
        Ok(())
    }

    /// Starts to copy a loss to the host, with the counts of its prediction.
    pub(crate) fn loss(&mut self, device: &Device, loss: &Tensor) -> Result<()> {
        let counted = self.counted.take();
        let counts = counted.as_ref().map(|counted| counted.region().outlive());
        let results = OnDevice { loss: loss.region().outlive(), counts };
        self.loss_again(device, &results)?;
        self.last = Some(results);
        Ok(())
    }

    /// Starts to copy the results of a micro-batch to the host, from where an earlier one had them.
    pub(crate) fn loss_again(&mut self, device: &Device, results: &OnDevice) -> Result<()> {
        let counts = results.counts.as_ref().map(|counts| device.begin_copy_to_host(counts.region()));
        let loss = device.begin_copy_to_host(results.loss.region())?;
        self.coming.push_back(Coming { loss, counts: counts.transpose()? });
        self.wait(MOST_COMING)
    }

    /// Returns all results, in the order of this rank's micro-batches. Waits for the device.
    pub(crate) fn all(mut self) -> Result<Evaluated> {
        self.wait(0)?;
        Ok(self.arrived)
    }

    /// Waits until the results of at most `most` micro-batches are on their way.
    fn wait(&mut self, most: usize) -> Result<()> {
        while self.coming.len() > most {
            let Some(Coming { loss, counts }) = self.coming.pop_front() else { return Ok(()) };
            self.arrived.values.push(loss.wait()?);
            if let (Some(all), Some(counts)) = (&mut self.arrived.counts, counts) {
                all.push(counts.wait()?.try_into().unwrap_or_default());
            }
            if let Some(on_losses) = &mut self.on_losses {
                on_losses(self.arrived.values.len());
            }
        }
        Ok(())
    }
}
