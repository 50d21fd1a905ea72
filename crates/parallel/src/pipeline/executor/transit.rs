//! Tensors that wait to be used by a pass of this rank or by another rank.

use std::collections::VecDeque;

use autograd::{PendingWeights, Source, Tape, Var};
use device::{Device, Event, StreamKind};
use tensor::Tensor;

use crate::error::{ParallelError, Result};
use crate::pipeline::action::Action;

/// A queue by micro-batch: values come and go in increasing order.
#[derive(Debug)]
pub(super) struct Queue<T>(VecDeque<(usize, T)>);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue(VecDeque::new())
    }
}

impl<T> Queue<T> {
    pub(super) fn push(&mut self, action: Action, thing: T) {
        self.0.push_back((action.micro_batch, thing));
    }

    /// Takes the next value, which must be of the action's micro-batch.
    pub(super) fn pop(&mut self, action: Action) -> Result<T> {
        let next = self.0.pop_front().filter(|(micro_batch, _)| *micro_batch == action.micro_batch);
        next.map(|(_, thing)| thing).ok_or(ParallelError::Unsound { action })
    }

    fn pass_over(&mut self, micro_batches: usize) {
        self.0.iter_mut().for_each(|(micro_batch, _)| *micro_batch += micro_batches);
    }
}

/// A tensor that a pass will take.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) tensor: Tensor,
    /// Event of its arrival, if another rank sends it.
    pub(super) event: Option<Event>,
}

/// A tensor that another rank will take.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) tensor: Tensor,
    /// Event of its computation.
    pub(super) made: Event,
}

/// The start of a backward pass.
#[derive(Debug)]
pub(super) enum Root {
    Loss(Var),
    /// The output of a stage that is not the last; its tensor may be freed.
    Output(Source),
}

/// A micro-batch between its forward and its backward pass.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) tape: Tape,
    pub(super) root: Root,
    /// The input of a stage that is not the first.
    pub(super) leaf: Option<Source>,
}

/// A micro-batch between the halves of its backward pass.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) weights: PendingWeights,
    pub(super) loss: Option<Tensor>,
}

/// The queues of one stage.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) inputs: Queue<Arrived>,
    pub(super) gradients: Queue<Arrived>,
    pub(super) outputs: Queue<Outgoing>,
    pub(super) input_gradients: Queue<Outgoing>,
    pub(super) live: Queue<Live>,
    pub(super) pending: Queue<Pending>,
}

impl Queues {
    /// Makes every value that of so many micro-batches later.
    pub(super) fn pass_over(&mut self, micro_batches: usize) {
        self.inputs.pass_over(micro_batches);
        self.gradients.pass_over(micro_batches);
        self.outputs.pass_over(micro_batches);
        self.input_gradients.pass_over(micro_batches);
        self.live.pass_over(micro_batches);
        self.pending.pass_over(micro_batches);
    }
}

/// Tensors between the compute and the transfer stream.
#[derive(Debug)]
pub(super) struct InTransit {
    device: Device,
    transfers: bool,
    /// Tensors being sent, with the event of the send's end.
    sending: Vec<(Tensor, Event)>,
    /// End of the passes that may have used memory of the transfer stream, if that stream has not waited for
    /// them yet.
    released: Option<Event>,
}

impl InTransit {
    /// Nothing is tracked where `transfers` is false.
    pub(super) fn new(device: &Device, transfers: bool) -> Result<Self> {
        let mut transit =
            InTransit { device: device.clone(), transfers, sending: Vec::new(), released: None };
        // Earlier work may have used memory of the transfer stream.
        transit.note_release()?;
        Ok(transit)
    }

    /// Notes that a pass was enqueued, which may have used memory of the transfer stream.
    pub(super) fn note_release(&mut self) -> Result<()> {
        if self.transfers {
            self.released = Some(self.device.record(StreamKind::Compute)?);
        }
        Ok(())
    }

    /// Notes an allocation on the transfer stream: its later work comes after all passes that may have used
    /// the memory.
    pub(super) fn taken(&mut self) -> Result<()> {
        match self.released.take() {
            Some(event) => Ok(self.device.wait(StreamKind::Transfer, &event)?),
            None => Ok(()),
        }
    }

    /// Keeps a tensor that is being sent.
    pub(super) fn sent(&mut self, tensor: Tensor) -> Result<()> {
        self.sending.push((tensor, self.device.record(StreamKind::Transfer)?));
        Ok(())
    }

    pub(super) fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Releases the tensors being sent; compute waits until they have been sent.
    pub(super) fn let_go(&mut self) -> Result<()> {
        for (_, sent) in &self.sending {
            self.device.wait(StreamKind::Compute, sent)?;
        }
        self.sending.clear();
        Ok(())
    }
}
