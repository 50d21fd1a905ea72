//! Checks of context parallelism, which divides sequences over ranks.

use keys::{Error, RawValues};

use crate::run_config::RunConfig;
use crate::sections::{Parallel, Train};

/// Checks that sequences divide into `context_lanes` pieces, and the pieces over ranks.
pub(crate) fn check_context_lanes(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let ranks = config.parallel.context;
    let lanes = config.parallel.context_lanes;
    let refused = |other: &'static str, why: String| {
        let reason = format!("parallel.context_lanes = {lanes}: {why}");
        Err(raw.conflict(&[Parallel::context_lanes, Parallel::context, other], reason))
    };
    let no_power = |number: usize| {
        let above = number.next_power_of_two();
        (above != number).then(|| format!("it is no power of two: use {} or {above}", above / 2))
    };
    if let Some(why) = no_power(ranks) {
        return Err(raw.conflict(&[Parallel::context], format!("parallel.context = {ranks}: {why}")));
    }
    if let Some(why) = no_power(lanes) {
        return refused(Parallel::context, why);
    }
    if ranks > 1 && !lanes.is_multiple_of(2 * ranks) {
        let why = format!(
            "parallel.context = {ranks} needs a power of two that {} divides, because pieces are dealt from \
             both ends of a sequence",
            2 * ranks
        );
        return refused(Parallel::context, why);
    }
    if lanes == 1 {
        return Ok(());
    }
    if config.model.placements().is_empty() {
        let key = "model.kind";
        return refused(key, format!("{key}: this kind of model has no sequences that can be divided"));
    }
    let tokens = config.model.examples().units();
    if !tokens.is_multiple_of(lanes) {
        return refused("model.context", format!("it does not divide model.context = {tokens}"));
    }
    if let Some((key, width)) =
        config.model.widest_convolution().filter(|(_, width)| tokens / lanes + 1 < *width)
    {
        let why = format!(
            "a convolution of {key} = {width} reads {} tokens before its own, and a piece has {}",
            width - 1,
            tokens / lanes
        );
        return refused(key, why);
    }
    check_shared_state(raw, config)?;
    let rows = config.train.micro_batch_size * tokens / lanes;
    let parts = 4 * config.parallel.tensor_lanes;
    if parts > 4 && !rows.is_multiple_of(parts) {
        let why = format!("the {rows} rows of a piece of a micro-batch are no multiple of {parts}");
        return refused(Train::micro_batch_size, why);
    }
    Ok(())
}

/// Checks that context ranks can shard state: their parts of a lane's gradient must be subtrees of the tree
/// of lanes.
fn check_shared_state(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let parallel = &config.parallel;
    let parts = config.parallel.gradient_parts();
    if parts == 1 {
        return Ok(());
    }
    let lanes = parallel.lanes;
    let micro_batches = config.train.micro_batches();
    if lanes != micro_batches {
        let reason = format!(
            "parallel.lanes = {lanes}: ranks that share sequences (parallel.context = {parts}) and state \
             (parallel.zero_stage = {}) need a lane for each of the {micro_batches} micro-batches of a step: set \
             parallel.lanes = {micro_batches}, which decides the bits, on every grid",
            parallel.zero_stage
        );
        return Err(raw.conflict(&[Parallel::lanes, Parallel::zero_stage, Parallel::context], reason));
    }
    let owners = parallel.owners();
    let groups = parallel.replicas() / parallel.owners();
    if !owners.is_multiple_of(parts) || !lanes.is_multiple_of(groups) {
        let reason = format!(
            "parallel.shard = {owners}: with parallel.context = {parts}, a group is a multiple of {parts} ranks, \
             and the groups divide parallel.lanes = {lanes}"
        );
        return Err(raw.conflict(&[Parallel::shard, Parallel::context], reason));
    }
    Ok(())
}
