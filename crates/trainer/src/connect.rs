//! How ranks come to reach each other: connections for what a step does, and each other's memory where GPUs have that.

use std::time::Duration;

use collective::{Communicator, DataPlane, Gather, PeerOptions, Sharing};
use device::{Backend, Device};
use parallel::RankGrid;
use parallel::data::uses;
use parallel::pipeline::{StagePart, stage_uses};

use crate::build;
use crate::config::{Peers, RunConfig};
use crate::error::Result;
use crate::parts;

/// The plane of the ranks that hold the same stages as this one; none where all ranks do.
pub(crate) type DataPlaneOfStage = Option<Box<dyn DataPlane>>;

/// Connects GPUs for everything that a step does between ranks, so that nothing is connected or loaded later, and notes
/// what that takes of the device. Ranks on the host are connected already.
pub(crate) fn connect(
    mut communicator: Communicator,
    device: &Device,
    config: &RunConfig,
    grid: &RankGrid,
) -> Result<(Communicator, DataPlaneOfStage)> {
    let parallel = &config.parallel;
    if device.is_cuda_like() {
        communicator = communicator.over_nccl(device, Duration::from_secs(parallel.timeout_seconds))?;
    }
    let (reduction, dtype) = (parts::reduction(config), build::gradient_dtype(config));
    let data_uses = uses(reduction, parallel.shard_optimizer, dtype, parallel.data);
    let (world_uses, mut data) = match (grid.data(), grid.pipeline()) {
        (_, 1) => (data_uses.clone(), None),
        (1, _) => (stage_uses(grid), Some(Communicator::solo().data)),
        _ => (stage_uses(grid), Some(communicator.divide(&grid.data_groups())?)),
    };
    if device.is_cuda_like() {
        communicator.data.warm_up(&world_uses)?;
        if let Some(data) = &mut data {
            data.warm_up(&data_uses)?;
        }
        device.note_communicators()?;
    }
    Ok((communicator, data))
}

/// Lets GPUs of one host sum and gather in each other's memory over `plane`, that of the ranks with the same `parts`, and
/// notes what that takes of the device; says why not where they cannot.
pub(crate) fn share(
    plane: &mut dyn DataPlane,
    device: &Device,
    parts: &[StagePart],
    config: &RunConfig,
) -> Result<()> {
    let gather = match config.parallel.peers {
        Peers::Kernel => Gather::Kernel,
        Peers::Copies => Gather::Copies,
        Peers::Off => return Ok(()),
    };
    let regions = parts.iter().flat_map(|part| part.reduction.shared(part.model.parameters()));
    let regions: Vec<_> = regions.collect();
    if device.backend() != Backend::Cuda || regions.is_empty() {
        return Ok(());
    }
    // Mapping must not meet work under way.
    device.synchronize()?;
    match plane.share(&regions, PeerOptions { blocks: config.parallel.peer_blocks, gather })? {
        Sharing::Apart(why) if plane.rank() == 0 => {
            tracing::info!("gradients go over NCCL: GPUs do not reach each other's memory ({why})");
        }
        Sharing::Direct => tracing::debug!("GPUs sum gradients in each other's memory"),
        Sharing::Apart(_) => {}
    }
    Ok(device.note_communicators()?)
}
