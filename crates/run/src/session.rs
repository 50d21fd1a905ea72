//! The loop over steps, as every rank runs it.

use std::time::{Duration, Instant};

use collective::ControlPlane;
use device::Backend;
use telemetry::log::step_span;
use telemetry::step_trace::RunPart;

use crate::error::Result;
use crate::interrupt::Interrupt;
use worker::StepScalars;
use worker::{Calendar, Setup, Worker};

/// A completed step, as rank 0 reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepReport {
    /// Counted from 0.
    pub(crate) step: u64,
    pub(crate) scalars: StepScalars,
    pub(crate) learning_rate: f32,
    /// Time from the end of the step before to the end of this one; `None` for the first step, which warms
    /// up, and on a GPU for a step after a validation or a checkpoint, which began idle.
    pub(crate) duration: Option<Duration>,
    /// Mean loss of the validation after the step, if there was one.
    pub(crate) validation_loss: Option<f64>,
}

/// An observer of training, on rank 0.
pub(crate) trait Observer {
    fn step(&mut self, worker: &Worker, report: &StepReport) -> Result<()>;

    /// Takes a checkpoint of what there is after the steps of `course`, or this rank's part in one.
    fn save(&mut self, worker: &mut Worker, course: &Course) -> Result<()>;
}

/// The history of a run's steps.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// Steps that an earlier process completed.
    pub(crate) first: u64,
    /// Steps that were completed, those included.
    pub(crate) steps: u64,
    /// One loss per completed step.
    pub(crate) losses: Vec<f32>,
    /// The last validation.
    pub(crate) validation_loss: Option<f64>,
    /// Steps whose duration is known, and those durations.
    pub(crate) timed_steps: u64,
    pub(crate) seconds: f64,
    /// Whether the run was stopped before the last step.
    pub(crate) interrupted: bool,
}

impl Course {
    /// Nothing yet, or what the run had come to when it was left.
    fn begin(setup: &Setup) -> Self {
        let Some(point) = setup.resumed() else { return Course::default() };
        let step = point.checkpoint.step();
        let validation_loss = point.checkpoint.validation_loss();
        Course {
            first: step,
            steps: step,
            losses: point.losses.clone(),
            validation_loss,
            ..Course::default()
        }
    }
}

/// Trains to the end of the calendar, or to the step at which the ranks agree to stop.
pub(crate) fn run(worker: &mut Worker, interrupt: &Interrupt, observer: &mut dyn Observer) -> Result<Course> {
    let calendar = Calendar::new(&worker.setup().config);
    let mut course = Course::begin(worker.setup());
    worker.check_plan(RunPart::Start, 0)?;
    let (mut began, mut idle) = (Instant::now(), false);
    let is_ahead = worker.device().backend() == Backend::Cuda;
    // A step's scalars are read when the next one has been enqueued, so that the device never waits for the
    // host.
    let mut unread: Option<Unread> = None;
    for step in course.first..calendar.steps {
        let span = step_span(step + 1).entered();
        worker.step(step)?;
        drop(span);
        worker.check_plan(RunPart::Step, step + 1)?;
        if let Some(unread) = unread.take() {
            unread.read(worker, &mut course, observer)?;
        }
        let elapsed = std::mem::replace(&mut began, Instant::now()).elapsed();
        // A GPU is still busy with a step that began on an idle one.
        let duration = (step > course.first && !(idle && is_ahead)).then_some(elapsed);
        idle = false;
        course.steps = step + 1;
        course.interrupted = agree_to_stop(worker.control(), interrupt)? && step + 1 < calendar.steps;
        if course.interrupted && worker.grid().rank() == 0 {
            tracing::info!("asked to stop: step {} is the last", course.steps);
        }
        let mut validation_loss = None;
        if calendar.validates_after(step) {
            validation_loss = Some(worker.validate()?);
            worker.check_plan(RunPart::Validation, step + 1)?;
            (began, idle) = (Instant::now(), true);
        }
        let done = Unread { step, duration, validation_loss };
        if calendar.saves_after(step, course.interrupted) {
            // A checkpoint holds the loss of its last step too.
            done.read(worker, &mut course, observer)?;
            observer.save(worker, &course)?;
            (began, idle) = (Instant::now(), true);
        } else {
            unread = Some(done);
        }
        if course.interrupted {
            break;
        }
    }
    if let Some(unread) = unread {
        unread.read(worker, &mut course, observer)?;
    }
    Ok(course)
}

/// A completed step whose scalars are still on the device.
struct Unread {
    step: u64,
    duration: Option<Duration>,
    validation_loss: Option<f64>,
}

impl Unread {
    fn read(self, worker: &Worker, course: &mut Course, observer: &mut dyn Observer) -> Result<()> {
        let Unread { step, duration, validation_loss } = self;
        let scalars = worker.scalars(step)?;
        course.losses.push(scalars.loss);
        course.validation_loss = validation_loss.or(course.validation_loss);
        course.timed_steps += u64::from(duration.is_some());
        course.seconds += duration.map_or(0.0, |duration| duration.as_secs_f64());
        let learning_rate = worker.learning_rate(step);
        observer.step(worker, &StepReport { step, scalars, learning_rate, duration, validation_loss })
    }
}

/// Returns true on all ranks if any of them was asked to stop: all end after the same step.
fn agree_to_stop(control: &mut dyn ControlPlane, interrupt: &Interrupt) -> Result<bool> {
    let all = control.all_gather(&[u8::from(interrupt.is_raised())])?;
    Ok(all.iter().any(|wish| wish.first() == Some(&1)))
}
