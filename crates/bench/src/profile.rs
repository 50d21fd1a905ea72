//! Measures profiles: times each layer of a run's model separately on a device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use autograd::{Mode, Pass, Tape};
use collective::{Communicator, DividedGroup};
use device::{Backend, Device, Mark};
use nn::{Input, Stage};
use optim::{GradientNorm, Optimizer};
use parallel::pipeline::{StageBoundary, StagePart};
use tensor::{Tensor, ops};

use crate::error::{BenchError, Result};
use crate::one_rank::on_one_rank;
use crate::options::{GPU_WARM_UP, median};
use config::{RecomputePolicy, RunConfig};
use plan::PlanTarget;
use plan::costs::with_recompute;
use plan::measure;
use plan::{LayerTimes, Profile};
use run::ChosenPlacement;
use run::Startup;
use worker::DeviceChoice;
use worker::Setup;
use worker::build;
use worker::feed::first_batch;
use worker::stages::matrices::{self, MatrixGroup};
use worker::stages::{self, optimizer};

/// Number of untimed steps of each layer.
const WARM_UP: usize = 1;
/// Minimum number of timed steps of each layer.
const LEAST: usize = 3;
/// Intended duration of the timed steps, including steps with recomputation.
const MOMENT: Duration = Duration::from_millis(800);
/// Maximum number of timed steps of each layer.
const MOST: usize = 24;
/// Maximum number of micro-batches in a timed step; further lanes are left out.
const MICRO_BATCHES: usize = 16;

/// Times the layers of a configuration's model on one device of this host, with the run's micro-batches,
/// precision and optimizer. Layers with equal counts on Meta are timed once. All memory is freed on return.
///
/// # Errors
/// A run fails, or the device is not on this host.
pub fn take_profile(config: &RunConfig, target: &PlanTarget) -> Result<Profile> {
    let choice = match target {
        PlanTarget::AtHand(DeviceChoice::Meta) => Err("meta".to_owned()),
        PlanTarget::AtHand(choice) => Ok(*choice),
        PlanTarget::File(path) => Err(path.display().to_string()),
        PlanTarget::Named(name) => Err((*name).to_owned()),
    };
    let elsewhere =
        |name| format!("--profile --device {name}: nothing is computed there, so no times can be measured");
    let choice = choice.map_err(|name| BenchError::Refused(elsewhere(name)))?;
    let mut alone = on_one_rank(config, MICRO_BATCHES);
    let ChosenPlacement { placement, .. } =
        ChosenPlacement::find(choice, &mut alone, &Startup::alone(), None)?;
    let (alone, _) = plan::resolve(alone, &placement.description())?;
    let timing = alone.timing();
    let setup = plan::prepare(alone, placement)?;
    run::prepare_kernels(&setup)?;
    let device = setup.device(0)?;
    let description = setup.placement.description();
    let warm_up = if device.backend() == Backend::Cuda { GPU_WARM_UP } else { Duration::ZERO };
    Ok(Profile {
        layers: layers(&setup, &device, warm_up)?,
        device: description.model,
        libraries: description.libraries,
        of: timing,
    })
}

/// Times every layer; equal consecutive layers share one entry. The first layer computes for `warm_up`
/// beforehand, so that all are timed at the same clocks.
fn layers(setup: &Setup, device: &Device, warm_up: Duration) -> Result<Vec<LayerTimes>> {
    let config = &setup.config;
    let model_layers = setup.config.layers();
    let without_recompute = with_recompute(config, RecomputePolicy::None);
    let again = with_recompute(config, RecomputePolicy::Block);
    let counted = measure::layers(&without_recompute, &setup.dataset, device.description())?;
    let mut layers: Vec<LayerTimes> = Vec::new();
    for (layer, measure) in counted.iter().enumerate() {
        // The first layer has everything before the layers, the last layer everything after them.
        let inner = layer > 1 && layer + 1 < model_layers;
        if let Some(same) = layers.last_mut().filter(|_| inner && counted[layer - 1] == *measure) {
            same.count += 1;
            continue;
        }
        let stage = Stage { layers: layer..layer + 1, model_layers };
        let before = layer.checked_sub(1).and_then(|before| counted[before].output);
        let alone = |config: &RunConfig| Alone::new(setup, device, config, &stage, [before, measure.output]);
        let mut both = [alone(&without_recompute)?, alone(&again)?];
        let began = Instant::now();
        while layer == 0 && began.elapsed() < warm_up {
            both[0].step()?;
        }
        let [times, longer] = alternating_times(both)?;
        // Recomputation happens in the half that computes the input's gradient.
        layers.push(LayerTimes {
            recomputed: longer.backward_input.saturating_sub(times.backward_input),
            ..times
        });
    }
    Ok(layers)
}

