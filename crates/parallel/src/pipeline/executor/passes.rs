//! Forward and backward passes of one micro-batch through one stage.

use autograd::{GradientSink, Mode, Pass, Source, Tape, Var};
use device::StreamKind;
use nn::Input;
use tensor::Tensor;

use super::transit::{Arrived, Live, Outgoing, Pending, Root};
use super::{ActionPart, Execution, Feed, Work};
use crate::error::{ParallelError, Result};
use crate::pipeline::action::{Action, ActionKind};

impl<F: Feed> Execution<'_, F> {
    pub(super) fn forward(&mut self, action: Action) -> std::result::Result<(), F::Error> {
        let stage = self.local_stage(action)?;
        let first = action.stage == 0;
        let last = action.stage + 1 == self.executor.schedule.stages;
        if first || last {
            self.feed.enter(action, ActionPart::Inputs)?;
        }
        let batch = if first { Some(self.feed.inputs(action.micro_batch)?) } else { None };
        let has_loss = self.work.has_loss();
        let targets = if last && has_loss { Some(self.feed.targets(action.micro_batch)?) } else { None };
        let pass = Pass { groups: self.groups.handles(), ..self.feed.pass(action)? };
        let tape = Tape::new(&self.executor.device, self.work.mode()).with_pass(pass);
        let (input, leaf) = match batch {
            Some(batch) => (Input::Batch(batch), None),
            None => {
                let arrived = self.queues[stage].inputs.pop(action)?;
                let arrived = self.arrived(action, arrived)?;
                match self.passes_gradient(action.stage.checked_sub(1)) {
                    true => {
                        let leaf = tape.leaf(arrived);
                        let source = leaf.source();
                        (Input::Hidden(leaf), Some(source))
                    }
                    false => (Input::Hidden(tape.constant(arrived)), None),
                }
            }
        };
        self.feed.enter(action, ActionPart::Computing)?;
        let model = self.models[stage];
        let output = model.forward_stage(&tape, input).map_err(ParallelError::from)?;
        if last && !has_loss {
            return self.feed.output(model, &tape, output);
        }
        let Some(targets) = targets else { return self.send_output(action, tape, output, leaf) };
        let evaluates = self.work.mode() == Mode::Evaluate;
        if evaluates {
            self.feed.predicted(output.tensor(), &targets)?;
        }
        let loss =
            model.loss_of_stage(&tape, output, &targets, self.work.scale()).map_err(ParallelError::from)?;
        drop(targets);
        if evaluates {
            return self.feed.loss(action.micro_batch, loss.tensor());
        }
        self.queues[stage].live.push(action, Live { tape, root: Root::Loss(loss), leaf });
        Ok(())
    }

    /// Queues a stage's output for the next stage, and its tape for backward.
    fn send_output(
        &mut self,
        action: Action,
        tape: Tape,
        output: Var,
        leaf: Option<Source>,
    ) -> std::result::Result<(), F::Error> {
        let stage = self.local_stage(action)?;
        let root = Root::Output(output.source());
        if self.work.mode() != Mode::Evaluate {
            self.queues[stage].live.push(action, Live { tape, root, leaf });
        }
        Ok(self.enqueue(Action { kind: ActionKind::SendForward, ..action }, output.into_tensor())?)
    }

    /// Runs backward, or its input half.
    pub(super) fn backward(&mut self, action: Action) -> std::result::Result<(), F::Error> {
        let stage = self.local_stage(action)?;
        let Live { tape, root, leaf } = self.queues[stage].live.pop(action)?;
        let loss = match &root {
            Root::Loss(loss) => Some(loss.tensor().clone()),
            Root::Output(_) => None,
        };
        let root = match root {
            Root::Loss(loss) => Ok(loss),
            Root::Output(_) if !self.passes_gradient(Some(action.stage)) => Err(Vec::new()),
            Root::Output(output) => {
                let arrived = self.queues[stage].gradients.pop(action)?;
                Err(vec![(output, self.arrived(action, arrived)?)])
            }
        };
        self.feed.enter(action, ActionPart::Computing)?;
        let mut leaves = if action.kind == ActionKind::BackwardInput {
            let halves = match root {
                Ok(loss) => tape.backward_input(loss),
                Err(seeds) => tape.backward_input_from(seeds),
            };
            let (leaves, weights) = halves.map_err(ParallelError::from)?;
            self.queues[stage].pending.push(action, Pending { weights, loss });
            leaves
        } else {
            self.sum_gradients(action, loss.as_ref(), |sink| match root {
                Ok(loss) => tape.backward(loss, sink),
                Err(seeds) => tape.backward_from(seeds, sink),
            })?
        };
        let Some(leaf) = leaf else { return Ok(()) };
        let missing = ParallelError::MissingInputGradient { stage: action.stage };
        let gradient = leaves.take(leaf).ok_or(missing)?;
        drop(leaves);
        Ok(self.enqueue(Action { kind: ActionKind::SendBackward, ..action }, gradient)?)
    }

    /// Runs the weight half of backward.
    pub(super) fn backward_weight(&mut self, action: Action) -> std::result::Result<(), F::Error> {
        let stage = self.local_stage(action)?;
        let Pending { weights, loss } = self.queues[stage].pending.pop(action)?;
        self.feed.enter(action, ActionPart::Computing)?;
        self.sum_gradients(action, loss.as_ref(), |sink| weights.backward_weight(sink))
    }

    /// Runs `backward`, which computes weight gradients, with the stage's sink, and adds `loss` to the step's
    /// loss. Discards the gradients of a repetition.
    fn sum_gradients<T>(
        &mut self,
        action: Action,
        loss: Option<&Tensor>,
        backward: impl FnOnce(&mut dyn GradientSink) -> autograd::Result<T>,
    ) -> std::result::Result<T, F::Error> {
        let stage = self.local_stage(action)?;
        let reduction = self.reductions.get_mut(stage).ok_or(ParallelError::Unsound { action })?;
        if let Work::Repetition { .. } = self.work {
            let mut sink = reduction.scratch_sink().observed(self.feed.gradients(false));
            return Ok(backward(&mut sink).map_err(ParallelError::from)?);
        }
        let observer = self.feed.gradients(reduction.reduces_next());
        let data = self.groups.divided(reduction.axis()).map_err(ParallelError::from)?;
        let ran = backward(&mut reduction.sink(&data).observed(observer));
        let result = ran.map_err(ParallelError::from)?;
        reduction.end_micro_batch(loss)?;
        Ok(result)
    }

    /// Returns a tensor from another stage, after making compute wait for it.
    fn arrived(&mut self, action: Action, arrived: Arrived) -> std::result::Result<Tensor, F::Error> {
        if let Some(event) = &arrived.event {
            self.feed.enter(action, ActionPart::Waiting)?;
            self.executor.device.wait(StreamKind::Compute, event).map_err(ParallelError::from)?;
        }
        Ok(arrived.tensor)
    }

    /// Queues a tensor for `send`, or for the consuming stage if that is on this rank.
    fn enqueue(&mut self, send: Action, tensor: Tensor) -> Result<()> {
        let schedule = &self.executor.schedule;
        let stage = self.local_stage(send)?;
        let forward = send.kind == ActionKind::SendForward;
        if schedule.peer(send).is_some() {
            let outgoing = Outgoing { tensor, computed: self.executor.device.record(StreamKind::Compute)? };
            let queues = &mut self.queues[stage];
            let queue = if forward { &mut queues.outputs } else { &mut queues.input_gradients };
            queue.push(send, outgoing);
            return Ok(());
        }
        let other = schedule.other_stage(send).ok_or(ParallelError::Unsound { action: send })?;
        let stage = self.local_stage(Action { stage: other, ..send })?;
        let queues = &mut self.queues[stage];
        let queue = if forward { &mut queues.inputs } else { &mut queues.gradients };
        queue.push(send, Arrived { tensor, event: None });
        Ok(())
    }
}
