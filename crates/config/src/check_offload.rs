//! Checks of the keys that offload data to host memory.

use keys::{Error, RawValues};

use crate::choices::{OffloadPolicy, RecomputePolicy};
use crate::run_config::RunConfig;
use crate::sections::{Memory, Optim, Parallel};

/// Refuses to offload activations without recomputation, or weights whose update needs them on the device.
pub(crate) fn check_offload(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let memory = &config.memory;
    if memory.offload == OffloadPolicy::Activations && memory.recompute == RecomputePolicy::None {
        let reason =
            "memory.offload = \"activations\" keeps the inputs of recomputed layers in host memory, and \
                      memory.recompute is \"none\": set it to \"block\", \"auto\" or a number of segments"
                .to_owned();
        return Err(raw.conflict(&[Memory::offload, Memory::recompute], reason));
    }
    check_weights(raw, config)
}

fn check_weights(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    if !config.memory.offload_weights {
        return Ok(());
    }
    let parallel = &config.parallel;
    if !config.optim.offload {
        let reason =
            "memory.offload_weights = true needs optim.offload = true: an update brings weights and \
                      their state to the device together"
                .to_owned();
        return Err(raw.conflict(&[Optim::offload, Memory::offload_weights], reason));
    }
    if parallel.shards_optimizer() && parallel.owners() > 1 && !parallel.shards_weights() {
        let reason = format!(
            "memory.offload_weights = true streams weights of which a rank updates all or keeps its shard, \
             and with parallel.zero_stage = {} ranks gather them after each update: use 0 or 3",
            parallel.zero_stage
        );
        return Err(raw.conflict(&[Parallel::zero_stage, Memory::offload_weights], reason));
    }
    Ok(())
}
