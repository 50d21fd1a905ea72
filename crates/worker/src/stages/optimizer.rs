//! The optimizer of a rank, built from the settings of each of its parameters.

use config::RunConfig;
use device::Device;
use nn::ParameterId;
use optim::{GroupOptions, Optimizer, Slot, StateArray, StateOptions};
use parallel::data::GradientReduction;
use parallel::pipeline::StagePart;

use crate::error::Result;
use crate::setup::blueprint::Entry;
use crate::stages::parameter_optim::ParameterOptim;

/// Returns the state arrays that the optimizer keeps for a parameter, other than its master weights.
pub fn state_arrays(config: &RunConfig, entry: &Entry) -> Vec<StateArray> {
    let ParameterOptim { rule, states, .. } = ParameterOptim::new(config, entry);
    StateArray::all(&rule, &entry.name, states)
}

/// Builds the optimizer for this rank's shards of the parameters, stage by stage, with the initial master
/// weights. If the optimizer state is sharded, the first update call covers the group that the next forward
/// pass needs first. The second device is the host pool for offloaded data.
pub fn build(
    (device, host): (&Device, Option<&Device>),
    config: &RunConfig,
    parts: &[StagePart],
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
    let launches = launches(config, &optims, &firsts);
    let optimizer = Optimizer::with_groups((device, host), &slots, &launches, first)?;
    optimizer.fill_masters(|slot, first, master| -> Result<()> {
        let (model, parameter) = owners[slot];
        let first = firsts[slot] + first;
        Ok(model.parameters().fill_initial(ParameterId(parameter), first, master)?)
    })?;
    Ok(optimizer)
}

/// Returns the groups of slots that one launch updates. `optims` has the settings of each slot, `firsts` the
/// index of its first element. A rank without slots has an empty group, which counts updates.
fn launches(config: &RunConfig, optims: &[ParameterOptim], firsts: &[usize]) -> Vec<GroupOptions> {
    let mut launches: Vec<(ParameterOptim, Vec<usize>)> = Vec::new();
    for (slot, optim) in optims.iter().enumerate() {
        match launches.iter_mut().find(|(other, _)| optim.is_updated_with(other)) {
            Some((_, slots)) => slots.push(slot),
            None => launches.push((*optim, vec![slot])),
        }
    }
    if launches.is_empty() {
        launches.push((ParameterOptim::default_of(config), Vec::new()));
    }
    let options = |(optim, slots): (ParameterOptim, Vec<usize>)| {
        let ParameterOptim { rule, rate_factor, states: dtype, .. } = optim;
        let states = StateOptions { dtype, seed: config.train.seed, firsts: firsts.to_vec() };
        GroupOptions { rule, rate_factor, states, slots }
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
