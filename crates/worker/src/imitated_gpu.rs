//! Test setups on a Meta device that imitates a GPU.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

use std::path::Path;

use config::RunConfig;
use device::{Description, Kind};
use nn::Stage;

use crate::dataset::DataScope;
use crate::error::WorkerError;
use crate::setup::Setup;
use crate::setup::placement::Placement;

/// Builds the setup of a model in equal stages, one for each pipeline rank, with a long allocator history.
pub(crate) fn setup(text: &str, sets: &[&str]) -> Setup {
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    vision::register().unwrap();
    let config = RunConfig::parse(text, "test.toml", Path::new("/"), &sets).unwrap();
    let gpu = Description { kind: Kind::Cuda, compute_capability: (9, 0), ..Description::host() };
    let stages = |config: &RunConfig| {
        let model_layers = config.layers();
        let ranks = config.parallel.pipeline;
        (0..ranks)
            .map(|rank| Stage {
                layers: model_layers * rank / ranks..model_layers * (rank + 1) / ranks,
                model_layers,
            })
            .collect()
    };
    let setup = Setup::new(config, Placement::Meta(gpu), DataScope::Shapes, |config, _, _| {
        Ok::<_, WorkerError>(stages(config))
    });
    Setup { history: 1 << 20, ..setup.unwrap() }
}
