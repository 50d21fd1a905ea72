//! Transfers between stages.

use collective::{Axis, Collective};
use device::{Category, Request};
use tensor::Tensor;

use super::transit::{Arrived, Outgoing};
use super::{ActionPart, Execution, Feed};
use crate::error::ParallelError;
use crate::pipeline::action::{Action, ActionKind};

impl<F: Feed> Execution<'_, F> {
    pub(super) fn receive(&mut self, action: Action) -> Result<(), F::Error> {
        self.feed.enter(action, ActionPart::Moving)?;
        let stage = self.local_stage(action)?;
        let forward = action.kind == ActionKind::ReceiveForward;
        let from = self.peer(action)?;
        // A stage's input crosses the boundary before it, the gradient of its output the boundary after it.
        let cut = if forward { action.stage.checked_sub(1) } else { Some(action.stage) };
        let boundary = cut.and_then(|cut| self.executor.boundaries.get(cut));
        let boundary = boundary.ok_or(ParallelError::Unsound { action })?;
        let (name, operator) =
            if forward { ("input", "receive_forward") } else { ("gradient", "receive_backward") };
        let device = &self.executor.device;
        let stream = self.work.transfer_stream();
        let shape = self.work.transfer_shape(boundary).ok_or(ParallelError::Unsound { action })?;
        let scope = device.module(&format!("stage.{}.{name}", action.stage));
        let request = Request::new(Category::Communication, operator).on(stream);
        let dtype = self.work.transfer_dtype(boundary);
        let tensor = Tensor::empty(device, shape, dtype, request).map_err(ParallelError::from)?;
        drop(scope);
        self.transit.note_allocation()?;
        let receive = Collective::Receive { from, region: tensor.region() };
        self.groups.transfer(Axis::Pipeline, receive, stream).map_err(ParallelError::from)?;
        let event = device.record(stream).map_err(ParallelError::from)?;
        let queues = &mut self.queues[stage];
        let queue = if forward { &mut queues.inputs } else { &mut queues.gradients };
        queue.push(action, Arrived { tensor, event: Some(event) });
        Ok(())
    }

    pub(super) fn send(&mut self, action: Action) -> Result<(), F::Error> {
        self.feed.enter(action, ActionPart::Moving)?;
        let stage = self.local_stage(action)?;
        let to = self.peer(action)?;
        let queues = &mut self.queues[stage];
        let queue = match action.kind {
            ActionKind::SendForward => &mut queues.outputs,
            _ => &mut queues.input_gradients,
        };
        let Outgoing { tensor, computed } = queue.pop(action)?;
        let stream = self.work.transfer_stream();
        self.executor.device.wait(stream, &computed).map_err(ParallelError::from)?;
        let send = Collective::Send { to, region: tensor.region() };
        self.groups.transfer(Axis::Pipeline, send, stream).map_err(ParallelError::from)?;
        Ok(self.transit.sent(tensor)?)
    }

    /// Returns the pipeline rank at the other end of a transfer.
    fn peer(&self, action: Action) -> Result<usize, ParallelError> {
        self.executor.schedule.peer(action).ok_or(ParallelError::Unsound { action })
    }
}
