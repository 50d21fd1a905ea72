//! The training loop of every rank.

use std::time::{Duration, Instant};

use collective::ControlPlane;
use device::Backend;
use telemetry::RankStep;
use telemetry::hashes::HashedStep;
use telemetry::log::step_span;
use telemetry::progress::is_reported;
use telemetry::step_trace::RunPart;

use crate::error::Result;
use crate::history::{History, StepReport};
use crate::interrupt::Interrupt;
use worker::answering::wait_together;
use worker::{Calendar, StepMemory, Validation, Worker, WorkerError};

/// An observer of training, on rank 0.
pub(crate) trait Observer {
    fn step(&mut self, worker: &Worker, report: &StepReport) -> Result<()>;

    /// Writes the hashes of a step.
    fn hashes(&mut self, hashes: &HashedStep) -> Result<()>;

    /// Returns whether a checkpoint is due by time.
    fn is_save_due(&self) -> bool;

    /// Returns whether the last checkpoint is still being written.
    fn is_saving(&self) -> bool;

    /// Called when a checkpoint is delayed because the last one is still being written.
    fn put_off(&mut self, history: &History);

    /// Takes a checkpoint of the state after the steps of `history`, or sends this rank's part of it.
    fn save(&mut self, worker: &mut Worker, history: &History) -> Result<()>;
}

/// Trains to the last step, to the step at which the ranks agree to stop, or to a loss that is not finite.
pub(crate) fn run(
    worker: &mut Worker,
    interrupt: &Interrupt,
    observer: &mut dyn Observer,
) -> Result<History> {
    let config = worker.setup().config.clone();
    let calendar = Calendar::new(&config);
    let mut history = History::begin(worker.setup());
    worker.check_plan(RunPart::Start, 0)?;
    let mut clock = Clock::new(worker.device().backend() == Backend::Cuda);
    history.interrupted = stops_at_start(worker, &history, interrupt, observer)?;
    if history.interrupted {
        return Ok(history);
    }
    // A step's scalars are read after the next one has been enqueued, so that the device never waits for the
    // host.
    let mut unread: Option<Unread> = None;
    // Whether a checkpoint is due and has not been taken.
    let mut due = false;
    for step in history.first..calendar.steps {
        let span = step_span(step + 1).entered();
        match worker.step(step) {
            Err(error @ WorkerError::Repeatable { .. }) => {
                drop(span);
                leave_to_repeat(worker, &mut history, unread, observer, error)?;
                return Ok(history);
            }
            stepped => stepped?,
        }
        drop(span);
        worker.check_plan(RunPart::Step, step + 1)?;
        if let Some(hashes) = worker.take_hashes()? {
            observer.hashes(&hashes)?;
        }
        if let Some(unread) = unread.take() {
            unread.read(worker, &mut history, observer)?;
            if history.lost.is_some() {
                break;
            }
        }
        let duration = clock.lap().filter(|_| step > history.first);
        history.steps = step + 1;
        let memory = worker.memory();
        let mut validation = None;
        history.is_best = false;
        if calendar.validates_after(step) {
            let found = worker.validate()?;
            (validation, history.accuracy) = (Some(found), found.accuracy);
            history.is_best = history.validations.add(found.loss) && config.checkpoint.keep_best;
            worker.check_plan(RunPart::Validation, step + 1)?;
            clock.restart();
        }
        let is_due = interrupt.is_due(step + 1 - history.first);
        let every = config.telemetry.every;
        let record = match is_reported(step + 1, history.first + 1, calendar.steps, every) {
            true => Some(worker.record()?),
            false => None,
        };
        let agreed = Agreement::reach(worker.control(), is_due, observer, record)?;
        history.interrupted = agreed.stop && step + 1 < calendar.steps;
        if history.interrupted && worker.grid().rank() == 0 {
            tracing::info!("stop requested: step {} is the last", history.steps);
        }
        let done = Unread { step, duration, validation, memory, ranks: agreed.ranks };
        let has_ended = history.interrupted || out_of_patience(worker, &calendar, &history);
        let is_last = has_ended || step + 1 == calendar.steps;
        let is_busy = agreed.is_saving && !config.checkpoint.wait;
        let newly_due = calendar.saves_after(step) || agreed.save_is_due && !due;
        due |= newly_due;
        if newly_due && is_busy && !is_last {
            observer.put_off(&history);
        }
        let saves = config.checkpoint.is_kept() && (is_last || due && !is_busy);
        if !saves && !history.is_best {
            unread = Some(done);
        } else {
            // A checkpoint includes the loss of its last step.
            done.read(worker, &mut history, observer)?;
            if history.lost.is_some() {
                break;
            }
            if history.is_finite() {
                wait_together(worker.control(), &mut || !observer.is_saving())?;
                observer.save(worker, &history)?;
                due = false;
                clock.restart();
            }
        }
        if has_ended {
            break;
        }
    }
    if let Some(unread) = unread {
        unread.read(worker, &mut history, observer)?;
    }
    Ok(history)
}

