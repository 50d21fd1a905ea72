//! The verification of a micro-batch: its repetition before a step, and the comparison in the step.

use collective::Axis;
use parallel::data::WalkKind;
use telemetry::step_trace::RunPart;

use super::Worker;
use super::step::divides_losses;
use crate::error::{Result, WorkerError};
use crate::feed::numbers::Numbers;
use crate::feed::pairs::PairWork;
use crate::feed::{self, WorkerFeed};
use crate::verification::{self, Round, Run, Verification};

impl Worker {
    /// Repeats a micro-batch of step `step`, counted from 0, before the step: on another data-parallel rank
    /// where there is one. All ranks call this, each for another micro-batch.
    ///
    /// # Errors
    /// Errors of passes and of data; out of memory as for [`Worker::step`].
    pub fn repeat_micro_batch(&mut self, step: u64) -> Result<()> {
        let Some(verification) = self.verification.clone() else { return Ok(()) };
        self.rehearse_repeatable(step)?;
        self.begin_part(RunPart::Verification, step + 1);
        let outcome = self.run_again(&verification, step, Run::Repetition);
        match self.engine.setup.config.parallel.shards_gradients() {
            true => outcome,
            false => self.share_out_of_memory(step, outcome),
        }
    }

    /// Begins to record the micro-batch of step `step` that is verified, if the step is.
    pub(super) fn begin_verified(&self, step: u64) -> Result<()> {
        let Some((verification, round)) = self.round(step) else { return Ok(()) };
        let number = self.verified_number(&round, Run::Step);
        verification.begin((Run::Step, step, number), self.names_by_use())
    }

    /// Compares the runs of the micro-batches of step `step` that are verified, if the step is.
    ///
    /// # Errors
    /// [`WorkerError::Corruption`] on all ranks if two runs differ.
    pub(super) fn compare_verified(&mut self, step: u64) -> Result<()> {
        let Some((verification, round)) = self.round(step) else { return Ok(()) };
        verification.end();
        if self.engine.device.is_meta() {
            return Ok(());
        }
        let of_step = verification.arrays(Run::Step)?;
        let repeated = verification.arrays(Run::Repetition)?;
        let grid = self.engine.grid;
        let control = self.engine.groups.control();
        if verification::agree(control, &grid, &round, [&of_step, &repeated])? {
            return Ok(());
        }
        // The step's sums are lost, and with them the step: the run ends.
        self.run_again(&verification, step, Run::Third)?;
        let runs = verification.runs([of_step, repeated, verification.arrays(Run::Third)?]);
        let all = verification::gather(self.engine.groups.control(), &runs)?;
        Err(WorkerError::Corruption { step, report: verification::report(&grid, &round, &all)? })
    }

    /// Rehearses the repetition, if there are verifications.
    pub(super) fn rehearse_repetition(&mut self, step: u64) -> Result<()> {
        match self.verification.clone() {
            Some(verification) => self.run_again(&verification, step, Run::Repetition),
            None => Ok(()),
        }
    }

    /// Runs and records a micro-batch of step `step` outside of the step.
    fn run_again(&mut self, verification: &Verification, step: u64, run: Run) -> Result<()> {
        let round = self.round_of(step);
        let number = self.verified_number(&round, run);
        verification.begin((run, step, number), self.names_by_use())?;
        let ran = self.repetition_passes(verification, &round, run);
        verification.end();
        ran
    }

    fn repetition_passes(&mut self, verification: &Verification, round: &Round, run: Run) -> Result<()> {
        self.outdate_copies();
        self.begin_walk(WalkKind::Repetition)?;
        // The step that the micro-batch is of follows, or is the present one.
        if divides_losses(&self.engine.setup.config) {
            self.set_target_count(round.step)?;
        }
        let (loss_scale, target_count) = (self.loss_factor()?, self.target_count()?);
        let token_count = self.token_count()?;
        let setup = &self.engine.setup;
        let (config, dataset) = (&setup.config, &setup.dataset);
        let numbers = Numbers::training(config, &self.engine.grid, round.step, &setup.left_out);
        let numbers = numbers.of_replica(round.source(self.engine.grid.coordinate(Axis::Data), run));
        // A prefetcher of its own: that of training goes on where it is.
        let mut data = feed::prefetcher(dataset, config, &mut self.engine.groups);
        let order = if self.data_order.is_empty() { Vec::new() } else { vec![round.micro_batch] };
        let (data, phases) = ((&mut data, &*order), &mut self.phases);
        let mut feed =
            WorkerFeed::new(&self.engine.device, (config, dataset, &self.engine.grid), numbers, data, phases);
        feed.is_step = false;
        feed.pixels = self.engine.pixels.as_mut();
        let scale = 1.0 / config.train.micro_batches() as f32;
        feed.label_smoothing = config.train.label_smoothing as f32;
        feed.pairs = PairWork::of(config, self.engine.reference.as_deref());
        feed.balance = super::step::balance(config, scale);
        feed.offload = self.engine.offload.as_ref();
        feed.loss_scale = loss_scale;
        (feed.target_count, feed.token_count) = (target_count, token_count);
        feed.verification = Some(verification);
        let (executor, groups) = (&self.engine.executor, &mut self.engine.groups);
        let ran = executor.repeat(&mut self.parts, groups, (round.micro_batch, scale), &mut feed);
        self.skipped += ran.map_err(|source| WorkerError::Step {
            step: round.step,
            micro_batch: numbers.in_walk(round.micro_batch),
            source: Box::new(source),
        })?;
        Ok(())
    }

    /// The round of step `step`, if it is verified.
    fn round(&self, step: u64) -> Option<(Verification, Round)> {
        let verifies = crate::calendar::Calendar::new(&self.engine.setup.config).verifies(step);
        let verification = self.verification.clone().filter(|_| verifies)?;
        Some((verification, self.round_of(step)))
    }

    fn round_of(&self, step: u64) -> Round {
        let config = &self.engine.setup.config;
        Round::new(step, config.train.verify_every, &config.training_assignment())
    }

    /// The number, over all steps and ranks, of the micro-batch that this rank computes in a run.
    fn verified_number(&self, round: &Round, run: Run) -> u64 {
        let setup = &self.engine.setup;
        let numbers = Numbers::training(&setup.config, &self.engine.grid, round.step, &setup.left_out);
        let replica = round.source(self.engine.grid.coordinate(Axis::Data), run);
        numbers.of_replica(replica).number(round.micro_batch)
    }
}
