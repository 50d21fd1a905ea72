//! The optimizer of a rank: its parameter groups, and its construction.

use config::{OptimKind, RunConfig};
use device::{DType, Device};
use nn::{Lora, ParameterId};
use optim::{GroupOptions, Optimizer, Slot, StateArray, StateOptions, UpdateRule};
use parallel::data::GradientReduction;
use parallel::pipeline::StagePart;
use tensor::Shape;

use crate::build;
use crate::error::Result;

/// A group of parameters with the same update rule and options.
struct Group {
    rule: UpdateRule,
    /// Multiplier of the learning rate.
    rate_factor: f32,
    /// Storage type of the optimizer state.
    states: DType,
    /// Returns whether the group includes a parameter of this name and shape.
    takes: fn(&str, Shape) -> bool,
}

/// Returns the parameter groups of a configuration. A parameter belongs to the first group that takes it; the
/// last group takes all.
fn groups(config: &RunConfig) -> Vec<Group> {
    let rule = update_rule(config);
    let states = build::state_dtype(config);
    let all = Group { rule, rate_factor: 1.0, states, takes: |_, _| true };
    let rate_factor = config.lora.b_learning_rate as f32;
    match config.tuning.lora() {
        Some(_) if rate_factor != 1.0 => {
            vec![Group { rule, rate_factor, states, takes: |name, _| Lora::is_b(name) }, all]
        }
        _ => vec![all],
    }
}

/// Returns the index of a parameter's group.
fn group_of(groups: &[Group], parameter: &str, shape: Shape) -> usize {
    groups.iter().position(|group| (group.takes)(parameter, shape)).unwrap_or(groups.len() - 1)
}

impl Group {
    /// Returns the options of the group, without slots. `firsts` has the index of each slot's first element.
    fn options(&self, config: &RunConfig, firsts: &[usize]) -> GroupOptions {
        let states = StateOptions { dtype: self.states, seed: config.train.seed, firsts: firsts.to_vec() };
        GroupOptions { rule: self.rule, rate_factor: self.rate_factor, states, slots: Vec::new() }
    }
}

/// Returns the update rule of the configured optimizer.
fn update_rule(config: &RunConfig) -> UpdateRule {
    let optim = &config.optim;
    let weight_decay = optim.weight_decay as f32;
    match optim.kind {
        OptimKind::AdamW => UpdateRule::AdamW {
            beta1: optim.beta1 as f32,
            beta2: optim.beta2 as f32,
            epsilon: optim.epsilon as f32,
            weight_decay,
        },
        OptimKind::Lion => {
            UpdateRule::Lion { beta1: optim.beta1 as f32, beta2: optim.beta2 as f32, weight_decay }
        }
        OptimKind::Sgd => UpdateRule::Sgd { momentum: optim.momentum as f32, weight_decay },
    }
}

/// Returns the state arrays that the optimizer keeps for a parameter, other than its master weights.
pub fn state_arrays(config: &RunConfig, parameter: &str, shape: Shape) -> Vec<StateArray> {
    let groups = groups(config);
    let group = &groups[group_of(&groups, parameter, shape)];
    StateArray::all(&group.rule, parameter, group.states)
}

/// Builds the optimizer for this rank's shards of the parameters, stage by stage, with the initial master
/// weights. If the optimizer state is sharded, the first update call covers the group that the next forward
/// pass needs first. The second device is the host pool for offloaded data.
pub fn build(
    (device, host): (&Device, Option<&Device>),
    config: &RunConfig,
    parts: &[StagePart],
) -> Result<Optimizer> {
    let groups = groups(config);
    let host = host.filter(|_| config.optim.offload);
    let mut slots = Vec::new();
    let mut firsts = Vec::new();
    let mut members = Vec::new();
    let mut owners = Vec::new();
    for part in parts {
        for owned in part.reduction.shards().own() {
            firsts.push(owned.shard.range.start);
            owners.push((&part.model, owned.parameter));
            let nn::Parameter { name, weight, decay, .. } = &part.model.parameters().list()[owned.parameter];
            let decay = *decay || config.optim.decay_norms;
            members.push(group_of(&groups, name, weight.shape()));
            slots.push(Slot { name: name.clone(), weight: part.own_weight(owned)?, decay });
        }
    }
    let first = parts.first().filter(|part| part.weights.is_none());
    let first = first.map_or(0, |part| first_pieces(&part.reduction));
    let mut options: Vec<_> = groups.iter().map(|group| group.options(config, &firsts)).collect();
    members.into_iter().enumerate().for_each(|(slot, group)| options[group].slots.push(slot));
    let optimizer = Optimizer::with_groups((device, host), &slots, &options, first)?;
    optimizer.fill_masters(|slot, first, master| -> Result<()> {
        let (model, parameter) = owners[slot];
        let first = firsts[slot] + first;
        Ok(model.parameters().fill_initial(ParameterId(parameter), first, master)?)
    })?;
    Ok(optimizer)
}

/// Returns the number of this rank's shards up to the last one in the group of weights that is gathered
/// first.
fn first_pieces(reduction: &GradientReduction) -> usize {
    let group = reduction.weight_groups().first().filter(|_| reduction.shards().is_sharded());
    let Some(last) = group.and_then(|group| group.iter().max()) else { return 0 };
    reduction.shards().own().partition_point(|owned| owned.parameter <= *last)
}
