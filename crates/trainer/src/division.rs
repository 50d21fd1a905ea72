//! Which layers each stage of a run's pipeline has.

use device::Description;
use nn::Stage;
use parallel::pipeline::{Division, DivisionError, LayerBytes, LayerCosts, PartBytes, loads};

use crate::blueprint;
use crate::build::Dataset;
use crate::config::{self, RunConfig};
use crate::error::{Result, TrainError};
use crate::measure;

/// The stages of a run, in order. What layers take is measured on Meta, so that every rank comes to the same division.
/// Errors: a division that cannot be, data that cannot be read.
pub(crate) fn stages(config: &RunConfig, dataset: &Dataset, description: &Description) -> Result<Vec<Stage>> {
    let (layers, stages) = (config.layers(), config.stages());
    if stages == 1 {
        return Ok(vec![Stage::whole(layers)]);
    }
    let division = match &config.parallel.division {
        config::Division::Layers(counts) => Division::explicit(layers, stages, counts),
        config::Division::Fastest => {
            let costs = measure::layers(config, dataset, description)?;
            let layers = costs.iter().map(|layer| layer.cost).collect();
            // What comes before and after the layers is measured with the first and the last.
            Division::fastest(&LayerCosts { layers, first: 0, last: 0 }, stages)
        }
        config::Division::Smallest => {
            let measured = measure::layers(config, dataset, description)?;
            let crossing = measured.iter().map(|layer| layer.output).max().unwrap_or(0);
            let layers = measured.iter().map(|layer| layer.bytes).collect();
            let none = PartBytes::default();
            let bytes = LayerBytes { layers, first: none, last: none, crossing };
            Division::smallest(&bytes, &loads(&blueprint::schedule(config)?).stages)
        }
    };
    let refused = |error: DivisionError| TrainError::Refused(format!("parallel.division: {error}"));
    Ok(division.map_err(refused)?.stages())
}
