//! Plans of a run with other settings, to compare with.

use worker::Setup;

use crate::error::Result;
use crate::plan::{Plan, boundless, plan};
use crate::prepare::prepare_changed;

/// Plans `rank` of the run with these settings, on a device that it fits: it may need more than the run.
pub(crate) fn plan_with(setup: &Setup, sets: &[String], rank: usize) -> Result<Plan> {
    let other = prepare_changed(setup, sets)?;
    plan(&boundless(&other), rank)
}
