//! Builds model, optimizer options and schedules from the configuration.

use std::collections::BTreeSet;
use std::sync::Arc;

use autograd::precision::Autocast;
use collective::RankGrid;
use config::{DataKind, OffloadPolicy, Preference, PreferenceLoss, RunConfig, ScheduleName, Train};
use device::{DType, Device};
use nn::{Fp8Weights, Model, Parameters, PredictionModules, Recompute, Stage};
use optim::{AverageSchedule, Decay, ScaleRule, Schedule};
use parallel::data::{BucketEnd, BucketLayout, UnitOptions, WeightLayout, WeightUnits};
use tensor::ops::preference::{self, Objective};

use crate::dataset::Dataset;
use crate::error::Result;

/// Returns the loss function for preference pairs; `None` for other data.
pub fn objective(config: &RunConfig) -> Option<Objective> {
    let Preference { loss, beta, label_smoothing, lambda } = config.preference;
    let [beta, label_smoothing, lambda] = [beta, label_smoothing, lambda].map(|value| value as f32);
    (config.data.kind == DataKind::Preference).then_some(match loss {
        PreferenceLoss::Dpo => Objective::Dpo { beta, label_smoothing },
        PreferenceLoss::Ipo => Objective::Ipo { beta },
        PreferenceLoss::Orpo => Objective::Orpo { lambda },
    })
}

/// Returns the number of values that a micro-batch's loss consists of: 1, or more for preference pairs, which
/// add figures, and with modules that predict later tokens, which have losses of their own.
pub fn loss_values(config: &RunConfig) -> usize {
    objective(config).map_or(1 + config.train.prediction_modules(), |_| preference::VALUES)
}

/// Builds the layers of `stage` on `device` with all weights of a rank of `grid`, even if ranks shard them.
///
/// # Errors
/// No model can be built with these sizes, or memory runs out.
pub fn model(config: &RunConfig, device: &Device, grid: RankGrid, stage: &Stage) -> Result<Box<dyn Model>> {
    build_in(empty_parameters(config, device, grid), config, stage)
}

/// Builds the layers of `stage` on `device` with the weights that a rank of `grid` holds between uses: its
/// shards if weights are sharded, in the pool `host` if they are offloaded. No initial values are drawn for
/// the parameters `read`, which are read before they are used.
pub fn sharded_model(
    config: &RunConfig,
    (device, host): (&Device, Option<&Device>),
    grid: RankGrid,
    stage: &Stage,
    read: &Arc<BTreeSet<String>>,
) -> Result<(Box<dyn Model>, Option<WeightUnits>)> {
    let parameters = empty_parameters(config, device, grid).without_drawing(Arc::clone(read));
    if !config.gathers_weights() {
        return Ok((build_in(parameters, config, stage)?, None));
    }
    let model = build_in(parameters.released(), config, stage)?;
    let parameters = model.parameters();
    let index = grid.coordinate_over(config.parallel.replica_axes()) % config.weight_owners();
    let options = UnitOptions { rank: index, prefetch: config.parallel.prefetch };
    let host = host.filter(|_| config.memory.offload_weights);
    let units = WeightUnits::new((device, host), parameters, weight_layout(config, parameters), options)?;
    Ok((model, Some(units)))
}

fn empty_parameters(config: &RunConfig, device: &Device, grid: RankGrid) -> Parameters {
    let parameters = Parameters::new(device, config.train.seed, config.precision.weight_dtype());
    parameters.on_grid(grid).in_shards(config.parallel.layer_shards(), config.model.placements())
}

fn build_in(parameters: Parameters, config: &RunConfig, stage: &Stage) -> Result<Box<dyn Model>> {
    let parameters = parameters.tuned(Arc::clone(&config.tuning));
    let parameters = parameters.in_fp8(Fp8Weights::new(config.fp8.clone(), stage.is_first()));
    let parameters = parameters.with_embedding_noise(config.train.neftune_alpha);
    let parameters = parameters.predicting(prediction_modules(config));
    Ok(config.model.build(parameters, stage, recompute(config))?)
}

/// Returns the modules that predict later tokens.
pub fn prediction_modules(config: &RunConfig) -> PredictionModules {
    let Train { predict_tokens_weight: weight, .. } = config.train;
    PredictionModules { count: config.train.prediction_modules(), weight }
}

/// Returns which operands autocast converts; `None` if weights are in the compute type.
pub fn autocast(config: &RunConfig) -> Option<Arc<Autocast>> {
    let table = || Autocast { half: config.precision.compute, table: config.model.autocast() };
    config.precision.is_autocast().then(|| Arc::new(table()))
}

