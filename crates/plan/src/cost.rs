//! A cost model of a step. It ranks configurations, but does not promise times.
//!
//! A pass takes its FLOPs at the rate of the device's large matmuls times a measured efficiency. The backward
//! pass has twice the forward's FLOPs, plus those of recomputation. The schedule's simulator combines passes
//! into a step, including the bubble. In a pass, ranks that share layers wait for each other's rows and sums,
//! and ranks that share sequences for each other's keys and values.
//! Communication beyond the passes is added ([`communication`]). The
//! update reads and writes the optimizer's state in the device's memory.
//!
//! [`communication`]: crate::communication

use collective::Axis;
use device::DType;
use nn::Stage;
use parallel::pipeline::{ActionTimes, ScheduleError, StageTimes, simulate};

use crate::communication::{RankWork, exposed};
use crate::costs::recomputed_layers;
use crate::error::{PlanError, Result};
use crate::links::{Links, Peers};
use crate::rates::DeviceRates;
use crate::work::Work;
use config::{OptimKind, RunConfig};
use worker::{blueprint, build};

/// Predicted times of the parts of a step, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Time of the passes, including the waits of pipeline ranks for each other.
    pub passes: f64,
    /// Part of `passes` that is recomputation.
    pub recomputed: f64,
    /// Part of `passes` in which ranks that share layers exchange rows and partial sums.
    pub shared_layers: f64,
    /// Part of `passes` in which ranks that share sequences exchange keys and values.
    pub shared_sequences: f64,
    /// Communication beyond the passes that compute does not hide.
    pub exposed: f64,
    /// Time of the optimizer update.
    pub update: f64,
    /// Fraction of `passes` in which ranks wait: for other ranks of their pipeline, and for replicas with
    /// more micro-batches.
    pub bubble: f64,
}

impl Cost {
    /// Seconds of the whole step.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.passes + self.exposed + self.update
    }
}

/// Returns stages with equal numbers of layers, up to one.
pub(crate) fn equal_stages(config: &RunConfig) -> Vec<Stage> {
    let (of, stages) = (config.layers(), config.stages());
    (0..stages).map(|stage| Stage { layers: stage * of / stages..(stage + 1) * of / stages, of }).collect()
}

