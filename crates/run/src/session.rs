//! The training loop of every rank.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use collective::ControlChannel;
use device::Backend;
use telemetry::hashes::HashedStep;
use telemetry::log::step_span;
use telemetry::progress::is_reported;
use telemetry::step_trace::RunPart;
use telemetry::units::counted;
use telemetry::{ExpertLoads, RankRecord, RankStep};

use crate::error::Result;
use crate::history::{History, Repetition, StepReport};
use crate::interrupt::Interrupt;
use crate::save::Saver;
use crate::stop_signal::StopSignal;
use planned::Calendar;
use worker::{StepMemory, Validation, Worker, WorkerError};

/// Receives the results of training steps.
pub(crate) trait Observer {
    fn step(&mut self, worker: &Worker, report: &StepReport) -> Result<()>;

    /// Writes the hashes of a step.
    fn hashes(&mut self, hashes: &HashedStep) -> Result<()>;

    /// Returns this rank's saver; `None` if the run keeps no checkpoints.
    fn saver(&self) -> Option<&Saver>;

    /// Returns this rank's saver mutably.
    fn saver_mut(&mut self) -> Option<&mut Saver>;
}

/// Trains until the last step, an agreed stop, or a loss that is not finite.
pub(crate) fn run(
    worker: &mut Worker,
    interrupt: &Interrupt,
    observer: &mut dyn Observer,
) -> Result<History> {
    let history = History::begin(worker.setup());
    let calendar = worker.setup().calendar();
    let clock = Clock::new(worker.device().backend() == Backend::Cuda);
    let mut training =
        Training { worker, interrupt, observer, calendar, history, clock, unread: None, due: false };
    if !training.stops_at_start()? && !training.has_ended_early() {
        training.steps()?;
    }
    Ok(training.history)
}

/// A session of training on one rank.
struct Training<'a> {
    worker: &'a mut Worker,
    interrupt: &'a Interrupt,
    observer: &'a mut dyn Observer,
    calendar: Calendar,
    history: History,
    clock: Clock,
    /// The last step, if its scalars are still on the device. They are read after the next step has been
    /// enqueued, so that the device never waits for the host.
    unread: Option<Unread>,
    /// Whether a checkpoint is due but not yet taken.
    due: bool,
}

