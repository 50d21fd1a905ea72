//! Screening: a quick estimate of a step's time, which decides only the order in which candidates of `--fit`
//! and continuation grids are planned. Its times are never shown; proposals are sorted by the clock.
//!
//! Passes take the time of the layers' calls, modelled as in the clock, and the schedule's simulator combines
//! them into a step. Exposed communication is added in closed form ([`communication`]), and so is the update,
//! which moves the optimizer's state through device memory. Thousands of candidates take as long as a few
//! predictions: a search for Llama-3 70B on 64 GPUs screens 2,610 and plans 92.

mod communication;
mod layers;
mod links;

use std::cell::RefCell;
use std::collections::BTreeMap;

use collective::Axis;
use config::{OptimKind, RunConfig};
use device::{DType, Description};
use nn::Stage;
use parallel::pipeline::{
    ActionTimes, ScheduleError, ScheduleKind, Shape, StageLayout, StageTimes, simulate,
};
use worker::build;
use worker::setup::blueprint;

use crate::costs::recomputed_layers;
use crate::error::{PlanError, Result};
use crate::imitated::{MOST_BYTES, PlanDevice};
use crate::overhead::DeviceRanks;
use crate::rates::DeviceRates;
use communication::{Exchange, RankWork, exposed};
pub(crate) use layers::TimedLayers;
use links::{Links, Peers};

/// Estimates steps on one device.
pub(crate) struct Screen<'a> {
    device: &'a PlanDevice,
    description: Description,
    rates: DeviceRates,
    /// Cached makespans of schedules; candidates that differ only in sharding share them.
    makespans: RefCell<BTreeMap<(ScheduleKind, Shape, ActionTimes), u64>>,
}

/// Divides the layers into stages whose sizes differ by at most one.
fn equal_stages(config: &RunConfig) -> Vec<Stage> {
    let model_layers = config.layers();
    let stages = config.stages();
    (0..stages)
        .map(|stage| Stage {
            layers: stage * model_layers / stages..(stage + 1) * model_layers / stages,
            model_layers,
        })
        .collect()
}

impl<'a> Screen<'a> {
    /// Creates the screening for a device that `ranks` share.
    ///
    /// # Errors
    /// The embedded description of the default device is invalid, which a test rules out.
    pub(crate) fn for_device(device: &'a PlanDevice, ranks: DeviceRanks) -> Result<Self> {
        let (rates, _) = device.rates_or_shipped()?;
        // Layers that do not fit are timed too; planning detects them.
        let description =
            Description { total_bytes: MOST_BYTES, taken_bytes: 0, ..device.description(ranks) };
        Ok(Screen { device, description, rates, makespans: RefCell::default() })
    }

    /// Times the layers of a configuration without sharded state. `alike` may be an earlier timing of the
    /// same model, which identifies equal layers so that each is timed once.
    pub(crate) fn layers(&self, config: &RunConfig, alike: Option<&TimedLayers>) -> Result<TimedLayers> {
        let sets = ["parallel.zero_stage=0", "parallel.shard=0"].map(str::to_owned);
        TimedLayers::from_config(&config.with(&sets)?, self, alike.map(|timed| &timed.alike[..]))
    }

    /// Estimates the seconds of a step of `config`, with its layers in equal stages.
    ///
    /// # Errors
    /// The schedule is invalid.
    pub(crate) fn seconds(&self, config: &RunConfig, layers: &TimedLayers) -> Result<f64> {
        let stages = equal_stages(config);
        let recomputed = recomputed_layers(&config.memory);
        // Nanosecond resolution suffices for passes.
        let nanoseconds = |seconds: f64| (1e9 * seconds).round() as u64;
        let links = Links::from_rates(&self.rates, self.device.gpus_per_host());
        let exchange = Exchange::from_config(config, layers.output_bytes(), links);
        let times = stages.iter().map(|stage| {
            let [forward, input, weight] = layers.passes(stage);
            let count = stage.layers.len();
            let again = recomputed.min(stage.layers.len());
            let exchanged = count as f64 * exchange.backward() + again as f64 * exchange.forward();
            StageTimes {
                forward: nanoseconds(forward + count as f64 * exchange.forward()),
                backward_input: nanoseconds(input + layers.again(stage, recomputed) + exchanged),
                backward_weight: nanoseconds(weight),
            }
        });
        let neighbours = Peers::along(config.parallel.grid(), Axis::Pipeline);
        let transfer = nanoseconds(links.next(neighbours, layers.output_bytes()));
        let times = ActionTimes { stages: times.collect(), transfer };
        let makespan = self.makespan(config, times)?;
        let layout = StageLayout { ranks: config.parallel.pipeline, stages: stages.len() };
        let most = |value: &dyn Fn(&Stage) -> f64| {
            let of_rank =
                |rank| layout.stages_of(rank).filter_map(|stage| stages.get(stage)).map(value).sum();
            (0..config.parallel.pipeline).map(of_rank).fold(0.0, f64::max)
        };
        let parameters = most(&|stage| layers.parameters(stage));
        let shards = if config.parallel.shards_optimizer() { config.parallel.owners() as f64 } else { 1.0 };
        let of_rank = RankWork {
            parameters,
            unit: parameters / most(&|stage| stage.layers.len() as f64).max(1.0),
            forward: most(&|stage| layers.passes(stage)[0]),
            backward: most(&|stage| {
                let [_, input, weight] = layers.passes(stage);
                input + weight + layers.again(stage, recomputed)
            }),
        };
        let [state, moved] = state_bytes(config);
        let update = parameters / shards
            * (moved / self.rates.memory_bytes).max(match config.optim.offload {
                // Copies in both directions overlap.
                true => state / self.rates.host_copy(),
                false => 0.0,
            });
        let passes = makespan as f64 / 1e9;
        if !self.device.is_gpu() {
            // Link and memory rates are those of GPUs.
            return Ok(passes);
        }
        Ok(passes + exposed(config, links, of_rank) + update)
    }

