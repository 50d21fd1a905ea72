//! The calls of a step with their predicted times.

use device::LoggedCall;
use worker::Setup;

use crate::error::Result;
use crate::imitated::PlanDevice;
use crate::step_calls::{step_calls, with_peers};
use crate::timed_step::call_times;

/// Returns the calls of rank `rank` in a step on a GPU like `device`, in order and with repetitions, each
/// with the predicted seconds that it takes outside a CUDA graph.
///
/// # Errors
/// The setup cannot be planned.
pub fn predicted_calls(setup: &Setup, device: &PlanDevice, rank: usize) -> Result<Vec<(LoggedCall, f64)>> {
    let (rates, _) = device.rates_or_shipped()?;
    let times = call_times(&setup.config, device, &rates);
    let log = step_calls(&with_peers(setup, device), rank)?;
    let known = times.known(&log);
    let mut calls = Vec::new();
    log.for_each(|call| calls.push((call.clone(), times.device(call, &known))));
    Ok(calls)
}