/// Predicts a step of `config` with its layers in these stages, from the layers' work.
///
/// # Errors
/// An invalid schedule.
pub(crate) fn cost(config: &RunConfig, work: &Work, rates: &DeviceRates, stages: &[Stage]) -> Result<Cost> {
    let (parallel, samples) = (&config.parallel, config.train.micro_batch_size as f64);
    let half = config.precision.compute != DType::F32;
    let flops = rates.efficiency * if half { rates.flops_bf16 } else { rates.flops_f32 };
    let links = Links::of(rates);
    // Parameters are divided among the first, and work among both.
    let (shares, workers) = (parallel.tensor as f64, (parallel.tensor * parallel.context) as f64);
    let forward = |stage: &Stage| samples * work.forward(stage) / workers / flops;
    let recomputed = recomputed_layers(&config.memory);
    let again = |stage: &Stage| samples * work.again(stage, recomputed) / workers / flops;
    let element = if half { 2.0 } else { 4.0 };
    let exchange = Exchange::of(config, work, links, element);
    let exchanged = |stage: &Stage| stage.layers.len() as f64;
    let exchanged_again = |stage: &Stage| recomputed.min(stage.layers.len()) as f64;
    // Nanoseconds are precise enough for passes.
    let nanoseconds = |seconds: f64| (1e9 * seconds).round() as u64;
    let times = stages.iter().map(|stage| StageTimes {
        forward: nanoseconds(forward(stage) + exchanged(stage) * exchange.forward()),
        backward_input: nanoseconds(
            forward(stage)
                + exchanged(stage) * exchange.backward()
                + again(stage)
                + exchanged_again(stage) * exchange.forward(),
        ),
        backward_weight: nanoseconds(forward(stage)),
    });
    let crossing = samples * work.crossing() * element / workers;
    let transfer = nanoseconds(links.next(Peers::along(parallel.grid(), Axis::Pipeline), crossing));
    let times = ActionTimes { stages: times.collect(), transfer };
    let refused = |error: ScheduleError| PlanError::Refused(error.to_string());
    let schedule = blueprint::schedule(config)?;
    let timeline = simulate(&schedule, &times).map_err(refused)?;

    let most = |value: &dyn Fn(&Stage) -> f64| {
        let of_rank = |rank| schedule.stages_of(rank).filter_map(|stage| stages.get(stage)).map(value).sum();
        (0..parallel.pipeline).map(of_rank).fold(0.0, f64::max)
    };
    let parameters = most(&|stage| work.parameters(stage) / shares);
    let shards = if parallel.shards_optimizer() { parallel.owners() as f64 } else { 1.0 };
    let of_rank = RankWork {
        parameters,
        unit: parameters / most(&|stage| stage.layers.len() as f64).max(1.0),
        forward: most(&forward),
        backward: most(&|stage| 2.0 * forward(stage) + again(stage)),
    };
    Ok(Cost {
        passes: timeline.makespan as f64 / 1e9,
        recomputed: schedule.micro_batches as f64 * most(&again),
        shared_layers: schedule.micro_batches as f64
            * most(&|stage| (2.0 * exchanged(stage) + exchanged_again(stage)) * exchange.layer),
        shared_sequences: schedule.micro_batches as f64
            * most(&|stage| {
                let [forward, backward] = exchange.sequences;
                exchanged(stage) * (forward + backward) + exchanged_again(stage) * forward
            }),
        exposed: exposed(config, rates, of_rank),
        update: parameters / shards * state_bytes(config) / rates.memory_bytes,
        bubble: match config.training_assignment().idle() {
            0.0 => timeline.bubble(),
            idle => 1.0 - (1.0 - timeline.bubble()) * (1.0 - idle),
        },
    })
}

/// Seconds in which ranks exchange what they share of a layer, for a micro-batch.
struct Exchange {
    /// The rows of two inputs and two partial results of a layer that ranks share, in either pass.
    layer: f64,
    /// Keys and values of sequences that ranks share, in the forward and in the backward pass.
    sequences: [f64; 2],
}

impl Exchange {
    fn of(config: &RunConfig, work: &Work, links: Links, element: f64) -> Self {
        let (parallel, samples) = (&config.parallel, config.train.micro_batch_size as f64);
        let [tensor, context] = [Axis::Tensor, Axis::Context].map(|axis| Peers::along(parallel.grid(), axis));
        // Partial results are in f32.
        let rows = 2.0 * samples * work.crossing() / context.ranks as f64;
        let layer = links.parts(tensor, (element + 4.0) * rows);
        let columns =
            config.model.cached_heads().map_or(0, |heads| heads.key_columns() + heads.value_columns());
        let values = samples * (config.model.examples().units() * columns) as f64 / tensor.ranks as f64;
        // Backward gathers them again, and adds their gradients in f32.
        let sequences = [element, element + 4.0].map(|bytes| links.parts(context, bytes * values));
        Exchange { layer, sequences }
    }

    fn forward(&self) -> f64 {
        self.layer + self.sequences[0]
    }

    fn backward(&self) -> f64 {
        self.layer + self.sequences[1]
    }
}

