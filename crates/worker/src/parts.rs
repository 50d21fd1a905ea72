//! What a rank keeps of its stages of the model through a run: parameters, gradient buckets, optimizer state.

use device::Device;
use nn::{Model, ParameterId, Stage};
use optim::{GradientNorm, Optimizer, Slot};
use parallel::data::{GradientReduction, Lanes, ReductionOptions};
use parallel::pipeline::StagePart;
use parallel::{Axis, RankGrid};
use tensor::Tensor;

use crate::blueprint::Blueprint;
use crate::build;
use crate::error::Result;
use crate::hook::ModelHook;
use config::{Overlap, RunConfig};

/// The part of backward before sums that are late.
const LATE: f64 = 0.6;

/// The models of `stages`, then their gradient buckets; `data_rank`: which of its data-parallel ranks this is.
/// Errors: out of memory.
pub fn build(
    device: &Device,
    config: &RunConfig,
    data_rank: usize,
    stages: &[Stage],
    hook: Option<&ModelHook>,
) -> Result<Vec<StagePart>> {
    let (parallel, train) = (&config.parallel, &config.train);
    let dtype = config.precision.compute;
    let model = |stage: &Stage| -> Result<Box<dyn Model>> {
        let model = build::model(config, device, dtype, stage)?;
        Ok(match hook {
            Some(hook) => hook.wrap(model),
            None => model,
        })
    };
    let models = stages.iter().map(model).collect::<Result<Vec<_>>>()?;
    let mut parts = Vec::with_capacity(stages.len());
    for (model, stage) in models.into_iter().zip(stages) {
        let options = ReductionOptions {
            lanes: Lanes::new(parallel.lanes, train.micro_batches(), parallel.data)?,
            ranks: parallel.data,
            rank: data_rank,
            dtype: config.precision.gradients,
            bucket_bytes: build::bucket_bytes(config),
            reduction: config.parallel.reduction,
            zero_stage: parallel.zero_stage,
            loss: stage.is_last(),
        };
        let reduction = GradientReduction::new(device, model.parameters(), options)?;
        parts.push(StagePart { model, reduction });
    }
    Ok(parts)
}

/// From which part of backward on ranks sum gradients; `direct`: they do it in each other's memory. There a kernel that sums takes
/// from backward's matmuls about the time that it takes by itself, and matmuls at the power limit are slower while links
/// between GPUs are awake, which they are until 50 ms after a transfer: late transfers let them sleep.
pub fn reduce_from(config: &RunConfig, direct: bool) -> f64 {
    match config.parallel.overlap {
        Overlap::Auto if direct && config.parallel.shards_optimizer() => 1.0,
        Overlap::Auto if direct => LATE,
        Overlap::Auto | Overlap::On => 0.0,
        Overlap::Late => LATE,
        Overlap::Off => 1.0,
    }
}

/// What updates this rank's pieces of the parameters, stage by stage, with their masters' initial values: first, where ranks
/// keep different ones, those of the group that the next forward pass needs first. Errors: out of memory.
pub fn optimizer(device: &Device, config: &RunConfig, parts: &[StagePart]) -> Result<Optimizer> {
    let mut slots = Vec::new();
    for StagePart { model, reduction } in parts {
        for owned in reduction.shards().own() {
            let nn::Parameter { name, tensor, decay, .. } = &model.parameters().list()[owned.parameter];
            slots.push(Slot { name: name.clone(), weight: owned.of(tensor)?, decay: *decay });
        }
    }
    let first = parts.first().map_or(0, |part| first_pieces(&part.reduction));
    let optimizer = Optimizer::in_two_calls(device, &slots, build::update_rule(config), first)?;
    let mut masters = slots.iter().zip(optimizer.masters());
    for StagePart { model, reduction } in parts {
        for (owned, (slot, master)) in reduction.shards().own().iter().zip(&mut masters) {
            if !master.shares_storage(&slot.weight) {
                let parameter = ParameterId(owned.parameter);
                model.parameters().fill_initial(parameter, owned.shard.range.start, master)?;
            }
        }
    }
    drop(masters);
    Ok(optimizer)
}

/// How many of this rank's pieces there are up to the last that travels in the first group of weights.
fn first_pieces(reduction: &GradientReduction) -> usize {
    let group = reduction.weight_groups().first().filter(|_| reduction.shards().is_sharded());
    let Some(last) = group.and_then(|group| group.iter().max()) else { return 0 };
    reduction.shards().own().partition_point(|owned| owned.parameter <= *last)
}

/// The norm of the whole model's gradient, of which a rank may have a part.
#[derive(Debug)]
pub struct ModelNorm {
    /// The norm, and the scale that clips by it.
    pub norm: GradientNorm,
    /// The gradients that count here, where ranks have different ones.
    pub parts: Option<Vec<Tensor>>,
    /// Whether this rank's are to be added: of ranks with the same ones, the first one's are.
    pub counts: bool,
}

impl ModelNorm {
    /// For a rank of `grid` that holds `parts`. Errors: out of memory.
    pub fn new(
        device: &Device,
        config: &RunConfig,
        grid: &RankGrid,
        blueprint: &Blueprint,
        parts: &[StagePart],
    ) -> Result<Self> {
        let max_norm = config.optim.clip_norm as f32;
        let divided = parts.iter().any(|part| part.reduction.shards().is_sharded());
        let counts = divided || grid.coordinate(Axis::Data) == 0;
        let (mut gradients, mut places, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        for (StagePart { model, reduction }, stage) in
            parts.iter().zip(blueprint.stages_of(grid.coordinate(Axis::Pipeline)))
        {
            for (owned, gradient) in reduction.shards().own().iter().zip(reduction.gradients()) {
                let nn::Parameter { name, tensor, decay, .. } = &model.parameters().list()[owned.parameter];
                slots.push(Slot { name: name.clone(), weight: owned.of(tensor)?, decay: *decay });
                // A copy of another stage's parameter has that one's gradient.
                if let Some((place, true)) = blueprint.find(stage, owned.parameter) {
                    places.push((place, owned.shard.range.start));
                    gradients.push(gradient.clone());
                }
            }
        }
        if !divided && grid.size(Axis::Pipeline) == 1 {
            let norm = GradientNorm::new(device, &slots, max_norm)?;
            return Ok(ModelNorm { norm, parts: None, counts });
        }
        let norm = GradientNorm::of_parts(device, &blueprint.sizes(), &places, max_norm)?;
        Ok(ModelNorm { norm, parts: Some(gradients), counts })
    }
}
