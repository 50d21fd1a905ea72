//! Resolves defaults that depend on the device and the data, and the number of steps of epochs.

use config::{RunConfig, SizedContext};
use device::Description;
use worker::dataset::{self, DataScope, SampleSizes};
use worker::{Placement, Setup};

use crate::epochs::Epochs;
use crate::error::Result;
use crate::prepare::prepare_known;

/// A configuration with resolved defaults, and facts read from its data.
pub(crate) struct Resolved {
    /// The configuration.
    pub(crate) config: RunConfig,
    /// The chosen `model.context`, if the samples determined it.
    pub(crate) context: Option<SizedContext>,
    /// Epochs that determine the number of steps, if configured.
    pub(crate) epochs: Option<Epochs>,
    /// Sizes of the samples, if the data was read.
    samples: Option<SampleSizes>,
}

/// Returns the configuration for ranks on `device`. Unless `model.context` is set, it is chosen from the
/// samples' lengths, which are then read; the choice is returned too.
///
/// # Errors
/// The data is invalid; the error names its key.
pub fn resolve(config: RunConfig, device: &Description) -> Result<(RunConfig, Option<SizedContext>)> {
    let config = config.on_device(device);
    Ok(match dataset::sample_lengths(&config)? {
        Some(lengths) => config.sized_by(lengths),
        None => (config, None),
    })
}

impl Resolved {
    /// Like [`resolve`], and converts epochs to steps. Reads the data only if it determines a value.
    ///
    /// # Errors
    /// The data is invalid; the error names its key.
    pub(crate) fn new(config: RunConfig, device: &Description) -> Result<Self> {
        let (config, context) = resolve(config, device)?;
        if context.is_none() && config.train.epochs == 0.0 && !config.data.group_by_length {
            return Ok(Resolved { config, context, epochs: None, samples: None });
        }
        let dataset = dataset::open(&config, DataScope::All)?;
        let (config, epochs) = Epochs::count(config, dataset.source.training_sequences());
        Ok(Resolved { config, context, epochs, samples: Some(dataset.sample_sizes()) })
    }

    /// Returns the setup for a plan; reads no data.
    ///
    /// # Errors
    /// As for [`prepare_known`].
    pub(crate) fn setup(&self, placement: Placement) -> Result<Setup> {
        self.setup_of(self.config.clone(), placement)
    }

    /// Like [`Resolved::setup`], with other settings for the same data.
    ///
    /// # Errors
    /// As for [`prepare_known`].
    pub(crate) fn setup_of(&self, config: RunConfig, placement: Placement) -> Result<Setup> {
        prepare_known(config, placement, self.samples.as_ref())
    }
}
