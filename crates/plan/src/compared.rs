//! Plans of a run with other settings, for comparison.

use worker::Setup;

use crate::error::Result;
use crate::plan::{Plan, boundless, plan};
use crate::prepare::prepare_changed;

/// Plans `rank` with these settings changed, on a device with unlimited memory because it may need more than
/// the run.
pub(crate) fn plan_with(setup: &Setup, sets: &[String], rank: usize) -> Result<Plan> {
    let other = prepare_changed(setup, sets)?;
    plan(&boundless(&other), rank)
}