/// A stage of one layer, with all state that a rank keeps for it.
struct Alone<'a> {
    device: &'a Device,
    part: StagePart,
    optimizer: Optimizer,
    matrices: Vec<MatrixGroup>,
    norm: GradientNorm,
    group: DividedGroup,
    /// The micro-batch for the first layer, or the previous layer's output.
    input: Tensor,
    targets: Tensor,
    pass: Pass,
    stage: Stage,
    /// Gradient of the layer's output.
    seed: Option<Tensor>,
    micro_batches: usize,
}

/// Start times of a micro-batch's passes in order, then the end of the last pass.
type Passes = [Mark; 4];

impl<'a> Alone<'a> {
    /// Creates the stage. `boundaries` are the activations before and after it.
    fn new(
        setup: &Setup,
        device: &'a Device,
        config: &RunConfig,
        stage: &Stage,
        boundaries: [Option<StageBoundary>; 2],
    ) -> Result<Self> {
        let grid = config.parallel.grid().seen_from(0)?;
        let host = build::host_pool(device, config)?;
        let devices = (device, host.as_ref());
        let parts =
            stages::build(devices, config, grid, (std::slice::from_ref(stage), &Arc::default()), None)?;
        let matrices = matrices::groups(device, config, &grid, &parts)?;
        let optimizer = optimizer::build(devices, config, &parts, &matrices)?;
        let norm = GradientNorm::new(device, optimizer.slots(), config.optim.clip_norm as f32)?;
        let nothing = || BenchError::Refused("a stage has one part".to_owned());
        let part = parts.into_iter().next().ok_or_else(nothing)?;
        let [before, after] = boundaries.map(|cut| cut.map(|cut| random(device, cut)).transpose());
        let first_batch::Uploaded { inputs, targets, pass } =
            first_batch::first(config, &*setup.dataset.source, device)?;
        Ok(Alone {
            device,
            part,
            optimizer,
            matrices,
            norm,
            group: DividedGroup::undivided(Communicator::solo().group),
            input: before?.unwrap_or(inputs),
            targets,
            pass,
            stage: stage.clone(),
            seed: after?,
            micro_batches: config.train.micro_batches(),
        })
    }

    /// Returns the mean nanoseconds of a micro-batch's passes in a step, and of the step's update.
    fn step(&mut self) -> Result<[f64; 4]> {
        let mut passes = Vec::with_capacity(self.micro_batches);
        for _ in 0..self.micro_batches {
            passes.push(self.passes()?);
        }
        let begun = self.device.mark()?;
        self.part.reduction.finish(&self.group)?;
        let gradients = self.part.reduction.gradients();
        self.norm.measure(gradients)?;
        // The learning rate is 0, so weights do not change.
        let state = self.norm.state();
        self.optimizer.update_first_slots(gradients, state)?;
        self.optimizer.update_matrices(gradients, state, |group, wave, directions| {
            Ok::<_, BenchError>(self.matrices[group].owners.orthogonalise(
                &self.group.all,
                wave,
                directions,
            )?)
        })?;
        self.optimizer.update_other_slots(gradients, state)?;
        let updated = self.device.mark()?;
        self.device.synchronize()?;
        let time = |from: &Mark, to: &Mark| -> Result<f64> {
            Ok(from.until(to)?.map_or(0.0, |time| time.as_nanos() as f64))
        };
        let mut times = [0.0, 0.0, 0.0, time(&begun, &updated)?];
        for marks in &passes {
            for (part, marks) in marks.windows(2).enumerate() {
                times[part] += time(&marks[0], &marks[1])? / self.micro_batches as f64;
            }
        }
        Ok(times)
    }

