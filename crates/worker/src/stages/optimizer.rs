//! The optimizer of a rank, built from the settings of each of its parameters.

use config::RunConfig;
use device::Device;
use nn::ParameterId;
use optim::{GroupOptions, MatrixGroupOptions, Optimizer, Slot, StateArray, StateOptions};
use parallel::data::GradientReduction;
use parallel::pipeline::StagePart;

use crate::error::Result;
use crate::setup::blueprint::Entry;
use crate::stages::matrices::MatrixGroup;
use crate::stages::parameter_optim::{ParameterOptim, ParameterRule};

/// Returns the state arrays that the optimizer keeps for a parameter, other than its master weights.
pub fn state_arrays(config: &RunConfig, entry: &Entry) -> Vec<StateArray> {
    let ParameterOptim { rule, states, .. } = ParameterOptim::new(config, entry);
    let mut arrays = StateArray::all(&rule.with_state(), &entry.name, states);
    arrays.extend((config.train.ema > 0.0).then(|| StateArray::average(&entry.name)));
    arrays
}

/// Builds the optimizer for this rank's shards of the parameters, stage by stage, with the initial master
/// weights. If the optimizer state is sharded, the first update call covers the group that the next
/// forward pass needs first, or all slots if there are `matrices`, which are updated after it. The second
/// device is the host pool for offloaded data.
pub fn build(
    (device, host): (&Device, Option<&Device>),
    config: &RunConfig,
    parts: &[StagePart],
    matrices: &[MatrixGroup],
) -> Result<Optimizer> {
    let host = host.filter(|_| config.optim.offload);
    let mut slots = Vec::new();
    let mut firsts = Vec::new();
    let mut optims = Vec::new();
    let mut owners = Vec::new();
    for part in parts {
        for owned in part.reduction.shards().own() {
            firsts.push(owned.shard.range.start);
            owners.push((&part.model, owned.parameter));
            let parameter = &part.model.parameters().list()[owned.parameter];
            let optim = ParameterOptim::new(config, parameter);
            let weight = part.own_weight(owned)?;
            slots.push(Slot { name: parameter.name.clone(), weight, decay: optim.decays });
            optims.push(optim);
        }
    }
    let first = parts.first().filter(|part| part.weights.is_none());
    let first = first.map_or(0, |part| first_pieces(&part.reduction));
    let first = if matrices.is_empty() { first } else { slots.len() };
    let launches = launches(config, &optims, &firsts);
    let matrices: Vec<_> =
        matrices.iter().filter_map(|group| matrix_options(config, group, &firsts)).collect();
    let optimizer = Optimizer::with_matrices((device, host), &slots, (&launches, &matrices), first)?;
    optimizer.fill_masters(|slot, first, master| -> Result<()> {
        let (model, parameter) = owners[slot];
        let first = firsts[slot] + first;
        Ok(model.parameters().fill_initial(ParameterId(parameter), first, master)?)
    })?;
    Ok(optimizer)
}

/// Returns the options of a group of matrices; `None` for another rule. `firsts` has the index of each slot's
/// first element.
fn matrix_options(config: &RunConfig, group: &MatrixGroup, firsts: &[usize]) -> Option<MatrixGroupOptions> {
    let MatrixGroup { optim, owners } = group;
    let ParameterRule::Muon { momentum, weight_decay } = optim.rule else { return None };
    let waves = owners.waves().map(<[usize]>::to_vec).collect();
    let states = state_options(config, optim, firsts);
    Some(MatrixGroupOptions { momentum, weight_decay, rate_factor: optim.rate_factor, states, waves })
}

fn state_options(config: &RunConfig, optim: &ParameterOptim, firsts: &[usize]) -> StateOptions {
    let seed = config.train.seed;
    StateOptions { dtype: optim.states, seed, firsts: firsts.to_vec(), average: config.train.ema > 0.0 }
}

/// Returns the groups of slots that one launch updates, without matrices. `optims` has the settings of
/// each slot, `firsts` the index of its first element. A rank without slots has an empty group, which
/// counts updates.
fn launches(config: &RunConfig, optims: &[ParameterOptim], firsts: &[usize]) -> Vec<GroupOptions> {
    let mut launches: Vec<(ParameterOptim, Vec<usize>)> = Vec::new();
    let is_element = |optim: &ParameterOptim| matches!(optim.rule, ParameterRule::Elements(_));
    for (slot, optim) in optims.iter().enumerate().filter(|(_, optim)| is_element(optim)) {
        match launches.iter_mut().find(|(other, _)| optim.is_updated_with(other)) {
            Some((_, slots)) => slots.push(slot),
            None => launches.push((*optim, vec![slot])),
        }
    }
    if launches.is_empty() {
        launches.push((ParameterOptim::default_of(config), Vec::new()));
    }
    let options = |(optim, slots): (ParameterOptim, Vec<usize>)| {
        let states = state_options(config, &optim, firsts);
        GroupOptions { rule: optim.rule.with_state(), rate_factor: optim.rate_factor, states, slots }
    };
    launches.into_iter().map(options).collect()
}

/// Returns the number of this rank's shards up to the last one in the group of weights that is gathered
/// first.
fn first_pieces(reduction: &GradientReduction) -> usize {
    let group = reduction.weight_groups().first().filter(|_| reduction.shards().is_sharded());
    let Some(last) = group.and_then(|group| group.iter().max()) else { return 0 };
    reduction.shards().own().partition_point(|owned| owned.parameter <= *last)
}
