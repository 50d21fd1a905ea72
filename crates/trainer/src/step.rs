//! One training step and one validation.

use autograd::Tape;
use nn::Input;
use parallel::data::{gather_sums, gather_weights};
use telemetry::Phase;
use telemetry::step_trace::Part;

use crate::error::{Result, TrainError};
use crate::worker::Worker;

/// What a step reports, a step late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScalars {
    /// Mean loss over the step's micro-batches, on all ranks.
    pub loss: f32,
    /// Norm of the summed gradient before clipping.
    pub gradient_norm: f32,
}

impl Worker {
    /// Runs step `step`, counted from 0: this rank's micro-batches, the reduction, the update.
    /// Nothing is read from the device: [`Worker::scalars`] does that later.
    pub fn step(&mut self, step: u64) -> Result<()> {
        self.status.step(step, || self.device.statistics());
        self.begin_part(Part::Step, step + 1);
        self.phases.begin()?;
        let count = self.setup.config.train.micro_batches;
        let own = self.grid.micro_batches(count);
        for micro_batch in own.clone() {
            let reduces = self.grid.data() > 1 && micro_batch + 1 == own.end;
            self.phases.micro_batch(micro_batch);
            let micro_batch = micro_batch as u64;
            let number = step * count as u64 + micro_batch;
            self.micro_batch(number, reduces).map_err(|source| TrainError::Step {
                step,
                micro_batch,
                source: Box::new(source),
            })?;
        }
        self.update(step)?;
        self.phases.end()?;
        self.account.after_step(&self.device)
    }

    /// What is asked of the allocator from now on is of this part of the run.
    pub(crate) fn begin_part(&self, part: Part, step: u64) {
        self.device.set_step(u32::try_from(step).unwrap_or(u32::MAX));
        self.device.with_allocator(|allocator| allocator.mark(part.name(), step));
    }

    /// Forward and backward of training micro-batch `number`, counted over all steps and ranks; `reduces` says whether its
    /// gradients complete the rank's, and go to the other ranks.
    fn micro_batch(&mut self, number: u64, reduces: bool) -> Result<()> {
        self.phases.enter(Phase::Inputs)?;
        let scale = 1.0 / self.setup.config.train.micro_batches as f32;
        self.setup.dataset.source.train(number, &mut self.batch)?;
        let (inputs, targets) = self.upload()?;
        self.phases.enter(Phase::Forward)?;
        let tape = Tape::recording(&self.device);
        let prediction = self.model.forward(&tape, Input::Batch(inputs))?;
        let loss = self.model.loss(&tape, prediction, &targets, scale)?;
        drop(targets);
        let value = loss.tensor().clone();
        self.phases.enter(Phase::Backward)?;
        let sink = self.reduction.sink(&mut *self.communicator.data);
        tape.backward(loss, &mut self.phases.sink(sink, reduces))?;
        self.reduction.add_loss(&value)?;
        Ok(())
    }

    /// Completes the reduction and updates the parameters: each rank its own pieces, where they are divided.
    fn update(&mut self, step: u64) -> Result<()> {
        let plane = &mut *self.communicator.data;
        self.phases.enter(Phase::Reduce)?;
        self.reduction.finish(plane)?;
        self.phases.enter(Phase::Update)?;
        let (gradients, shards) = (self.reduction.gradients(), self.reduction.shards());
        if shards.is_divided() {
            let sums = self.norm.measure_parts(gradients)?;
            self.phases.enter(Phase::Reduce)?;
            gather_sums(plane, sums)?;
            self.phases.enter(Phase::Update)?;
            self.norm.finish()?;
        } else {
            self.norm.measure(gradients)?;
        }
        self.optimizer.step(gradients, self.schedule.rate(step), Some(&self.norm))?;
        if shards.is_divided() {
            self.phases.enter(Phase::Reduce)?;
            gather_weights(plane, shards, self.model.parameters())?;
            self.phases.enter(Phase::Update)?;
        }
        let scalars = &self.scalars[(step % 2) as usize];
        scalars.view(0, [1])?.copy_from(&self.reduction.loss()?)?;
        scalars.view(1, [1])?.copy_from(&self.norm.result().view(0, [1])?)?;
        self.reading[(step % 2) as usize] = Some(self.device.begin_copy_to_host(scalars.region())?);
        Ok(())
    }

    /// Loss and norm of step `step`, which was the last or the one before. Waits for that step alone.
    pub fn scalars(&self, step: u64) -> Result<StepScalars> {
        let values = match &self.reading[(step % 2) as usize] {
            Some(coming) => coming.wait()?,
            None => Vec::new(),
        };
        let value = |index: usize| values.get(index).copied().unwrap_or(f32::NAN);
        Ok(StepScalars { loss: value(0), gradient_norm: value(1) })
    }

    /// Mean loss over the validation micro-batches, which the data-parallel ranks share out; the same on every
    /// rank and on every grid: the losses are added in their order.
    pub fn validate(&mut self) -> Result<f64> {
        self.begin_part(Part::Validation, self.device.step().into());
        let count = self.setup.config.train.validation_micro_batches;
        let mut losses = Vec::new();
        for index in (self.grid.data_rank() as u64..count).step_by(self.grid.data()) {
            losses.extend_from_slice(&self.validation_loss(index)?.to_le_bytes());
        }
        let all = self.communicator.control.all_gather(&losses)?;
        let of = |index: u64| -> Option<f64> {
            let (rank, place) = (index as usize % self.grid.data(), index as usize / self.grid.data());
            let bytes = all.get(rank * self.grid.pipeline())?.get(4 * place..4 * place + 4)?;
            Some(f64::from(f32::from_le_bytes(bytes.try_into().ok()?)))
        };
        let sum: f64 = (0..count).filter_map(of).sum();
        Ok(sum / count as f64)
    }

    fn validation_loss(&mut self, index: u64) -> Result<f32> {
        self.setup.dataset.source.validation(index, &mut self.batch)?;
        let (inputs, targets) = self.upload()?;
        let _scope = self.device.module("validation");
        let tape = Tape::no_grad(&self.device);
        let prediction = self.model.forward(&tape, Input::Batch(inputs))?;
        let loss = self.model.loss(&tape, prediction, &targets, 1.0)?;
        Ok(loss.tensor().to_vec::<f32>()?.first().copied().unwrap_or(f32::NAN))
    }
}