    /// Runs forward and both halves of backward.
    fn passes(&mut self) -> Result<Passes> {
        let StagePart { model, reduction, .. } = &mut self.part;
        let began = self.device.mark()?;
        let tape = Tape::new(self.device, Mode::Rehearse).with_pass(self.pass.clone());
        let input = match self.stage.is_first() {
            true => Input::Batch(self.input.clone()),
            false => Input::Hidden(tape.leaf(self.input.clone())),
        };
        let output = model.forward_stage(&tape, input)?;
        let (mut loss_tensor, forward, halves);
        match &self.seed {
            None => {
                let loss =
                    model.loss_of_stage(&tape, output, &self.targets, 1.0 / self.micro_batches as f32)?;
                loss_tensor = Some(loss.tensor().clone());
                forward = self.device.mark()?;
                halves = tape.backward_input(loss)?;
            }
            Some(seed) => {
                loss_tensor = None;
                let root = vec![(output.source(), seed.clone())];
                drop(output);
                forward = self.device.mark()?;
                halves = tape.backward_input_from(root)?;
            }
        }
        let (leaves, pending) = halves;
        drop(leaves);
        let backward = self.device.mark()?;
        pending.backward_weight(&mut reduction.sink(&self.group))?;
        reduction.end_micro_batch(loss_tensor.take().as_ref())?;
        Ok([began, forward, backward, self.device.mark()?])
    }
}

/// Returns the median times of both stages over some steps, which alternate so that disturbances affect both.
fn alternating_times(mut both: [Alone<'_>; 2]) -> Result<[LayerTimes; 2]> {
    for alone in &mut both {
        for _ in 0..WARM_UP {
            alone.step()?;
        }
    }
    let began = Instant::now();
    let mut steps = [Vec::new(), Vec::new()];
    while steps[0].len() < LEAST || (steps[0].len() < MOST && began.elapsed() < MOMENT) {
        for (alone, steps) in both.iter_mut().zip(&mut steps) {
            steps.push(alone.step()?);
        }
    }
    Ok(steps.map(|steps| {
        let typical = |part: usize| {
            let times: Vec<f64> = steps.iter().map(|step| step[part]).collect();
            median(&times).round() as u64
        };
        LayerTimes {
            count: 1,
            forward: typical(0).max(1),
            backward_input: typical(1),
            backward_weight: typical(2),
            recomputed: 0,
            update: typical(3),
        }
    }))
}

/// Creates an activation between stages with random values, on which the time of a matmul depends.
fn random(device: &Device, cut: StageBoundary) -> Result<Tensor> {
    let tensor = measure::tensor(device, cut)?;
    ops::random::uniform(&tensor, 1, "profile", -1.0, 1.0)?;
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use plan::LONGEST;
    use worker::Placement;

    use super::*;

    fn config(sets: &[&str]) -> RunConfig {
        vision::register().unwrap();
        let mut small = vec!["train.micro_batch_size=1", "train.global_batch_size=4", "data.kind=synthetic"];
        if !sets.contains(&"model.kind=mlp") {
            small.extend(["model.width=32", "model.context=16"]);
        }
        let sets: Vec<String> = small.iter().chain(sets).map(|set| (*set).to_owned()).collect();
        RunConfig::parse("", "test.toml", Path::new("/"), &sets).unwrap()
    }

    #[test]
    fn layers_are_timed_and_leave_nothing() {
        let mlp = ["model.kind=mlp", "model.sizes=[3, 30, 30, 30, 30, 20, 7]", "optim.kind=sgd"];
        for (sets, counts) in [
            // The first layer with everything before it, equal layers, and the last layer with everything
            // after it.
            (&["model.layers=5"][..], &[1, 3, 1][..]),
            (&["model.layers=2", "train.global_batch_size=64", "parallel.lanes=64"], &[1, 1]),
            (&mlp, &[1, 3, 1, 1]),
            (&["model.layers=1", "parallel.data=4", "parallel.zero_stage=1"], &[1]),
            (&["model.layers=1", "parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2"], &[1]),
        ] {
            let config = on_one_rank(&config(sets), MICRO_BATCHES);
            assert!(config.train.micro_batches() <= 16 && config.world_size() == 1);
            let setup = plan::prepare(config, Placement::Cpu).unwrap();
            let device = setup.device(0).unwrap();
            let began = Instant::now();
            let warm_up = Duration::from_millis(200);
            let times = layers(&setup, &device, warm_up).unwrap();
            assert!(began.elapsed() >= warm_up);
            assert_eq!(times.iter().map(|layer| layer.count).collect::<Vec<_>>(), counts, "{sets:?}");
            for layer in &times {
                let parts = [layer.forward, layer.backward_input, layer.backward_weight, layer.update];
                assert!(parts.iter().all(|time| *time > 0 && *time < LONGEST), "{layer:?}");
            }
            let statistics = device.statistics();
            assert!(statistics.peak_allocated() > 0 && statistics.allocated() == 0, "{sets:?}");
        }
    }
}
