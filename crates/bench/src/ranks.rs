//! Runs all ranks of a configuration as threads of this process, for measurements.

use std::time::Duration;

use collective::{Communicator, threads};
use config::RunConfig;
use plan::recompute;
use plan::roles::plan_within;
use run::{ChosenPlacement, Startup, failure};
use worker::{DeviceChoice, Setup, Worker};

use crate::cycled::cycled;
use crate::error::{BenchError, Result};

/// Runs `measure` on the worker of every rank of `config`. Returns rank 0's result and the setup.
///
/// # Errors
/// `measure` fails on a rank, the device computes nothing, or the run does not fit.
pub(crate) fn measure_ranks<T: Send + 'static>(
    mut config: RunConfig,
    device: DeviceChoice,
    measure: impl Fn(&mut Worker) -> Result<Option<T>> + Send + Sync + 'static,
) -> Result<(Setup, T)> {
    if device == DeviceChoice::Meta {
        let text = "--device meta: nothing is computed there, so no times can be measured".to_owned();
        return Err(BenchError::Refused(text));
    }
    let ranks = Some(config.world_size());
    let ChosenPlacement { placement, .. } =
        ChosenPlacement::find(device, &mut config, &Startup::alone(), ranks)?;
    let (config, _) = plan::resolve(config, &placement.description())?;
    let (setup, _) = cycled(recompute::settle_soon(plan::prepare(config, placement)?)?);
    // Planning detects whether the run fits before it starts.
    plan_within(&setup)?;
    let timeout = Duration::from_secs(setup.config.parallel.timeout_seconds);
    let waits = threads::Options { timeout, ..threads::Options::default() };
    let shared = setup.clone();
    let measured = threads::run(setup.config.world_size(), waits, move |communicator: Communicator| {
        run::prepare_kernels(&shared)?;
        measure(&mut Worker::new(&shared, communicator)?)
    });
    let failed = |error: threads::RunError<BenchError>| BenchError::Rank {
        rank: error.rank,
        reason: failure::one_line(&error.cause.to_string()),
    };
    let first = measured.map_err(failed)?.into_iter().next().flatten();
    let nobody = || BenchError::Refused("a run has at least one rank".to_owned());
    Ok((setup, first.ok_or_else(nobody)?))
}