impl Training<'_> {
    /// Returns whether the ranks agree to stop before the first step. False if no step remains.
    fn stops_at_start(&mut self) -> Result<bool> {
        let is_left = self.history.first < self.calendar.steps;
        let is_due = self.interrupt.is_due(0);
        let asked = (is_due, self.interrupt.signal());
        let agreed = Agreement::reach(self.worker.control(), asked, self.observer, None)?;
        let stops = agreed.stop && is_left;
        self.history.stop(stops, agreed.signal);
        if stops && self.worker.grid().rank() == 0 {
            tracing::info!("asked to stop during the start: no step is done");
        }
        Ok(stops)
    }

    /// Returns whether the run had already stopped early when its checkpoint was written, so that no step
    /// remains.
    fn has_ended_early(&self) -> bool {
        let History { steps, validations, .. } = &self.history;
        let has_ended =
            *steps < self.calendar.steps && self.calendar.is_out_of_patience(validations.since_best);
        if has_ended && self.worker.grid().rank() == 0 {
            tracing::info!("{}", nothing_is_left(*steps, validations.since_best));
        }
        has_ended
    }

    fn steps(&mut self) -> Result<()> {
        for step in self.history.first..self.calendar.steps {
            if self.step(step)?.is_break() {
                break;
            }
        }
        self.read_last()?;
        if self.history.repeats.is_none() && !self.worker.device().is_meta() {
            self.history.end();
        }
        if let Some(spike) = self.history.spike.as_ref().filter(|spike| spike.rewinds()) {
            self.history.repeats = Some(Repetition::Rewound(spike.in_words()));
        }
        Ok(())
    }

    /// Completes step `step` with the validation, checkpoint and stop that are due after it. Breaks if it was
    /// the last.
    fn step(&mut self, step: u64) -> Result<ControlFlow<()>> {
        let span = step_span(step + 1).entered();
        self.worker.skip_above(self.history.norms.limit(step));
        match self.verified_step(step) {
            Err(error @ WorkerError::Repeatable { .. }) => {
                drop(span);
                self.leave_to_repeat(error)?;
                return Ok(ControlFlow::Break(()));
            }
            stepped => stepped?,
        }
        drop(span);
        self.worker.check_plan(RunPart::Step, step + 1)?;
        if let Some(hashes) = self.worker.take_hashes()? {
            self.observer.hashes(&hashes)?;
        }
        self.read_last()?;
        if self.history.is_lost() {
            return Ok(ControlFlow::Break(()));
        }
        let duration = self.clock.lap().filter(|_| step > self.history.first);
        self.history.steps = step + 1;
        let memory = self.worker.memory();
        let validation = self.validate_after(step)?;
        let mut agreed = self.agree_after(step)?;
        let records = std::mem::take(&mut agreed.records);
        self.unread = Some(Unread { step, duration, validation, memory, records });
        self.end_step(step, &agreed)
    }

    /// Runs a step. If the step is to be verified, repeats one of its micro-batches first and compares.
    fn verified_step(&mut self, step: u64) -> std::result::Result<(), WorkerError> {
        if self.calendar.verifies(step) {
            self.worker.repeat_micro_batch(step)?;
            self.worker.check_plan(RunPart::Verification, step + 1)?;
        }
        self.worker.step(step)
    }

    /// Reads the scalars of the last step from the device, if not done yet.
    fn read_last(&mut self) -> Result<()> {
        match self.unread.take() {
            Some(unread) => unread.read(self.worker, &mut self.history, self.observer),
            None => Ok(()),
        }
    }

    /// Validates if a validation is due after `step`.
    fn validate_after(&mut self, step: u64) -> Result<Option<Validation>> {
        self.history.is_best = false;
        if !self.calendar.validates_after(step) {
            return Ok(None);
        }
        let validation = self.worker.validate()?;
        self.history.accuracy = validation.accuracy;
        self.history.preference = validation.preference;
        let keeps_best = self.worker.setup().config.checkpoint.keep_best;
        self.history.is_best = self.history.validations.add(step + 1, validation.loss) && keeps_best;
        self.worker.check_plan(RunPart::Validation, step + 1)?;
        self.clock.restart();
        Ok(Some(validation))
    }

    /// Exchanges requests to stop, the state of checkpoints, and records with all ranks after `step`.
    fn agree_after(&mut self, step: u64) -> Result<Agreement> {
        let done = step + 1;
        let first = self.history.first;
        let is_due = self.interrupt.is_due(done - first);
        let every = self.worker.setup().config.telemetry.every;
        let record = match is_reported(done, first + 1, self.calendar.steps, every) {
            true => Some(self.worker.record()?),
            false => None,
        };
        let asked = (is_due, self.interrupt.signal());
        let agreed = Agreement::reach(self.worker.control(), asked, self.observer, record)?;
        if let Some(saver) = self.observer.saver_mut().filter(|saver| saver.is_unreported())
            && !agreed.is_working
        {
            saver.report(self.worker.control())?;
        }
        if let Some(saver) = self.observer.saver_mut().filter(|_| !agreed.is_copying) {
            saver.publish_in_memory(self.worker.control())?;
        }
        self.history.stop(agreed.stop && done < self.calendar.steps, agreed.signal);
        if self.history.interrupted && self.worker.grid().rank() == 0 {
            tracing::info!("stop requested: step {done} is the last");
        }
        Ok(agreed)
    }

    /// Takes a checkpoint if one is due and possible. Breaks if the step is the last.
    fn end_step(&mut self, step: u64, agreed: &Agreement) -> Result<ControlFlow<()>> {
        let checkpoint = &self.worker.setup().config.checkpoint;
        let waits = checkpoint.wait;
        let is_kept = checkpoint.is_kept();
        let has_ended = self.history.interrupted || self.is_out_of_patience();
        let is_last = has_ended || step + 1 == self.calendar.steps;
        let is_busy = agreed.is_saving && !waits;
        let newly_due = self.calendar.saves_after(step) || agreed.save_is_due && !self.due;
        self.due |= newly_due;
        if newly_due && is_busy && !is_last {
            let step = self.history.steps;
            self.observer.saver_mut().into_iter().for_each(|saver| saver.put_off(step));
        }
        let saves = is_kept && (is_last || self.due && !is_busy) || self.history.is_best;
        if saves && self.save(is_last)? {
            self.due = false;
            self.clock.restart();
        }
        if self.calendar.keeps_in_memory_after(step) && !is_last {
            self.keep_in_memory()?;
        }
        Ok(match has_ended || self.history.is_lost() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    }

    /// Saves the state once the last checkpoint has been written. Returns whether the state was finite;
    /// otherwise it is discarded.
    fn save(&mut self, is_last: bool) -> Result<bool> {
        // The copies are enqueued behind the step, so that the device does not wait for the host.
        if let Some(saver) = self.observer.saver_mut() {
            saver.take(self.worker, self.history.steps, is_last)?;
        }
        let is_finite = self.read_finite()?;
        if let Some(saver) = self.observer.saver_mut() {
            saver.write(is_finite.then_some(&self.history));
        }
        Ok(is_finite)
    }

    /// Keeps the state in host memory, unless it is not finite.
    fn keep_in_memory(&mut self) -> Result<()> {
        if let Some(saver) = self.observer.saver_mut() {
            saver.take_in_memory(self.worker, self.history.steps)?;
        }
        let is_finite = self.read_finite()?;
        if let Some(saver) = self.observer.saver_mut() {
            saver.write_in_memory(is_finite.then_some(&self.history));
        }
        Ok(())
    }

    /// Reads the scalars of the last step, whose loss is saved with the state. Returns whether the state is
    /// finite.
    fn read_finite(&mut self) -> Result<bool> {
        self.read_last()?;
        Ok(!self.history.is_lost() && self.history.is_finite())
    }

    /// Saves the state before a step that ran out of memory, from which the run continues with smaller
    /// micro-batches.
    ///
    /// # Errors
    /// `error`, if the state is not finite and so must not be saved.
    fn leave_to_repeat(&mut self, error: WorkerError) -> Result<()> {
        self.read_last()?;
        if !self.history.is_finite() {
            return Err(error.into());
        }
        self.history.repeats = Some(Repetition::Halved(error.to_string()));
        if self.history.steps > self.history.first {
            self.save(true)?;
        }
        Ok(())
    }

    /// Returns whether the validation loss has not fallen for `train.patience` validations.
    fn is_out_of_patience(&self) -> bool {
        let since_best = self.history.validations.since_best;
        let has_ended = self.calendar.is_out_of_patience(since_best)
            && self.history.steps < self.calendar.steps
            && !self.worker.device().is_meta();
        if has_ended && self.worker.grid().rank() == 0 {
            let step = self.history.steps;
            tracing::info!("{since_best} validations without a lower loss: step {step} is the last");
        }
        has_ended
    }
}

