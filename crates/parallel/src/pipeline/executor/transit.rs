//! What waits to be used: by a pass of this rank, or by another rank.

use std::collections::VecDeque;

use autograd::{PendingWeights, Source, Tape, Var};
use device::{Device, Event, StreamKind};
use tensor::Tensor;

use crate::error::{ParallelError, Result};
use crate::pipeline::action::Action;

/// Things by micro-batch, which come and go in increasing order.
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

    /// The next one, which must be of the action's micro-batch.
    pub(super) fn pop(&mut self, action: Action) -> Result<T> {
        let next = self.0.pop_front().filter(|(micro_batch, _)| *micro_batch == action.micro_batch);
        next.map(|(_, thing)| thing).ok_or(ParallelError::Unsound { action })
    }
}

/// A tensor that a pass will take.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) tensor: Tensor,
    /// When it is there, if another rank sends it.
    pub(super) event: Option<Event>,
}

/// A tensor that another rank will take.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) tensor: Tensor,
    /// When it is computed.
    pub(super) made: Event,
}

/// Where backward starts from.
#[derive(Debug)]
pub(super) enum Root {
    Loss(Var),
    /// The output of a stage that is not the last, whose tensor may be gone.
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

/// What waits in one stage.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) inputs: Queue<Arrived>,
    pub(super) gradients: Queue<Arrived>,
    pub(super) outputs: Queue<Outgoing>,
    pub(super) input_gradients: Queue<Outgoing>,
    pub(super) live: Queue<Live>,
    pub(super) pending: Queue<Pending>,
}

/// What lies between the compute and the transfer stream.
#[derive(Debug)]
pub(super) struct InTransit {
    device: Device,
    transfers: bool,
    /// What is being sent, and when it has been.
    sending: Vec<(Tensor, Event)>,
    /// The end of the passes that may have used memory of the transfer stream, unless that has waited for
    /// them.
    released: Option<Event>,
}

impl InTransit {
    /// `transfers`: whether there are any.
    pub(super) fn new(device: &Device, transfers: bool) -> Result<Self> {
        let mut transit =
            InTransit { device: device.clone(), transfers, sending: Vec::new(), released: None };
        // What was done before with the memory of the transfer stream.
        transit.note_release()?;
        Ok(transit)
    }

    /// A pass has been enqueued, which may have used memory of the transfer stream.
    pub(super) fn note_release(&mut self) -> Result<()> {
        if self.transfers {
            self.released = Some(self.device.record(StreamKind::Compute)?);
        }
        Ok(())
    }

    /// Memory was taken on the transfer stream: its work from now on comes after all passes that may have
    /// used it.
    pub(super) fn taken(&mut self) -> Result<()> {
        match self.released.take() {
            Some(event) => Ok(self.device.wait(StreamKind::Transfer, &event)?),
            None => Ok(()),
        }
    }

    /// A tensor is being sent.
    pub(super) fn sent(&mut self, tensor: Tensor) -> Result<()> {
        self.sending.push((tensor, self.device.record(StreamKind::Transfer)?));
        Ok(())
    }

    pub(super) fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Gives up what is being sent, on the host; compute waits until it has been.
    pub(super) fn let_go(&mut self) -> Result<()> {
        for (_, sent) in &self.sending {
            self.device.wait(StreamKind::Compute, sent)?;
        }
        self.sending.clear();
        Ok(())
    }
}
