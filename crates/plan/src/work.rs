//! The work of a model's layers, counted on Meta.

use std::collections::BTreeMap;

use config::{Parallel, RecomputePolicy, RunConfig};
use device::Description;
use nn::Stage;
use worker::blueprint;
use worker::build::{self, Dataset};

use crate::costs::with_recompute;
use crate::error::Result;
use crate::measure;

/// The work of every layer for one sample. The first layer includes everything before the layers, the last
/// one everything after them.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    layers: Vec<LayerWork>,
}

#[derive(Clone, Debug)]
struct LayerWork {
    /// FLOPs of the forward pass.
    forward: f64,
    /// FLOPs added to backward if it recomputes the layer.
    again: f64,
    /// Elements of each parameter, by name: stages count a shared one once.
    parameters: Vec<(String, usize)>,
    /// Values sent to the next layer.
    output: f64,
}

/// Returns a configuration whose ranks share neither layers nor sequences.
///
/// # Errors
/// None for a checked configuration.
pub(crate) fn undivided(config: &RunConfig) -> Result<RunConfig> {
    let lanes = [Parallel::tensor_lanes, Parallel::context_lanes];
    let keys = [Parallel::tensor, Parallel::context].into_iter().chain(lanes);
    Ok(config.with(&keys.map(|key| format!("{key}=1")).collect::<Vec<_>>())?)
}

impl Work {
    /// Counts the work of whole layers and sequences on Meta imitating `description`.
    ///
    /// # Errors
    /// Errors of building and running the model there.
    pub(crate) fn count(config: &RunConfig, dataset: &Dataset, description: &Description) -> Result<Self> {
        let config = &undivided(config)?;
        let samples = config.train.micro_batch_size as f64;
        let baseline = measure::layers(&with_recompute(config, RecomputePolicy::None), dataset, description)?;
        let again = measure::layers(&with_recompute(config, RecomputePolicy::Block), dataset, description)?;
        let of = config.layers();
        let grid = config.parallel.grid().seen_from(0)?;
        let mut layers = Vec::with_capacity(of);
        for (layer, (baseline, again)) in baseline.iter().zip(&again).enumerate() {
            let stage = Stage { layers: layer..layer + 1, of };
            let device = blueprint::meta(description)?;
            let model = build::model(config, &device, grid, &stage)?;
            let list = model.parameters().list();
            let parameters = list.iter().map(|one| (one.name.clone(), one.weight.elements())).collect();
            let total = |flops: [u64; 3]| flops.iter().sum::<u64>();
            layers.push(LayerWork {
                forward: baseline.flops[0] as f64 / samples,
                again: total(again.flops).saturating_sub(total(baseline.flops)) as f64 / samples,
                parameters,
                output: baseline.output.map_or(0.0, |cut| cut.shape.elements() as f64 / samples),
            });
        }
        Ok(Self { layers })
    }

    fn of_stage(&self, stage: &Stage) -> &[LayerWork] {
        self.layers.get(stage.layers.clone()).unwrap_or_default()
    }

    /// FLOPs of a stage's forward pass for one sample.
    pub(crate) fn forward(&self, stage: &Stage) -> f64 {
        self.of_stage(stage).iter().map(|layer| layer.forward).sum()
    }

    /// FLOPs for one sample added to backward if it recomputes the first `layers` of a stage.
    pub(crate) fn again(&self, stage: &Stage, layers: usize) -> f64 {
        self.of_stage(stage).iter().take(layers).map(|layer| layer.again).sum()
    }

    /// Elements of a stage's parameters.
    pub(crate) fn parameters(&self, stage: &Stage) -> f64 {
        let all = self.of_stage(stage).iter().flat_map(|layer| &layer.parameters);
        let by_name: BTreeMap<_, _> = all.map(|(name, elements)| (name, elements)).collect();
        by_name.values().map(|elements| **elements as f64).sum()
    }

    /// The most values that a layer sends to the next, for one sample.
    pub(crate) fn crossing(&self) -> f64 {
        self.layers.iter().map(|layer| layer.output).fold(0.0, f64::max)
    }
}
