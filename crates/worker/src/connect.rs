//! How ranks come to reach each other: connections for what a step does, and each other's memory where GPUs have that.

use std::time::Duration;

use collective::{Communicator, DataPlane, PeerAccess, PeerAccessOptions, SumKernels};
use device::{Backend, Device};
use parallel::RankGrid;
use parallel::data::Uses;
use parallel::pipeline::{StagePart, stage_uses};
use tensor::ops::tree;

use crate::error::{Result, WorkerError};
use config::RunConfig;

/// The plane of the ranks that hold the same stages as this one; none where all ranks do.
pub(crate) type DataPlaneOfStage = Option<Box<dyn DataPlane>>;

/// Has GPUs meet, all of them and those that hold the same stages. Ranks on the host have met.
pub(crate) fn connect(
    mut communicator: Communicator,
    device: &Device,
    config: &RunConfig,
    grid: &RankGrid,
) -> Result<(Communicator, DataPlaneOfStage)> {
    let parallel = &config.parallel;
    if device.is_cuda_like() {
        let timeout = Duration::from_secs(parallel.timeout_seconds);
        communicator =
            device.connecting(|| Ok::<_, WorkerError>(communicator.over_nccl(device, timeout)?))?;
    }
    let data = device.connecting(|| divided(&mut communicator, grid))?;
    Ok((communicator, data))
}

/// The plane of the ranks with the same stages, divided from that of all; none where all have them.
pub(crate) fn divided(communicator: &mut Communicator, grid: &RankGrid) -> Result<DataPlaneOfStage> {
    Ok(match (grid.data(), grid.pipeline()) {
        (_, 1) => None,
        (1, _) => Some(Communicator::solo().data),
        _ => Some(communicator.divide(&grid.data_groups())?),
    })
}

/// Connects GPUs for everything that a step does between ranks, so that nothing is connected or loaded later, and notes
/// what that takes of the device. `direct`: those of `data`, or else all, reach each other's memory.
pub(crate) fn warm_up(
    communicator: &mut Communicator,
    data: &mut DataPlaneOfStage,
    device: &Device,
    config: &RunConfig,
    grid: &RankGrid,
    direct: bool,
) -> Result<()> {
    let (reduction, dtype) = (config.parallel.reduction, config.precision.gradients);
    let uses = Uses { reduction, sharded: config.parallel.shards_optimizer(), dtype, direct }.of(grid.data());
    device.connecting(|| {
        match data {
            None => communicator.data.warm_up(&uses)?,
            Some(data) => {
                communicator.data.warm_up(&stage_uses(grid))?;
                data.warm_up(&uses)?;
            }
        }
        Ok(())
    })
}

/// Lets GPUs of one host sum and gather in each other's memory over `plane`, that of the ranks with the same `parts`; says
/// why not where they cannot. Whether they do.
pub(crate) fn share(
    plane: &mut dyn DataPlane,
    device: &Device,
    parts: &[StagePart],
    config: &RunConfig,
) -> Result<bool> {
    let Some(method) = config.parallel.peer_access else { return Ok(false) };
    let regions = parts.iter().flat_map(|part| part.reduction.shared(part.model.parameters()));
    let regions: Vec<_> = regions.collect();
    if device.backend() != Backend::Cuda || regions.is_empty() {
        return Ok(false);
    }
    // Mapping must not meet work under way.
    device.synchronize()?;
    let sums = SumKernels { kernel: tree::kernel, blocks: tree::blocks, threads: tree::THREADS };
    let options = PeerAccessOptions { blocks: config.parallel.peer_blocks, method, sums: Some(sums) };
    let sharing = device.connecting(|| Ok::<_, WorkerError>(plane.share(&regions, options)?))?;
    match &sharing {
        PeerAccess::Denied(why) if plane.rank() == 0 => {
            tracing::info!("gradients go over NCCL: GPUs do not reach each other's memory ({why})");
        }
        PeerAccess::Granted => tracing::debug!("GPUs sum gradients in each other's memory"),
        PeerAccess::Denied(_) => {}
    }
    Ok(matches!(sharing, PeerAccess::Granted))
}
