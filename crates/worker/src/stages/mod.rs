//! The stages of a rank: models, gradient buckets, and the norm of all gradients.

pub mod matrices;
pub mod optimizer;
pub mod parameter_optim;

use std::collections::BTreeSet;
use std::sync::Arc;

use collective::{Axis, RankGrid};
use device::Device;
use nn::{Model, Stage};
use optim::{GradientNorm, Slot};
use parallel::data::{GradientReduction, ReductionOptions, WeightUnits};
use parallel::pipeline::StagePart;
use tensor::Tensor;

use crate::build;
use crate::error::Result;
use crate::observers::hooks::ModelHook;
use crate::setup::blueprint::Blueprint;
use crate::stages::parameter_optim::ReportedGroups;
use config::{Overlap, RunConfig};

/// Fraction of backward after which `parallel.overlap = "late"` starts to sum gradients.
const LATE: f64 = 0.6;

/// Builds the models of `stages` and then their gradient buckets, for a rank of `grid`. The second device is
/// the host pool for offloaded data. No initial values are drawn for the parameters `read`, which are read
/// before they are used.
pub fn build(
    (device, host): (&Device, Option<&Device>),
    config: &RunConfig,
    grid: RankGrid,
    (stages, read): (&[Stage], &Arc<BTreeSet<String>>),
    hook: Option<&ModelHook>,
) -> Result<Vec<StagePart>> {
    let parallel = &config.parallel;
    let train = &config.train;
    let model = |stage: &Stage| -> Result<(Box<dyn Model>, Option<WeightUnits>)> {
        let (model, weights) = build::sharded_model(config, (device, host), grid, stage, read)?;
        model.parameters().statistics().keep(train.micro_batches())?;
        let (ranks, own) = load_rank(&grid);
        model.parameters().expert_loads().keep(device, ranks, own)?;
        Ok((ModelHook::around(hook, model), weights))
    };
    let models = stages.iter().map(model).collect::<Result<Vec<_>>>()?;
    let mut parts = Vec::with_capacity(stages.len());
    for ((model, weights), stage) in models.into_iter().zip(stages) {
        let options = ReductionOptions {
            assignment: config.reduction_assignment(),
            rank: grid.coordinate_over(parallel.replica_axes()),
            dtype: config.precision.gradients,
            bucket_end: build::bucket_end(config),
            reduction: config.parallel.reduction,
            zero_stage: parallel.sharding_stage(),
            loss: stage.is_last(),
            loss_values: build::loss_values(config),
        };
        let reduction = GradientReduction::new(device, model.parameters(), options)?;
        parts.push(StagePart { model, reduction, weights });
    }
    Ok(parts)
}

/// Returns the number of ranks that count expert loads for different tokens, and the index of this rank among
/// them.
fn load_rank(grid: &RankGrid) -> (usize, usize) {
    let axes = [Axis::Data, Axis::Context];
    (grid.shape().size_over(&axes), grid.coordinate_over(&axes))
}

/// Returns the fraction of backward at which ranks start to sum gradients. With peer access (`direct`), a
/// late start lets the links between GPUs sleep, which leaves power for matmuls; after a transfer they stay
/// awake for 50 ms. A sum in peer memory also delays matmuls by about its own duration.
pub fn reduce_from(config: &RunConfig, direct: bool) -> f64 {
    if config.train.halves_micro_batches() {
        // Ranks agree that memory suffices before they communicate.
        return 1.0;
    }
    match config.parallel.overlap {
        Overlap::Auto if direct && config.parallel.shards_optimizer() => 1.0,
        Overlap::Auto if direct => LATE,
        Overlap::Auto | Overlap::On => 0.0,
        Overlap::Late => LATE,
        Overlap::Off => 1.0,
    }
}

/// The norm of the whole model's gradient. A rank may hold only a part of the gradient.
#[derive(Debug)]
pub struct ModelNorm {
    /// Computes the norm and the scale for clipping.
    pub norm: GradientNorm,
    /// The gradients whose squares this rank sums; `None` if every rank has all gradients.
    pub parts: Option<Vec<Tensor>>,
    /// Names of the groups of parameters whose norms are computed too; empty if none are.
    pub groups: Vec<String>,
    /// Whether this rank contributes to the sum. Among ranks with equal gradients, only the first does.
    pub counts: bool,
}

impl ModelNorm {
    /// Returns the norm for a rank of `grid` with the stages `parts`.
    pub fn new(
        device: &Device,
        config: &RunConfig,
        grid: &RankGrid,
        blueprint: &Blueprint,
        parts: &[StagePart],
    ) -> Result<Self> {
        let max_norm = config.optim.clip_norm as f32;
        let divided = parts.iter().any(|part| part.reduction.shards().is_sharded());
        let sharing = if divided { config.parallel.owners() } else { 1 };
        let axes = config.parallel.replica_axes();
        let counts = grid.coordinate_over(axes) < sharing;
        let is_first = grid.coordinate(Axis::Tensor) == 0;
        let is_first_copy = axes.contains(&Axis::Context) || grid.coordinate(Axis::Context) == 0;
        let mut gradients = Vec::new();
        let mut positions = Vec::new();
        let mut slots = Vec::new();
        for (part, stage) in parts.iter().zip(blueprint.stages_of(grid.coordinate(Axis::Pipeline))) {
            let reduction = &part.reduction;
            for (owned, gradient) in reduction.shards().own().iter().zip(reduction.gradients()) {
                let nn::Parameter { name, role, .. } = &part.model.parameters().list()[owned.parameter];
                let weight = part.own_weight(owned)?;
                slots.push(Slot { name: name.clone(), weight, decay: !role.is_vector() });
                // Only the first copy of a tied parameter counts.
                let first_copy = blueprint.find(stage, owned.parameter).filter(|(_, is_first)| *is_first);
                // Ranks along the tensor axis have equal gradients of parameters that are not divided, and
                // ranks along the context axis of all, unless they share state.
                let counted = first_copy.filter(|(index, _)| {
                    let is_part = blueprint.parameters[*index].sharding.is_divided_along(Axis::Tensor);
                    is_first_copy && (is_first || is_part)
                });
                if let Some((index, _)) = counted {
                    positions.push((blueprint.gradient_index(index, grid), owned.shard.range.start));
                    gradients.push(gradient.clone());
                }
            }
        }
        let all_whole = blueprint.parameters.iter().all(|entry| entry.sharding.parts() == 1);
        if !divided && all_whole && grid.size(Axis::Pipeline) == 1 {
            let norm = GradientNorm::new(device, &slots, max_norm)?;
            return Self::with_groups(config, blueprint, (norm, None, counts));
        }
        let norm = GradientNorm::of_parts(device, &blueprint.gradient_sizes(), &positions, max_norm)?;
        Self::with_groups(config, blueprint, (norm, Some(gradients), counts))
    }

    /// Returns the norm that also computes the norms of the reported groups, if there are any.
    fn with_groups(
        config: &RunConfig,
        blueprint: &Blueprint,
        (norm, parts, counts): (GradientNorm, Option<Vec<Tensor>>, bool),
    ) -> Result<Self> {
        let Some(ReportedGroups { names, parameters }) = ReportedGroups::new(config, blueprint) else {
            return Ok(ModelNorm { norm, parts, groups: Vec::new(), counts });
        };
        Ok(ModelNorm { norm: norm.with_groups(&parameters)?, parts, groups: names, counts })
    }
}
