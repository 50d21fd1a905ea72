//! Tests of the keys that offload data to host memory.

use super::*;

#[test]
fn offloaded_weights_bring_their_state_with_them() {
    let state = |sets: &[&str]| parse(LEAST, sets).unwrap().optim.offload;
    assert!(!state(&[]) && state(&["memory.offload_weights=true"]) && state(&["optim.offload=true"]));
    let config = parse(LEAST, &["memory.offload_weights=true"]).unwrap();
    assert!(config.gathers_weights() && config.weight_owners() == 1 && !config.parallel.shards_weights());
}

#[test]
fn impossible_ways_to_offload_are_refused() {
    for (sets, expected) in [
        (
            &["memory.offload=activations"][..],
            "--set memory.offload=activations: memory.offload = \"activations\" keeps the inputs of \
             recomputed layers in host memory, and memory.recompute is \"none\": set it to \"block\", \
             \"auto\" or a number of segments",
        ),
        (
            &["memory.offload_weights=true", "optim.offload=false"],
            "--set optim.offload=false: memory.offload_weights = true needs optim.offload = true: an update \
             brings weights and their state to the device together",
        ),
        (
            &["parallel.zero_stage=1", "parallel.data=2", "memory.offload_weights=true"],
            "--set parallel.zero_stage=1: memory.offload_weights = true streams weights of which a rank \
             updates all or keeps its shard, and with parallel.zero_stage = 1 ranks gather them after each \
             update: use 0 or 3",
        ),
    ] {
        assert_eq!(refusal(LEAST, sets), expected);
    }
    assert_eq!(
        refusal("[optim]\noffload_optimizer = true\n", &[]),
        "quick.toml:2: unknown key optim.offload_optimizer: did you mean optim.offload?"
    );
}