    /// Returns the duration of the schedule's passes in a step, in nanoseconds.
    ///
    /// # Errors
    /// The schedule is invalid.
    fn makespan(&self, config: &RunConfig, times: ActionTimes) -> Result<u64> {
        let key = (config.schedule_kind(), config.pipeline_shape(), times);
        if let Some(known) = self.makespans.borrow().get(&key) {
            return Ok(*known);
        }
        let refused = |error: ScheduleError| PlanError::Refused(error.to_string());
        let makespan = simulate(&blueprint::schedule(config)?, &key.2).map_err(refused)?.makespan;
        self.makespans.borrow_mut().insert(key, makespan);
        Ok(makespan)
    }
}

/// Returns the bytes of optimizer state per parameter, and the bytes that an update reads and writes per
/// parameter.
fn state_bytes(config: &RunConfig) -> [f64; 2] {
    let moments = match config.optim.kind {
        OptimKind::AdamW => 2.0,
        OptimKind::Lion | OptimKind::Sgd | OptimKind::Muon => 1.0,
    };
    let state = build::state_dtype(config).bytes() as f64;
    let copy = if config.precision.weight_dtype() == DType::F32 { 0.0 } else { 2.0 };
    // The gradient is read, master weights and moments are read and written, and a half-precision weight is
    // written.
    [4.0 + state * moments, 4.0 + 8.0 + 2.0 * state * moments + copy]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_time::StepTime;

    /// Checks that screening orders steps like the prediction wherever these clearly differ.
    #[test]
    fn candidates_are_screened_in_the_order_of_the_clock() {
        let text = include_str!("../../../launch/configs/gpt2-124m.toml").replace("lanes = 8", "");
        let sets = [
            "precision.compute=bf16",
            "data.kind=synthetic",
            "train.global_batch_size=64",
            "parallel.lanes=4",
        ];
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = RunConfig::parse(&text, "124m", std::path::Path::new("/"), &sets).unwrap();
        let device = PlanDevice::shipped().unwrap();
        let screen = Screen::for_device(&device, DeviceRanks::CONNECTED).unwrap();
        let alike = screen.layers(&config, None).unwrap();
        assert_eq!(alike.alike, [&[0, 1][..], &[1; 9], &[11]].concat());
        let steps = [
            &["train.micro_batch_size=1", "parallel.data=4"][..],
            &["train.micro_batch_size=4", "parallel.data=4"],
            &["train.micro_batch_size=16", "parallel.data=4"],
            &["train.micro_batch_size=16", "parallel.data=4", "memory.recompute=block"],
            &["train.micro_batch_size=16", "parallel.tensor=4", "parallel.tensor_lanes=4"],
            &["train.micro_batch_size=4", "parallel.pipeline=4"],
            &["train.micro_batch_size=32", "parallel.pipeline=4", "parallel.lanes=2"],
            &["train.micro_batch_size=4", "parallel.pipeline=4", "parallel.schedule=gpipe"],
        ];
        let mut times = steps.map(|sets| {
            let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
            let config = config.with(&sets).unwrap();
            let layers = screen.layers(&config, Some(&alike)).unwrap();
            let predicted = StepTime::of_config(&config, &device).unwrap().unwrap().step_seconds;
            (predicted, screen.seconds(&config, &layers).unwrap(), sets)
        });
        times.sort_by(|one, other| one.0.total_cmp(&other.0));
        for (predicted, screened, sets) in &times {
            // Short transfers, as between tensor-parallel ranks, are slower than the links' rate.
            assert!((screened / predicted - 1.0).abs() < 0.36, "{screened} for {predicted}: {sets:?}");
            let slower = times.iter().filter(|other| other.0 > 1.3 * predicted);
            assert!(slower.into_iter().all(|other| other.1 > *screened), "{times:?}");
        }
    }
}
