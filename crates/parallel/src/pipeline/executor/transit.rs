//! Tensors that wait for a pass of this rank, or for a transfer.

use std::collections::VecDeque;

use autograd::{PendingWeights, Source, Tape, Var};
use device::{Device, Event, StreamKind};
use tensor::Tensor;

use crate::error::{ParallelError, Result};
use crate::pipeline::action::Action;

/// A first-in-first-out queue of values by micro-batch, in increasing order.
#[derive(Debug)]
pub(super) struct Queue<T>(VecDeque<(usize, T)>);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue(VecDeque::new())
    }
}

impl<T> Queue<T> {
    pub(super) fn push(&mut self, action: Action, value: T) {
        self.0.push_back((action.micro_batch, value));
    }

    /// Removes the next value, which must belong to the action's micro-batch.
    pub(super) fn pop(&mut self, action: Action) -> Result<T> {
        let next = self.0.pop_front().filter(|(micro_batch, _)| *micro_batch == action.micro_batch);
        next.map(|(_, value)| value).ok_or(ParallelError::Unsound { action })
    }

    fn skip(&mut self, micro_batches: usize) {
        self.0.iter_mut().for_each(|(micro_batch, _)| *micro_batch += micro_batches);
    }
}

/// A tensor that a pass will consume.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) tensor: Tensor,
    /// Event of the tensor's arrival, if it comes from another rank.
    pub(super) event: Option<Event>,
}

/// A tensor to be sent to another rank.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) tensor: Tensor,
    /// Event after the tensor's computation.
    pub(super) computed: Event,
}

/// The tensor from which a backward pass starts.
#[derive(Debug)]
pub(super) enum Root {
    Loss(Var),
    /// The output of a stage other than the last. Its tensor may already be freed.
    Output(Source),
}

/// A micro-batch between its forward and its backward pass.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) tape: Tape,
    pub(super) root: Root,
    /// The input of a stage other than the first.
    pub(super) leaf: Option<Source>,
}

/// A micro-batch between the input and weight halves of its backward pass.
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
    /// Renumbers all values to `micro_batches` micro-batches later.
    pub(super) fn skip(&mut self, micro_batches: usize) {
        self.inputs.skip(micro_batches);
        self.gradients.skip(micro_batches);
        self.outputs.skip(micro_batches);
        self.input_gradients.skip(micro_batches);
        self.live.skip(micro_batches);
        self.pending.skip(micro_batches);
    }
}

/// Tensors in use by the transfer stream. If transfers run on the compute stream, nothing is tracked, because
/// one stream uses memory in order.
#[derive(Debug)]
pub(super) struct InTransit {
    device: Device,
    stream: StreamKind,
    /// Whether transfers run on a stream of their own.
    tracks: bool,
    /// Tensors being sent, each with the event after its send.
    sending: Vec<(Tensor, Event)>,
    /// Event after the passes that may have used the transfer stream's memory; `None` if that stream has
    /// already waited for it.
    released: Option<Event>,
}

impl InTransit {
    /// Creates the state without tensors. `transfers`: there are transfers, which run on `stream`.
    pub(super) fn new(device: &Device, transfers: bool, stream: StreamKind) -> Result<Self> {
        let tracks = transfers && stream != StreamKind::Compute;
        let mut transit =
            InTransit { device: device.clone(), stream, tracks, sending: Vec::new(), released: None };
        // Earlier work may have used the transfer stream's memory.
        transit.note_release()?;
        Ok(transit)
    }

    /// Records that a pass was enqueued that may have used the transfer stream's memory.
    pub(super) fn note_release(&mut self) -> Result<()> {
        if self.tracks {
            self.released = Some(self.device.record(StreamKind::Compute)?);
        }
        Ok(())
    }

    /// Records an allocation from the transfer stream's memory; later work on that stream waits for the
    /// passes that may have used it.
    pub(super) fn note_allocation(&mut self) -> Result<()> {
        match self.released.take() {
            Some(event) => Ok(self.device.wait(self.stream, &event)?),
            None => Ok(()),
        }
    }

    /// Keeps a tensor while it is being sent.
    pub(super) fn sent(&mut self, tensor: Tensor) -> Result<()> {
        if self.tracks {
            self.sending.push((tensor, self.device.record(self.stream)?));
        }
        Ok(())
    }

    pub(super) fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Makes compute wait for all pending sends, and releases the sent tensors.
    pub(super) fn release(&mut self) -> Result<()> {
        for (_, sent) in &self.sending {
            self.device.wait(StreamKind::Compute, sent)?;
        }
        self.sending.clear();
        Ok(())
    }
}
