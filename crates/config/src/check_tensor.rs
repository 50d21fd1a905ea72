//! Checks of tensor parallelism, which divides layers over ranks.

use keys::{Error, RawValues};

use crate::lanes::divisors_around;
use crate::run_config::RunConfig;
use crate::sections::{Parallel, Train};

/// Checks that the model divides into `tensor_lanes`, and these lanes over ranks.
pub(crate) fn check_tensor_lanes(raw: &RawValues, config: &RunConfig) -> Result<(), Error> {
    let ranks = config.parallel.tensor;
    let lanes = config.parallel.tensor_lanes;
    let refused = |other: &'static str, why: String| {
        let reason = format!("parallel.tensor_lanes = {lanes}: {why}");
        Err(raw.conflict(&[Parallel::tensor_lanes, Parallel::tensor, other], reason))
    };
    if !lanes.is_multiple_of(ranks) {
        let near = divisors_around(ranks, lanes);
        return refused(
            Parallel::tensor,
            format!(
                "parallel.tensor = {ranks} does not divide it: use {near}, or lanes that are a multiple of {ranks}"
            ),
        );
    }
    if ranks > 1 && !(lanes / ranks).is_power_of_two() {
        let each = lanes / ranks;
        let why =
            format!("parallel.tensor = {ranks} leaves {each} lanes to a rank, which is no power of two");
        return refused(Parallel::tensor, why);
    }
    if lanes == 1 {
        return Ok(());
    }
    if config.model.placements().is_empty() {
        let key = "model.kind";
        return refused(key, format!("{key}: the layers of this kind of model cannot be divided"));
    }
    let dimensions = config.model.divided_dimensions(lanes);
    if let Some((key, size)) = dimensions.iter().find(|(_, size)| !size.is_multiple_of(lanes)) {
        return refused(key, format!("it does not divide {key} = {size}"));
    }
    let rows = config.micro_batch_rows() * config.model.examples().units();
    if !rows.is_multiple_of(4 * lanes) {
        let why = format!("the {rows} rows of a micro-batch are no multiple of {}", 4 * lanes);
        return refused(Train::micro_batch_size, why);
    }
    Ok(())
}