/// Returns the bytes that the update reads and writes for one parameter.
fn state_bytes(config: &RunConfig) -> f64 {
    let moments = match config.optim.kind {
        OptimKind::AdamW => 2.0,
        OptimKind::Lion | OptimKind::Sgd => 1.0,
    };
    let state = build::state_dtype(config).bytes() as f64;
    let copy = if config.precision.weight_dtype() == DType::F32 { 0.0 } else { 2.0 };
    // The gradient is read, master and moments are read and written, and a half-precision weight is written.
    4.0 + 8.0 + 2.0 * state * moments + copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imitated::PlanDevice;
    use crate::overhead::DeviceRanks;
    use worker::build::DataScope;

    /// The model reproduces, within a few percent, the step with which the shipped efficiency was measured.
    #[test]
    fn the_measured_step_is_predicted() {
        let sets = [
            "model.vocabulary=50304",
            "train.micro_batch_size=64",
            "train.global_batch_size=64",
            "precision.compute=bf16",
        ];
        let sets = sets.map(str::to_owned);
        let text = include_str!("../../../launch/configs/gpt2-124m.toml").replace("lanes = 8", "");
        let config = RunConfig::parse(&text, "124m", std::path::Path::new("/"), &sets).unwrap();
        let shipped = PlanDevice::shipped().unwrap();
        let (rates, description) = (shipped.rates.clone().unwrap(), shipped.description(DeviceRanks::ALONE));
        let with = |sets: &[&str]| {
            let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
            let config = config.with(&sets).unwrap();
            let dataset = build::dataset(&config, DataScope::Shapes).unwrap();
            let work = Work::count(&config, &dataset, &description).unwrap();
            cost(&config, &work, &rates, &equal_stages(&config)).unwrap()
        };
        let step = with(&[]);
        assert!((step.seconds() / 0.1074 - 1.0).abs() < 0.1, "{step:?}");
        assert_eq!((step.exposed, step.bubble, step.recomputed), (0.0, 0.0, 0.0));
        // Each of four ranks with the same number of samples takes that time plus exposed communication; with
        // sharded state it updates less.
        let four = ["parallel.data=4", "train.global_batch_size=256", "parallel.lanes=4"];
        let together = with(&four);
        assert!(together.exposed > 0.0 && together.passes == step.passes && together.update == step.update);
        let sharded = with(&[&four[..], &["parallel.zero_stage=1"]].concat());
        assert!((sharded.update / step.update - 0.25).abs() < 1e-9);
        let recomputed = with(&["memory.recompute=block"]);
        assert!((recomputed.passes - step.passes - recomputed.recomputed).abs() < 1e-6);
        // Recomputation leaves out a layer's last matmul, whose output is not needed: 16 of the 24 width² of
        // its weights, and attention.
        let [layers, width, context, vocabulary] = [12.0, 768.0, 1024.0, 50304.0];
        let layer = |of_weights: f64| layers * (of_weights * width * width + 2.0 * context * width);
        let share = layer(16.0) / (3.0 * (layer(24.0) + 2.0 * width * vocabulary));
        assert!((recomputed.recomputed / step.passes - share).abs() < 1e-6, "{recomputed:?} of {step:?}");
        // Ranks that share layers divide compute and state, and wait for each other in every layer.
        let shared = with(&["parallel.tensor=2", "parallel.tensor_lanes=2"]);
        assert!((shared.update / step.update - 0.5).abs() < 1e-9 && shared.shared_layers > 0.0);
        let alone = shared.passes - shared.shared_layers;
        assert!((alone / step.passes - 0.5).abs() < 1e-6, "{shared:?} of {step:?}");
        // Ranks that share sequences divide compute, not state, and wait for keys and values.
        let pieces = with(&["parallel.context=2", "parallel.context_lanes=4"]);
        assert!(pieces.update == step.update && pieces.shared_layers == 0.0 && pieces.exposed > 0.0);
        let alone = pieces.passes - pieces.shared_sequences;
        assert!(pieces.shared_sequences > 0.0 && (alone / step.passes - 0.5).abs() < 1e-6, "{pieces:?}");
        // On two hosts they wait longer.
        let [near, far] = ["8", "16"].map(|ranks| {
            let sets = ["tensor", "tensor_lanes"].map(|key| format!("parallel.{key}={ranks}"));
            let heads = "model.heads=16".to_owned();
            with(&[&sets[0], &sets[1], &heads, "model.width=1024"]).shared_layers
        });
        assert!(far > 3.0 * near, "{near} {far}");
        // With equal stages, 1F1B would wait for (p − 1) / (m + p − 1) of the time; here the head increases
        // it.
        let stages = with(&["parallel.pipeline=2", "train.global_batch_size=512"]);
        assert!(stages.bubble > 1.0 / 9.0 && stages.bubble < 0.3, "{stages:?}");
    }
}
