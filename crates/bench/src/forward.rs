//! Times forward passes alone, as in evaluation.

use std::time::Instant;

use collective::Communicator;
use config::RunConfig;
use evaluation::Evaluator;
use run::{ChosenPlacement, Startup};

use crate::cycled::cycled;
use crate::error::Result;
use crate::options::BenchOptions;
use crate::step::StepMeasure;

/// Number of timed rounds. A round has as many micro-batches as the options have steps.
const ROUNDS: usize = 5;
/// Minimum number of micro-batches before and after the timed rounds. The device waits for the first inputs,
/// and all results but the last arrive two micro-batches late.
const MARGIN: u64 = 2;

/// Runs the forward pass and loss of `config`'s micro-batches on one rank, without gradients and optimizer
/// state. Returns the mean seconds per micro-batch of each round.
pub fn bench_forward(mut config: RunConfig, options: &BenchOptions) -> Result<StepMeasure> {
    let margin = MARGIN.div_ceil(options.steps.max(1)) as usize;
    config.train.validation_micro_batches = options.steps * (ROUNDS + 2 * margin) as u64;
    let ChosenPlacement { placement, reason } =
        ChosenPlacement::find(options.device, &mut config, &Startup::alone(), None)?;
    let (setup, cycled) = cycled(plan::prepare(config, placement)?);
    run::prepare_kernels(&setup)?;
    let mut evaluator = Evaluator::new(&setup, Communicator::solo(), None)?;
    let began = Instant::now();
    let mut rounds = 0;
    while rounds == 0 || began.elapsed() < options.warm_up_time {
        evaluator.losses(&mut |_| ())?;
        rounds += 1;
    }
    let mut seconds = Vec::new();
    let mut round = Instant::now();
    let evaluation = evaluator.losses(&mut |losses| {
        if (losses as u64).is_multiple_of(options.steps) {
            seconds.push(round.elapsed().as_secs_f64() / options.steps as f64);
            round = Instant::now();
        }
    })?;
    let seconds = seconds.into_iter().skip(margin).take(ROUNDS).collect();
    let loss = evaluation.losses.last().copied().unwrap_or(f32::NAN);
    let device = evaluator.device();
    let train = &setup.config.train;
    let description = device.description();
    let examples = setup.config.model.examples();
    Ok(StepMeasure {
        model: description.model.clone(),
        libraries: description.libraries.clone(),
        reason,
        parameters: setup.blueprint.sizes().iter().sum(),
        tokens: (train.micro_batch_size * examples.units()) as u64,
        unit: examples.rate(),
        seconds,
        input_milliseconds: None,
        cycled,
        loss,
        peaks: (device.statistics().peak_allocated(), device.statistics().peak_reserved()),
        at_peak: device.with_allocator(|allocator| allocator.peak_category_bytes()),
        families: Vec::new(),
        rates: None,
    })
}