/// Saves the state before a step that ran out of memory, from which the run continues with smaller
/// micro-batches. Errors: `error` if that state is not finite, so that it may not be saved.
fn leave_to_repeat(
    worker: &mut Worker,
    history: &mut History,
    unread: Option<Unread>,
    observer: &mut dyn Observer,
    error: WorkerError,
) -> Result<()> {
    if let Some(unread) = unread {
        unread.read(worker, history, observer)?;
    }
    if !history.is_finite() {
        return Err(error.into());
    }
    history.repeats = Some(error.to_string());
    if history.steps > history.first {
        wait_together(worker.control(), &mut || !observer.is_saving())?;
        observer.save(worker, history)?;
    }
    Ok(())
}

/// Returns whether the ranks agree to stop before the first step, if any step is left.
fn stops_at_start(
    worker: &mut Worker,
    history: &History,
    interrupt: &Interrupt,
    observer: &dyn Observer,
) -> Result<bool> {
    let is_left = history.first < Calendar::new(&worker.setup().config).steps;
    let stops = Agreement::reach(worker.control(), interrupt.is_due(0), observer, None)?.stop && is_left;
    if stops && worker.grid().rank() == 0 {
        tracing::info!("asked to stop during the start: no step is done");
    }
    Ok(stops)
}

/// Returns whether the validation loss has not fallen for `train.patience` validations.
fn out_of_patience(worker: &Worker, calendar: &Calendar, history: &History) -> bool {
    let since_best = history.validations.since_best;
    let has_ended = calendar.patience.is_some_and(|patience| since_best >= patience)
        && history.steps < calendar.steps
        && !worker.device().is_meta();
    if has_ended && worker.grid().rank() == 0 {
        tracing::info!("{since_best} validations without a lower loss: step {} is the last", history.steps);
    }
    has_ended
}

/// Durations of steps.
struct Clock {
    began: Instant,
    /// Whether the step in flight began on an idle device.
    is_idle: bool,
    /// Whether the device is still busy with a step that began on an idle device.
    is_ahead: bool,
}

impl Clock {
    fn new(is_ahead: bool) -> Self {
        Clock { began: Instant::now(), is_idle: false, is_ahead }
    }

    /// Ends a step and begins the next. Returns the duration, if it is meaningful.
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
    ranks: Vec<RankStep>,
}

impl Unread {
    fn read(self, worker: &Worker, history: &mut History, observer: &mut dyn Observer) -> Result<()> {
        let Unread { step, duration, validation, memory, ranks } = self;
        let (scalars, learning_rate) = (worker.scalars(step)?, worker.learning_rate(step));
        let skipped_steps = history.skipped_with(&scalars);
        let report =
            StepReport { step, scalars, learning_rate, duration, validation, skipped_steps, memory, ranks };
        history.add(&report);
        observer.step(worker, &report)
    }
}

/// Agreement of all ranks after a step: each flag is true if it is on any rank.
struct Agreement {
    /// All ranks end after this step.
    stop: bool,
    save_is_due: bool,
    is_saving: bool,
    /// The records of all ranks, on rank 0 if they were given.
    ranks: Vec<RankStep>,
}

/// Number of flags at the beginning of a message.
const FLAGS: usize = 3;

impl Agreement {
    /// Exchanges the flags of all ranks; their records, which either all ranks give or none, travel in the
    /// same messages.
    fn reach(
        control: &mut dyn ControlPlane,
        stop: bool,
        observer: &dyn Observer,
        record: Option<RankStep>,
    ) -> Result<Self> {
        let flags: [bool; FLAGS] = [stop, observer.is_save_due(), observer.is_saving()];
        let mut own = flags.map(u8::from).to_vec();
        let has_records = record.is_some();
        if let Some(record) = record {
            own.extend(record.encode()?);
        }
        let all = control.all_gather(&own)?;
        let any = |place: usize| all.iter().any(|said| said.get(place) == Some(&1));
        let reads = has_records && control.rank() == 0;
        let records = all.iter().enumerate().filter(|_| reads);
        let read =
            |(rank, said): (usize, &Vec<u8>)| RankStep::decode(rank, said.get(FLAGS..).unwrap_or_default());
        let ranks = records.map(read).collect::<telemetry::Result<_>>()?;
        Ok(Agreement { stop: any(0), save_is_due: any(1), is_saving: any(2), ranks })
    }
}