/// Returns a message for resuming a run that had already ended early, after `steps` steps.
pub(crate) fn nothing_is_left(steps: u64, since_best: u64) -> String {
    format!(
        "nothing is left to do: the run ended early after step {steps}, when {} had no lower loss \
         (train.patience)",
        counted(since_best, "validation")
    )
}

/// Measures step durations.
struct Clock {
    began: Instant,
    /// Whether the current step began on an idle device.
    is_idle: bool,
    /// Whether the host enqueues steps ahead of the device, as on a GPU.
    is_ahead: bool,
}

impl Clock {
    fn new(is_ahead: bool) -> Self {
        Clock { began: Instant::now(), is_idle: false, is_ahead }
    }

    /// Ends a step and begins the next. Returns the step's duration; `None` if it began on an idle device and
    /// the host runs ahead, because the device is then still busy.
    fn lap(&mut self) -> Option<Duration> {
        let elapsed = std::mem::replace(&mut self.began, Instant::now()).elapsed();
        let idle = std::mem::replace(&mut self.is_idle, false);
        (!(idle && self.is_ahead)).then_some(elapsed)
    }

    /// Begins a step after a validation or checkpoint.
    fn restart(&mut self) {
        (self.began, self.is_idle) = (Instant::now(), true);
    }
}

