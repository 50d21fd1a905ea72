//! Running statistics of the batch norms of a model or stage.
//!
//! A training pass records the statistics of its micro-batch. [`RunningStatistics::fold`] adds the statistics
//! of a step's micro-batches in order, whichever pass ran first. All averages are parts of one array, so that
//! this takes one call.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use autograd::Tape;
use device::{Category, DType, Device, Request};
use tensor::Tensor;
use tensor::ops::running_average;

use crate::buffers::ModelBuffer;
use crate::error::{NnError, Result};

/// Weight of a micro-batch in the averages, PyTorch's default.
const MOMENTUM: f32 = 0.1;
/// Alignment of each norm's averages in elements, so that GPUs read whole vectors.
const ALIGNMENT: usize = 64;

/// Running averages of mean and unbiased variance of every batch norm, with the number of micro-batches so
/// far.
#[derive(Debug, Default)]
pub struct RunningStatistics {
    norms: RefCell<Vec<Norm>>,
    arrays: OnceCell<Arrays>,
    /// Mean and variance of each micro-batch of a step, `[micro-batches, width]`.
    records: RefCell<Option<Tensor>>,
}

/// Location of a batch norm's averages in the arrays.
#[derive(Clone, Debug)]
struct Norm {
    name: String,
    channels: usize,
    /// Index of the norm's first average; variances follow means.
    first: usize,
}

#[derive(Debug)]
struct Arrays {
    averages: Tensor,
    counters: Tensor,
}

/// The running statistics of one batch norm.
#[derive(Clone, Debug)]
pub struct ChannelStatistics {
    all: Rc<RunningStatistics>,
    channels: usize,
    first: usize,
}

impl RunningStatistics {
    /// Registers a batch norm of `channels` channels.
    pub fn add(self: &Rc<Self>, name: &str, channels: usize) -> ChannelStatistics {
        let first = self.width();
        self.norms.borrow_mut().push(Norm { name: name.to_owned(), channels, first });
        ChannelStatistics { all: Rc::clone(self), channels, first }
    }

    /// Returns whether there are no batch norms.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.norms.borrow().is_empty()
    }

    /// Number of elements of the array of averages.
    fn width(&self) -> usize {
        let end = |norm: &Norm| norm.first + 2 * norm.channels;
        self.norms.borrow().last().map_or(0, end).next_multiple_of(ALIGNMENT)
    }

    /// Allocates the averages, with means 0 and variances 1. Returns the buffers of each norm, which are
    /// views: `running_mean` and `running_var`, `[channels]` f32, and `num_batches_tracked`, `[1]` u32.
    pub fn allocate(&self, device: &Device) -> Result<Vec<ModelBuffer>> {
        let width = self.width();
        let norms = self.norms.borrow();
        let scope = device.module("running_statistics");
        let request = Request::new(Category::Buffer, "buffer");
        let averages = Tensor::empty(device, [width], DType::F32, request)?;
        let counters = Tensor::zeros(device, [norms.len()], DType::U32, request)?;
        drop(scope);
        let mut values = vec![0.0f32; width];
        norms.iter().for_each(|norm| values[norm.first + norm.channels..][..norm.channels].fill(1.0));
        averages.set(&values)?;
        let mut buffers = Vec::new();
        for (number, Norm { name, channels, first }) in norms.iter().enumerate() {
            let average = |at: usize| averages.view(at, [*channels]);
            let part = |part: &str, tensor| ModelBuffer::part(format!("{name}.{part}"), tensor);
            buffers.push(part("running_mean", average(*first)?));
            buffers.push(part("running_var", average(first + channels)?));
            buffers.push(part("num_batches_tracked", counters.view(number, [1])?));
        }
        let _ = self.arrays.set(Arrays { averages, counters });
        Ok(buffers)
    }

    /// Allocates the records of a step of `micro_batches` micro-batches. Without this call, training passes
    /// record nothing. Does nothing if there are no batch norms.
    pub fn keep(&self, micro_batches: usize) -> Result<()> {
        let Some(Arrays { averages, .. }) = self.arrays.get() else { return Ok(()) };
        let device = averages.device();
        let shape = [micro_batches, averages.elements()];
        let _scope = device.module("running_statistics");
        let request = Request::new(Category::Buffer, "records");
        *self.records.borrow_mut() = Some(Tensor::zeros(device, shape, DType::F32, request)?);
        Ok(())
    }

    /// The records of the step's micro-batches, `[micro-batches, width]` f32, in order; `None` if nothing is
    /// recorded.
    #[must_use]
    pub fn records(&self) -> Option<Tensor> {
        self.records.borrow().clone()
    }

    /// Adds the records to the averages, one micro-batch after another.
    pub fn fold(&self) -> Result<()> {
        let (Some(records), Some(arrays)) = (self.records(), self.arrays.get()) else { return Ok(()) };
        Ok(running_average::fold(&arrays.averages, &arrays.counters, &records, MOMENTUM)?)
    }
}

impl ChannelStatistics {
    /// Returns the running averages of mean and variance, `[channels]` f32 each.
    ///
    /// # Errors
    /// The model's averages have not been allocated.
    pub fn averages(&self) -> Result<[Tensor; 2]> {
        let missing = || NnError::Sizes("the running statistics of batch norms are not allocated".to_owned());
        let averages = &self.all.arrays.get().ok_or_else(missing)?.averages;
        let part = |first: usize| averages.view(first, [self.channels]);
        Ok([part(self.first)?, part(self.first + self.channels)?])
    }

    /// Returns the tensor for the mean and variance of this pass's micro-batch, `[2, channels]` f32, if
    /// `tape` belongs to a training step. Returns `None` in a rehearsal, recomputation or evaluation.
    ///
    /// # Errors
    /// Errors of the tensor view.
    pub fn record(&self, tape: &Tape) -> Result<Option<Tensor>> {
        let Some(records) = self.all.records().filter(|_| tape.mode().updates_buffers()) else {
            return Ok(None);
        };
        let rows = records.shape().rows() as u64;
        let width = records.shape().columns();
        let row = tape.pass().micro_batch.checked_rem(rows).unwrap_or(0) as usize;
        Ok(Some(records.view(row * width + self.first, [2, self.channels])?))
    }
}
