//! Matrices of hidden layers that Muon updates, and the ranks that orthogonalise them.

use std::collections::BTreeMap;

use collective::RankGrid;
use config::RunConfig;
use device::Device;
use nn::Parameter;
use parallel::data::{MatrixOwners, MatrixParameter, MatrixPart, OptimizerShards, StageRanks};
use parallel::pipeline::StagePart;
use tensor::ops::orthogonalise::NewtonSchulz;

use crate::error::Result;
use crate::stages::parameter_optim::{ParameterOptim, ParameterRule};

/// Matrices with the same settings.
#[derive(Debug)]
pub struct MatrixGroup {
    /// The settings.
    pub optim: ParameterOptim,
    /// The owners of the matrices.
    pub owners: MatrixOwners,
}

/// Returns the groups of matrices of a rank with the stages `parts`, and allocates the workspace of each. All
/// ranks with these stages return the same groups.
pub fn groups(
    device: &Device,
    config: &RunConfig,
    grid: &RankGrid,
    parts: &[StagePart],
) -> Result<Vec<MatrixGroup>> {
    let mut groups: Vec<(ParameterOptim, Vec<MatrixParameter>)> = Vec::new();
    let mut first_slot = 0;
    for part in parts {
        let shards = part.reduction.shards();
        for parameters in by_name(part) {
            let optim = ParameterOptim::new(config, parameters[0].1);
            if !matches!(optim.rule, ParameterRule::Muon { .. }) {
                continue;
            }
            let group = match groups.iter().position(|(other, _)| optim.is_updated_with(other)) {
                Some(group) => group,
                None => {
                    groups.push((optim, Vec::new()));
                    groups.len() - 1
                }
            };
            groups[group].1.push(matrix(&parameters, shards, first_slot));
        }
        first_slot += shards.own().len();
    }
    let shards = parts.first().map_or(1, |part| part.reduction.shards().ranks());
    let ranks = StageRanks::new(grid, config.parallel.replica_axes(), shards);
    let rules = (rules(config), config.optim.muon_scale);
    let with_owners = |(optim, matrices): (ParameterOptim, Vec<MatrixParameter>)| {
        let owners = MatrixOwners::new(device, &ranks, &matrices, rules)?;
        Ok(MatrixGroup { optim, owners })
    };
    groups.into_iter().map(with_owners).collect()
}

/// Returns the trained parameters of a stage, the parts of each together, with their indices.
fn by_name(part: &StagePart) -> Vec<Vec<(usize, &Parameter)>> {
    let mut positions = BTreeMap::new();
    let mut all: Vec<Vec<_>> = Vec::new();
    let list = part.model.parameters().list().iter().enumerate();
    for (index, parameter) in list.filter(|(_, parameter)| parameter.trained) {
        let position = *positions.entry(parameter.name.as_str()).or_insert(all.len());
        match all.get_mut(position) {
            Some(parts) => parts.push((index, parameter)),
            None => all.push(vec![(index, parameter)]),
        }
    }
    all
}

/// Describes a matrix parameter by its parts on this rank, whose slots are numbered from `first_slot` on.
fn matrix(
    parameters: &[(usize, &Parameter)],
    shards: &OptimizerShards,
    first_slot: usize,
) -> MatrixParameter {
    let part = |(index, _): &(usize, &Parameter)| {
        let ranges = (0..shards.ranks()).map(|rank| shards.range(rank, *index)).collect();
        let slot = shards.own().iter().position(|owned| owned.parameter == *index);
        MatrixPart { ranges, slot: slot.map(|slot| first_slot + slot) }
    };
    let Parameter { matrices, sharding, .. } = parameters[0].1;
    let parts = parameters.iter().map(part).collect();
    MatrixParameter { matrices: matrices.clone(), sharding: sharding.clone(), parts }
}

fn rules(config: &RunConfig) -> NewtonSchulz {
    let mut written = config.optim.muon_coefficients.iter();
    let coefficients = std::array::from_fn(|_| written.next().copied().unwrap_or_default() as f32);
    NewtonSchulz { coefficients, ..NewtonSchulz::default() }
}
