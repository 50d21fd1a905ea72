//! Times steps after warming up.

use std::time::{Duration, Instant};

use collective::{Communicator, ControlChannel};
use device::Backend;

use crate::error::Result;
use crate::options::BenchOptions;
use worker::Worker;

#[derive(Clone, Debug, Default)]
pub(super) struct TimedSteps {
    /// Seconds of each step, from the end of the previous step.
    pub(super) seconds: Vec<f64>,
    /// Loss of step `warm_up + steps` of the options, independent of the actual length of the warm-up.
    pub(super) loss: f32,
    /// Number of warm-up steps.
    pub(super) warm_up: u64,
    /// Index of the step after the timed ones.
    pub(super) next: u64,
}

/// Returns the control channel that synchronizes measured workers: the channel between worlds if there are
/// worlds `beside`, else the worker's own.
pub(super) fn control<'a>(
    worker: &'a mut Worker,
    beside: &'a mut Option<Communicator>,
) -> &'a mut dyn ControlChannel {
    match beside {
        None => worker.control(),
        Some(communicator) => &mut *communicator.control,
    }
}

/// Times steps of `worker`. All ranks begin together and warm up with equally many steps, as the first rank
/// decides by its clock. As in training, a step's loss on a GPU is read after the next step has been
/// enqueued; on other devices a step is finished when its call returns.
pub(super) fn timed_steps(
    worker: &mut Worker,
    beside: &mut Option<Communicator>,
    options: &BenchOptions,
) -> Result<TimedSteps> {
    let late = u64::from(worker.device().backend() == Backend::Cuda);
    let mut timed = TimedSteps { loss: f32::NAN, warm_up: options.warm_up, ..TimedSteps::default() };
    let last_of_all = (options.warm_up + options.steps).saturating_sub(1);
    control(worker, beside).barrier()?;
    let began = Instant::now();
    let mut ended = began;
    let mut warm = false;
    for step in 0_u64.. {
        let over = step.checked_sub(late);
        if !warm && step == timed.warm_up {
            // The device works on a step in the meantime.
            let more = more_steps(control(worker, beside), began, over.unwrap_or(0), options.warm_up_time)?;
            timed.warm_up += more;
            warm = more == 0;
            if warm {
                worker.phases().restart();
            }
        }
        timed.next = timed.warm_up + options.steps;
        // One more step than timed: the last loss, too, is read after the next step has been enqueued.
        if step < timed.next + late || !warm {
            worker.step(step)?;
        }
        let Some(over) = over else { continue };
        let loss = worker.scalars(over)?.loss;
        let now = std::mem::replace(&mut ended, Instant::now()).elapsed().as_secs_f64();
        if over == last_of_all {
            timed.loss = loss;
        }
        if warm && over >= timed.warm_up {
            timed.seconds.push(now);
        }
        if warm && over + 1 >= timed.next {
            break;
        }
    }
    timed.next += late;
    Ok(timed)
}

/// Returns the number of further warm-up steps, if `steps` steps took the time since `began`; 0 once `time`
/// has passed. The first rank decides.
fn more_steps(control: &mut dyn ControlChannel, began: Instant, steps: u64, time: Duration) -> Result<u64> {
    if time.is_zero() {
        return Ok(0);
    }
    let gone = began.elapsed().as_secs_f64();
    let wanted = time.as_secs_f64();
    // The first steps are the slowest, so this estimate is rather too low.
    let left = ((wanted - gone) / gone.max(f64::MIN_POSITIVE) * steps as f64).ceil() as u64;
    let more = if gone >= wanted { 0 } else { left.max(1) };
    let mut message = more.to_le_bytes().to_vec();
    control.broadcast(0, &mut message)?;
    // Only the first rank's message of eight bytes is used.
    Ok(<[u8; 8]>::try_from(message.as_slice()).map_or(more, u64::from_le_bytes))
}