/// A completed step whose scalars are still on the device.
struct Unread {
    step: u64,
    duration: Option<Duration>,
    validation: Option<Validation>,
    memory: StepMemory,
    records: Records,
}

impl Unread {
    fn read(self, worker: &Worker, history: &mut History, observer: &mut dyn Observer) -> Result<()> {
        let Unread { step, duration, validation, memory, records } = self;
        let scalars = worker.scalars(step)?;
        let group_norms = worker.group_norms(step)?;
        let learning_rate = worker.learning_rate(step);
        let skipped_steps = history.skipped_with(&scalars);
        let samples = planned::samples_of(step, &worker.setup().left_out);
        let spike = history.norms.add(scalars.gradient_norm, samples);
        let report = StepReport {
            spike,
            step,
            scalars,
            group_norms,
            later_losses: worker.later_losses(step)?,
            learning_rate,
            duration,
            validation,
            skipped_steps,
            memory,
            ranks: records.ranks,
            expert_loads: records.expert_loads,
        };
        history.add(&report);
        observer.step(worker, &report)
    }
}

/// Flags exchanged by all ranks after a step; each is true if any rank sets it.
struct Agreement {
    /// All ranks end after this step.
    stop: bool,
    /// The signal that requested the stop.
    signal: StopSignal,
    save_is_due: bool,
    /// A checkpoint is being written.
    is_saving: bool,
    /// A thread is still writing its file of the checkpoint.
    is_working: bool,
    /// A thread is still copying a state to host memory.
    is_copying: bool,
    /// Records of all ranks, on rank 0 in steps that record.
    records: Records,
}

/// Records of all ranks for one step.
#[derive(Default)]
struct Records {
    ranks: Vec<RankStep>,
    /// Load of each expert, one entry per layer.
    expert_loads: Vec<ExpertLoads>,
}

impl Records {
    fn from_ranks(records: impl Iterator<Item = telemetry::Result<RankRecord>>) -> telemetry::Result<Self> {
        let mut all = Records::default();
        for record in records {
            let RankRecord { figures, expert_loads } = record?;
            all.ranks.push(figures);
            all.expert_loads.extend(expert_loads);
        }
        all.expert_loads.sort_by_key(|loads| loads.layer);
        Ok(all)
    }
}

/// Number of flags at the start of a message, before the signal's number.
const FLAGS: usize = 5;

impl Agreement {
    /// Exchanges the flags of all ranks. The same messages carry the ranks' records, which either all ranks
    /// pass or none.
    fn reach(
        control: &mut dyn ControlChannel,
        (stop, signal): (bool, StopSignal),
        observer: &dyn Observer,
        record: Option<RankRecord>,
    ) -> Result<Self> {
        let saver = |is: fn(&Saver) -> bool| observer.saver().is_some_and(is);
        let flags: [bool; FLAGS] = [
            stop,
            saver(Saver::is_due),
            saver(Saver::is_busy),
            saver(Saver::is_working),
            saver(Saver::is_copying),
        ];
        let mut own = flags.map(u8::from).to_vec();
        own.push(signal.number());
        let has_records = record.is_some();
        if let Some(record) = record {
            own.extend(record.encode()?);
        }
        let all = control.all_gather(&own)?;
        let any = |index: usize| all.iter().any(|flags| flags.get(index) == Some(&1));
        let reads = has_records && control.rank() == 0;
        let records = all.iter().enumerate().filter(|_| reads);
        let read = |(rank, flags): (usize, &Vec<u8>)| {
            RankRecord::decode(rank, flags.get(FLAGS + 1..).unwrap_or_default())
        };
        let signals = all.iter().filter_map(|flags| flags.get(FLAGS).copied());
        let signal = signals.map(StopSignal::from_number).max().unwrap_or_default();
        let records = Records::from_ranks(records.map(read))?;
        let save_is_due = any(1);
        let is_saving = any(2);
        let is_working = any(3);
        let is_copying = any(4);
        Ok(Agreement { stop: any(0), signal, save_is_due, is_saving, is_working, is_copying, records })
    }
}
