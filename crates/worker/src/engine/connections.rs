//! Connections between ranks, and peer access between GPUs.

use std::time::Duration;

use collective::{
    Axis, Collective, Communicator, GridGroups, PeerAccess, PeerAccessOptions, RankGrid, RankTree, SumKernels,
};
use device::{Backend, DType, Device};
use parallel::data::{DataCollectives, SharedTensors, matrix_peers};
use parallel::pipeline::{StagePart, stage_uses};
use tensor::Tensor;
use tensor::ops::tree::{self, TreeKernel};

use crate::error::{Result, WorkerError};
use config::RunConfig;

/// Connects all ranks over their GPUs, shared or not, and along each axis of the grid. Ranks on the CPU are
/// already connected.
pub(crate) fn connect(
    mut communicator: Communicator,
    device: &Device,
    config: &RunConfig,
    grid: RankGrid,
) -> Result<GridGroups> {
    if shares_gpu(device, config) {
        // Sharing takes no device memory, and the account would include what other ranks take meanwhile.
        return divided(communicator.over_shared_gpu(device)?, config, grid);
    }
    if device.is_cuda_like() {
        let timeout = Duration::from_secs(config.parallel.timeout_seconds);
        communicator =
            device.connecting(|| Ok::<_, WorkerError>(communicator.over_nccl(device, timeout)?))?;
    }
    device.connecting(|| divided(communicator, config, grid))
}

/// Splits off the process groups of a grid, and the group of ranks that share state.
pub(crate) fn divided(communicator: Communicator, config: &RunConfig, grid: RankGrid) -> Result<GridGroups> {
    let mut groups = GridGroups::new(communicator, grid)?;
    if let [Axis::Data, others @ ..] = config.parallel.replica_axes()
        && !others.is_empty()
    {
        groups.join(Axis::Data, others)?;
    }
    if config.parallel.shards_gradients() {
        groups.divide(Axis::Data, config.parallel.owners())?;
    }
    Ok(groups)
}

/// Establishes the connections for all communication of a step, so that nothing is connected or loaded later,
/// and records their device memory.
///
/// `parts` are the rank's stages. `peer_access`: whether ranks along [`Axis::Data`] can access each other's
/// memory. Returns whether these ranks can send each other any tensor without a new connection.
pub(crate) fn warm_up(
    groups: &mut GridGroups,
    device: &Device,
    config: &RunConfig,
    parts: &[StagePart],
    peer_access: bool,
) -> Result<bool> {
    let reduction = config.parallel.reduction;
    let zero_stage = config.parallel.sharding_stage();
    let gathers = |parameters: &nn::Parameters| {
        !parameters.statistics().is_empty() || !parameters.expert_loads().is_empty()
    };
    let statistics = parts.iter().any(|part| gathers(part.model.parameters()));
    let dtype = config.precision.gradients;
    let even = config.reduction_assignment().is_even();
    let data = DataCollectives { reduction, zero_stage, dtype, peer_access, statistics, even };
    let data = (Axis::Data, data.uses(config.parallel.replicas()));
    let mut world = stage_uses(groups.grid());
    if config.optim.uses_muon() {
        world.extend(matrix_peers(groups.grid()));
    }
    let lanes = shared_uses(groups.grid(), Axis::Tensor);
    if !lanes.is_empty() {
        // Chunk sums of the norm.
        world.push(Collective::all_reduce(DType::F32));
    }
    let lanes = (Axis::Tensor, lanes);
    let pieces = (Axis::Context, shared_uses(groups.grid(), Axis::Context));
    if shares_gpu(device, config) {
        groups.warm_up(world, &[data, lanes, pieces])?;
        return Ok(true);
    }
    let has_peers = data.1.iter().any(|used| used.peer_rank().is_some());
    device.connecting(|| Ok::<_, WorkerError>(groups.warm_up(world, &[data, lanes, pieces])?))?;
    Ok(has_peers || !device.is_cuda_like())
}

/// Returns the collectives of tensor or context parallelism along `axis`: gathers of rows, statistics, keys
/// and values, and exchanges for sums.
fn shared_uses(grid: &RankGrid, axis: Axis) -> Vec<Collective<()>> {
    match grid.size(axis) {
        1 => Vec::new(),
        ranks => (0..ranks).map(Collective::peer).chain([Collective::all_gather()]).collect(),
    }
}

/// Returns whether the ranks share a GPU, or imitate ranks that do.
fn shares_gpu(device: &Device, config: &RunConfig) -> bool {
    device.is_cuda_like() && config.parallel.shares_gpu()
}

/// Returns whether all ranks that sum gradients are on one host. A host has `peers` GPUs with access to each
/// other's memory.
fn are_peers(groups: &GridGroups, config: &RunConfig, peers: usize) -> bool {
    let group = groups.grid().group_over(config.parallel.replica_axes()).ranks;
    let host = |rank: &usize| rank.checked_div(peers);
    let first = group.first().and_then(host);
    first.is_some() && group.iter().all(|rank| host(rank) == first)
}

/// Enables peer access between GPUs of one host that hold the same `parts`. They then sum and gather through
/// it. Logs the reason if they cannot. Returns whether peer access is enabled.
pub(crate) fn share(
    groups: &mut GridGroups,
    device: &Device,
    parts: &[StagePart],
    config: &RunConfig,
) -> Result<bool> {
    let Some(method) = config.parallel.peer_access else { return Ok(false) };
    let mut shared = SharedTensors::default();
    for part in parts {
        shared.extend(part.reduction.shared(part.model.parameters())?);
    }
    let imitates = device.is_meta() && device.is_cuda_like();
    let is_gpu = device.backend() == Backend::Cuda || imitates;
    if !is_gpu || shared.is_empty() || shares_gpu(device, config) {
        // On one GPU a sum in place gains nothing, and its kernels would wait for those of other ranks.
        return Ok(false);
    }
    let dtype = config.precision.gradients;
    let has_kernel = |tree: &RankTree| TreeKernel::find(dtype, tree.tree()).is_some();
    let added = |part: &StagePart| part.reduction.rank_tree().is_some_and(has_kernel);
    if !parts.iter().all(added) {
        if groups.world().rank() == 0 {
            tracing::info!(
                "gradients are summed over NCCL: the lanes of the ranks are more subtrees than the {} that a \
                 kernel adds",
                tree::MOST_PARTS
            );
        }
        return Ok(false);
    }
    // Memory is not mapped while work is running.
    device.synchronize()?;
    let blocks = config.parallel.peer_blocks;
    let layout = shared.layout();
    let options = PeerAccessOptions { blocks, method, sums: Some(SumKernels::OF_TREES), layout };
    let regions: Vec<_> = shared.list().map(Tensor::region).collect();
    let group = groups.along(Axis::Data)?;
    if imitates && !are_peers(groups, config, device.description().peers) {
        return Ok(false);
    }
    let sharing = device.connecting(|| Ok::<_, WorkerError>(group.share(&regions, options)?))?;
    match &sharing {
        PeerAccess::Denied(why) if group.rank() == 0 => {
            tracing::info!("gradients are summed over NCCL: GPUs cannot access each other's memory ({why})");
        }
        PeerAccess::Granted => tracing::debug!("GPUs sum gradients in each other's memory"),
        PeerAccess::Denied(_) => {}
    }
    Ok(matches!(sharing, PeerAccess::Granted))
}
