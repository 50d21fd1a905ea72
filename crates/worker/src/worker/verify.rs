//! Verification of a micro-batch: its repetition before a step, and the comparison within the step.

use collective::Axis;
use parallel::data::WorkKind;
use telemetry::step_trace::RunPart;

use super::Worker;
use crate::error::{Result, WorkerError};
use crate::feed::batches::MicroBatches;
use crate::feed::observation::Observation;
use crate::verification::{self, Round, Verification, VerificationRun};

impl Worker {
    /// Repeats a micro-batch of step `step`, counted from 0, before the step, on another data-parallel rank
    /// if there is one. Every rank must call this, and repeats a different micro-batch.
    ///
    /// # Errors
    /// A pass fails or data cannot be read; out of memory as for [`Worker::step`].
    pub fn repeat_micro_batch(&mut self, step: u64) -> Result<()> {
        let Some(verification) = self.records.verification.clone() else { return Ok(()) };
        self.rehearse_repeatable(step)?;
        self.begin_part(RunPart::Verification, step + 1);
        let outcome = self.run_again(&verification, step, VerificationRun::Repetition);
        self.agree_on_memory(step, outcome)
    }

    /// Begins recording the verified micro-batch of step `step`, if the step is verified.
    pub(super) fn begin_verified(&self, step: u64) -> Result<()> {
        let Some((verification, round)) = self.round(step) else { return Ok(()) };
        let number = self.verified_number(&round, VerificationRun::Step);
        verification.begin((VerificationRun::Step, step, number), self.names_by_use())
    }

    /// Compares the runs of the verified micro-batches of step `step`, if the step is verified.
    ///
    /// # Errors
    /// [`WorkerError::Corruption`] on all ranks if two runs differ.
    pub(super) fn compare_verified(&mut self, step: u64) -> Result<()> {
        let Some((verification, round)) = self.round(step) else { return Ok(()) };
        verification.end();
        if self.engine.device.is_meta() {
            return Ok(());
        }
        let of_step = verification.arrays(VerificationRun::Step)?;
        let repeated = verification.arrays(VerificationRun::Repetition)?;
        let grid = self.engine.grid;
        let control = self.engine.groups.control();
        if verification::agree(control, &grid, &round, [&of_step, &repeated])? {
            return Ok(());
        }
        // The step's sums are lost, and with them the step: the run ends.
        self.run_again(&verification, step, VerificationRun::Third)?;
        let runs = verification.runs([of_step, repeated, verification.arrays(VerificationRun::Third)?]);
        let all = verification::gather(self.engine.groups.control(), &runs)?;
        Err(WorkerError::Corruption { step, report: verification::report(&grid, &round, &all)? })
    }

    /// Rehearses the repetition, if verification is configured.
    pub(super) fn rehearse_repetition(&mut self, step: u64) -> Result<()> {
        match self.records.verification.clone() {
            Some(verification) => self.run_again(&verification, step, VerificationRun::Repetition),
            None => Ok(()),
        }
    }

    /// Runs and records a micro-batch of step `step` outside the step.
    fn run_again(&mut self, verification: &Verification, step: u64, run: VerificationRun) -> Result<()> {
        let round = self.round_of(step);
        let number = self.verified_number(&round, run);
        verification.begin((run, step, number), self.names_by_use())?;
        let ran = self.repetition_passes(verification, &round, run);
        verification.end();
        ran
    }

    fn repetition_passes(
        &mut self,
        verification: &Verification,
        round: &Round,
        run: VerificationRun,
    ) -> Result<()> {
        self.gather_for(WorkKind::Repetition)?;
        // The step that the micro-batch is of follows, or is the present one.
        self.count_targets(round.step)?;
        let replica = round.source(self.engine.grid.coordinate(Axis::Data), run);
        let numbers = self.numbers(round.step).of_replica(replica);
        let order = if self.engine.data_order().is_empty() { Vec::new() } else { vec![round.micro_batch] };
        // A prefetcher of its own: that of training goes on where it is.
        let batches = MicroBatches::default();
        let data = self.engine.prefetcher();
        batches.begin(data, numbers.clone(), &order.into());
        let mut observation = Observation::new(&self.engine.device, &self.records.phases);
        observation.verification = Some(verification.clone());
        let mut feed = self.training_feed(&batches, observation)?;
        let passes = (round.micro_batch, self.loss_factor());
        let engine = &mut self.engine;
        let ran = engine.executor.repeat(&mut self.stages.parts, &mut engine.groups, passes, &mut feed);
        self.records.skipped += ran.map_err(|source| WorkerError::Step {
            step: round.step,
            micro_batch: numbers.number_in_pass(round.micro_batch),
            source: Box::new(source),
        })?;
        Ok(())
    }

    /// Returns the verification of step `step`; `None` if the step is not verified.
    fn round(&self, step: u64) -> Option<(Verification, Round)> {
        let verifies = planned::Calendar::new(&self.engine.setup.config).verifies(step);
        let verification = self.records.verification.clone().filter(|_| verifies)?;
        Some((verification, self.round_of(step)))
    }

    fn round_of(&self, step: u64) -> Round {
        let config = &self.engine.setup.config;
        Round::new(step, config.train.verify_every, &config.training_assignment())
    }

    /// Returns the index, over all steps and ranks, of the micro-batch that this rank computes in `run`.
    fn verified_number(&self, round: &Round, run: VerificationRun) -> u64 {
        let replica = round.source(self.engine.grid.coordinate(Axis::Data), run);
        self.numbers(round.step).of_replica(replica).number(round.micro_batch)
    }
}
