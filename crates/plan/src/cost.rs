//! A cost model of a step, which orders configurations and promises no times.
//!
//! A pass takes its operations at the rate of the device's large matmuls times a measured efficiency; the
//! backward pass has twice the forward's, and what is recomputed comes on top. The schedule's simulator makes
//! a step of them, with the bubble. Gradients go over the links while the last micro-batch's backward goes
//! on: what is left then is exposed, and so is the last bucket. The update moves the optimizer's state
//! through the device's memory.

use device::DType;
use nn::Stage;
use parallel::pipeline::{ActionTimes, ScheduleError, StageTimes, simulate};

use crate::costs::recomputed_layers;
use crate::error::{PlanError, Result};
use crate::imitated::DeviceRates;
use crate::work::Work;
use config::{OptimKind, RunConfig};
use worker::blueprint;

/// The parts of a step, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Passes, and the time that pipeline ranks wait for each other.
    pub passes: f64,
    /// The recomputed part of these.
    pub recomputed: f64,
    /// Communication that nothing hides.
    pub exposed: f64,
    /// The optimizer.
    pub update: f64,
    /// The share of the passes' time in which ranks wait for others of the pipeline.
    pub bubble: f64,
}

impl Cost {
    /// The whole step.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.passes + self.exposed + self.update
    }
}

/// Stages with as many layers each as others, as far as that goes.
pub(crate) fn equal_stages(config: &RunConfig) -> Vec<Stage> {
    let (of, stages) = (config.layers(), config.stages());
    (0..stages).map(|stage| Stage { layers: stage * of / stages..(stage + 1) * of / stages, of }).collect()
}

/// Predicts a step of `config` with its layers in these stages, from the work of its layers. Errors: a
/// schedule that does not exist.
pub(crate) fn cost(config: &RunConfig, work: &Work, rates: &DeviceRates, stages: &[Stage]) -> Result<Cost> {
    let (parallel, samples) = (&config.parallel, config.train.micro_batch_size as f64);
    let half = config.precision.compute != DType::F32;
    let flops = rates.efficiency * if half { rates.flops_bf16 } else { rates.flops_f32 };
    let forward = |stage: &Stage| samples * work.forward(stage) / flops;
    let again = |stage: &Stage| samples * work.again(stage, recomputed_layers(&config.memory)) / flops;
    // Whole nanoseconds, of which a pass has many.
    let nanoseconds = |seconds: f64| (1e9 * seconds).round() as u64;
    let times = stages.iter().map(|stage| StageTimes {
        forward: nanoseconds(forward(stage)),
        backward_input: nanoseconds(forward(stage) + again(stage)),
        backward_weight: nanoseconds(forward(stage)),
    });
    let element = if half { 2.0 } else { 4.0 };
    let transfer = nanoseconds(samples * work.crossing() * element / rates.link_bytes);
    let times = ActionTimes { stages: times.collect(), transfer };
    let refused = |error: ScheduleError| PlanError::Refused(error.to_string());
    let schedule = blueprint::schedule(config)?;
    let timeline = simulate(&schedule, &times).map_err(refused)?;

    let most = |value: &dyn Fn(&Stage) -> f64| {
        let of_rank = |rank| schedule.stages_of(rank).filter_map(|stage| stages.get(stage)).map(value).sum();
        (0..parallel.pipeline).map(of_rank).fold(0.0, f64::max)
    };
    let parameters = most(&|stage| work.parameters(stage));
    let shards = if parallel.shards_optimizer() { parallel.data as f64 } else { 1.0 };
    let hidden = most(&|stage| 2.0 * forward(stage) + again(stage));
    Ok(Cost {
        passes: timeline.makespan as f64 / 1e9,
        recomputed: schedule.micro_batches as f64 * most(&again),
        exposed: exposed(config, rates, parameters, hidden),
        update: parameters / shards * state_bytes(config, half) / rates.memory_bytes,
        bubble: timeline.bubble(),
    })
}

/// Seconds of communication between data-parallel ranks that `hidden` seconds of backward do not hide.
fn exposed(config: &RunConfig, rates: &DeviceRates, parameters: f64, hidden: f64) -> f64 {
    let data = config.parallel.data as f64;
    if config.parallel.data == 1 {
        return 0.0;
    }
    let others = (data - 1.0) / data;
    // Gradients out and back; where the state is sharded, weights come back instead, when all is updated.
    let (rounds, weights) = match config.parallel.shards_optimizer() {
        true => (1.0, parameters * config.precision.compute.bytes() as f64),
        false => (2.0, 0.0),
    };
    let gradients = config.precision.gradients.bytes() as f64 * parameters * rounds;
    let last = (config.parallel.bucket_bytes as f64 * rounds).min(gradients);
    let time = |bytes: f64| others * bytes / rates.link_bytes;
    (time(gradients) - hidden).max(time(last)) + time(weights)
}

/// Bytes that the update reads and writes for a parameter.
fn state_bytes(config: &RunConfig, half: bool) -> f64 {
    let moments = match config.optim.kind {
        OptimKind::AdamW => 2.0,
        OptimKind::Sgd => 1.0,
    };
    // Gradient read; master and moments read and written; the weight in use written.
    4.0 + 8.0 * (1.0 + moments) + if half { 2.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imitated::PlanDevice;
    use worker::build;

    /// The step that the shipped efficiency was measured with is what the model says of it, within a few
    /// percent.
    #[test]
    fn the_step_that_was_measured_costs_what_it_took() {
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
        let (rates, description) = (shipped.rates.clone().unwrap(), shipped.description(false));
        let with = |sets: &[&str]| {
            let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
            let config = config.with(&sets).unwrap();
            let dataset = build::dataset(&config).unwrap();
            let work = Work::count(&config, &dataset, &description).unwrap();
            cost(&config, &work, &rates, &equal_stages(&config)).unwrap()
        };
        let step = with(&[]);
        assert!((step.seconds() / 0.1074 - 1.0).abs() < 0.1, "{step:?}");
        assert_eq!((step.exposed, step.bubble, step.recomputed), (0.0, 0.0, 0.0));
        // Each of four ranks with as many samples takes that and what is exposed; with a sharded state it
        // updates less.
        let four = ["parallel.data=4", "train.global_batch_size=256", "parallel.lanes=4"];
        let together = with(&four);
        assert!(together.exposed > 0.0 && together.passes == step.passes && together.update == step.update);
        let sharded = with(&[&four[..], &["parallel.zero_stage=1"]].concat());
        assert!((sharded.update / step.update - 0.25).abs() < 1e-9);
        let recomputed = with(&["memory.recompute=block"]);
        assert!((recomputed.passes - step.passes - recomputed.recomputed).abs() < 1e-6);
        // A layer runs again without its last matmul, whose output nothing needs: 16 of the 24 width² of its
        // weights, and attention.
        let [layers, width, context, vocabulary] = [12.0, 768.0, 1024.0, 50304.0];
        let layer = |of_weights: f64| layers * (of_weights * width * width + 2.0 * context * width);
        let share = layer(16.0) / (3.0 * (layer(24.0) + 2.0 * width * vocabulary));
        assert!((recomputed.recomputed / step.passes - share).abs() < 1e-6, "{recomputed:?} of {step:?}");
        // With equal stages, 1F1B would wait for (p − 1) / (m + p − 1) of the time; here the head makes it
        // more.
        let stages = with(&["parallel.pipeline=2", "train.global_batch_size=512"]);
        assert!(stages.bubble > 1.0 / 9.0 && stages.bubble < 0.3, "{stages:?}");
    }
}
