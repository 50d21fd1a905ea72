//! Names the settings that take most of a rank's memory.

use config::RunConfig;
use device::Category;
use telemetry::Statistic;
use telemetry::units::{bytes, counted, grouped};
use worker::Setup;

use crate::plan::Plan;

/// Maximum number of causes in a sentence.
const NAMED: usize = 3;
/// Minimum fraction of the peak from which a cause is reported.
const LEAST_SHARE: f64 = 0.05;

/// Describes the largest causes of memory at the peak of `plan`, the largest first, as in `activations of 2
/// sequences of 2,048 tokens in bf16 20.10 GiB`.
pub(crate) fn in_words(setup: &Setup, plan: &Plan) -> String {
    let config = &setup.config;
    let peak = |category: Category| plan.counters.get(Statistic::PeakBytes(category));
    let activations = peak(Category::Activation) + peak(Category::ActivationGradient);
    let mut causes = [
        (activations, activations_of(config)),
        (peak(Category::Gradient), gradients_of(config)),
        (peak(Category::OptimizerState), format!("optimizer state in {}", config.optim.state.name())),
        (peak(Category::Parameter), format!("weights in {}", config.precision.compute)),
    ];
    causes.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let all = plan.counters.get(Statistic::PeakAllocatedBytes) as f64;
    let large = causes.iter().filter(|(bytes, _)| *bytes as f64 >= LEAST_SHARE * all);
    let words: Vec<_> =
        large.take(NAMED).map(|(count, cause)| format!("{cause} {}", bytes(*count))).collect();
    words.join(", ")
}

fn activations_of(config: &RunConfig) -> String {
    let rows = config.micro_batch_rows() as u64;
    let tokens = config.model.examples().units();
    let batch = match tokens {
        0 | 1 => counted(rows, "sample"),
        _ => format!("{} of {} tokens", counted(rows, "sequence"), grouped(tokens as u64)),
    };
    format!("activations of a micro-batch of {batch} in {}", config.precision.compute)
}

fn gradients_of(config: &RunConfig) -> String {
    let gradients = format!("gradients in {}", config.precision.gradients);
    match config.parallel.lanes {
        1 => gradients,
        lanes => format!("{gradients} of {lanes} lanes"),
    }
}
