//! The defaults that a device and the data of a run decide, and the steps of its epochs.

use config::{RunConfig, SizedContext};
use device::Description;
use worker::dataset::{self, DataScope, SampleSizes};
use worker::{Placement, Setup};

use crate::epochs::Epochs;
use crate::error::Result;
use crate::prepare::prepare_known;

/// A configuration for ranks on a device, with what was read of its data.
pub(crate) struct Resolved {
    /// The configuration.
    pub(crate) config: RunConfig,
    /// The choice of `model.context`, if the samples decided it.
    pub(crate) context: Option<SizedContext>,
    /// The epochs that decide the steps, if they do.
    pub(crate) epochs: Option<Epochs>,
    /// The sizes of the samples, if the data was read.
    samples: Option<SampleSizes>,
}

/// Returns the configuration for ranks on `device`, with sequences that the samples of the data decide unless
/// `model.context` is written, and this choice. Reads the samples then.
///
/// # Errors
/// Wrong data, with its key.
pub fn resolve(config: RunConfig, device: &Description) -> Result<(RunConfig, Option<SizedContext>)> {
    let config = config.on_device(device);
    Ok(match dataset::sample_lengths(&config)? {
        Some(lengths) => config.sized_by(lengths),
        None => (config, None),
    })
}

impl Resolved {
    /// [`resolve`] with the steps of epochs. Reads the data where they or the samples decide a value.
    ///
    /// # Errors
    /// Wrong data, with its key.
    pub(crate) fn new(config: RunConfig, device: &Description) -> Result<Self> {
        let (config, context) = resolve(config, device)?;
        if context.is_none() && config.train.epochs == 0.0 && !config.data.group_by_length {
            return Ok(Resolved { config, context, epochs: None, samples: None });
        }
        let dataset = dataset::open(&config, DataScope::All)?;
        let (config, epochs) = Epochs::count(config, dataset.source.training_sequences());
        Ok(Resolved { config, context, epochs, samples: Some(dataset.sample_sizes()) })
    }

    /// Returns the setup of a plan, which reads no data.
    ///
    /// # Errors
    /// As for [`prepare_known`].
    pub(crate) fn setup(&self, placement: Placement) -> Result<Setup> {
        self.setup_of(self.config.clone(), placement)
    }

    /// [`Resolved::setup`] of the same data with other settings.
    ///
    /// # Errors
    /// As for [`prepare_known`].
    pub(crate) fn setup_of(&self, config: RunConfig, placement: Placement) -> Result<Setup> {
        prepare_known(config, placement, self.samples.as_ref())
    }
}