/// Returns where a bucket of gradients ends: with a unit of weights if weights are gathered, otherwise by
/// size.
pub fn bucket_end(config: &RunConfig) -> BucketEnd {
    match config.gathers_weights() {
        true => BucketEnd::Unit,
        false => BucketEnd::Bytes(usize::try_from(config.parallel.bucket_bytes).unwrap_or(usize::MAX)),
    }
}

/// Returns the buckets of a stage's gradients.
pub fn bucket_layout(config: &RunConfig, parameters: &Parameters) -> BucketLayout {
    BucketLayout::from_parameters(
        parameters,
        config.precision.gradients,
        bucket_end(config),
        config.parallel.replicas(),
    )
}

/// Returns the shards of a stage's weights on all ranks that share them.
pub fn weight_layout(config: &RunConfig, parameters: &Parameters) -> WeightLayout {
    WeightLayout::new(parameters, &bucket_layout(config, parameters), config.weight_owners())
}

/// Returns which layers of a stage are recomputed; none while `memory.recompute = "auto"` is unresolved.
fn recompute(config: &RunConfig) -> Recompute {
    let layers = match config.memory.recompute_layers {
        0 => usize::MAX,
        layers => layers,
    };
    match config.memory.recompute {
        config::RecomputePolicy::None | config::RecomputePolicy::Auto => Recompute::NONE,
        config::RecomputePolicy::Block => Recompute::first(layers, usize::MAX),
        config::RecomputePolicy::Segments(count) => Recompute::first(layers, count),
    }
}

/// Creates the host memory pool for offloaded data; `None` if nothing is offloaded.
///
/// # Errors
/// Errors of [`Device::host_pool`].
pub fn host_pool(device: &Device, config: &RunConfig) -> Result<Option<Device>> {
    let offloads = config.optim.offload || config.memory.offload != OffloadPolicy::None;
    Ok(if offloads { Some(device.host_pool()?) } else { None })
}

/// Returns the storage type of the optimizer's state.
pub fn state_dtype(config: &RunConfig) -> DType {
    match config.optim.state {
        config::StateType::F32 => DType::F32,
        config::StateType::Bf16 => DType::Bf16,
        config::StateType::EightBit => DType::U8,
    }
}

/// Returns how the loss scale adapts; `None` for types without a loss scale.
pub fn scale_rule(config: &RunConfig) -> Option<ScaleRule> {
    let config::Scaler { growth_factor, backoff_factor, growth_interval, .. } = config.scaler;
    (config.precision.compute == DType::F16).then(|| ScaleRule {
        growth: growth_factor as f32,
        backoff: backoff_factor as f32,
        interval: u32::try_from(growth_interval).unwrap_or(u32::MAX),
    })
}

/// Returns when and by how much averages of weights move; `None` without averages.
pub fn average_schedule(config: &RunConfig) -> Option<AverageSchedule> {
    let Train { ema, ema_every, ema_start, .. } = config.train;
    (ema > 0.0).then_some(AverageSchedule { decay: ema, every: ema_every, start: ema_start })
}

/// Returns the learning-rate schedule.
pub fn schedule(config: &RunConfig) -> Schedule {
    let optim = &config.optim;
    let start = optim.schedule_start;
    let steps = config.train.steps.saturating_sub(start);
    let line = |first: u64| Decay::Linear { start: first, end: steps, minimum: optim.min_learning_rate };
    let decay = match optim.schedule {
        ScheduleName::Cosine => Decay::Cosine { minimum: optim.min_learning_rate, steps },
        ScheduleName::Linear => line(0),
        ScheduleName::Constant => Decay::Constant,
        ScheduleName::Wsd => line(steps.saturating_sub(optim.decay_steps)),
        ScheduleName::Step if !optim.milestones.is_empty() => {
            let steps = optim.milestones.iter().map(|step| *step as u64).collect();
            Decay::Milestones { steps, gamma: optim.gamma }
        }
        ScheduleName::Step => Decay::Every { step_size: optim.step_size, gamma: optim.gamma },
    };
    Schedule { peak: optim.learning_rate, start, warmup_steps: optim.warmup_steps, decay }
}

/// Returns the mean number of tokens per step over all ranks, without padding; for models without tokens,
/// samples.
pub fn tokens_per_step(config: &RunConfig, dataset: &Dataset) -> u64 {
    (positions_per_step(config) as f64 * dataset.token_share()).round() as u64
}

/// Returns the number of sequence positions per step over all ranks; for models without tokens, samples.
pub fn positions_per_step(config: &RunConfig) -> u64 {
    config.positions_per_step()
}
