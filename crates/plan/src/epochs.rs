//! Converts `train.epochs` to steps, which depends on the number of samples in the data.

use std::fmt;

use config::{DataKind, RunConfig};
use serde::Serialize;
use telemetry::units::{counted, grouped};

/// The length of a run that is configured in epochs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Epochs {
    /// Number of epochs.
    pub epochs: f64,
    /// Number of samples in an epoch: sequences (packed if the run packs), preference pairs or images.
    pub samples: u64,
    /// Number of steps.
    pub steps: u64,
    #[serde(skip)]
    unit: &'static str,
}

impl Epochs {
    /// Sets the number of steps from `train.epochs` and the samples of an epoch. Returns the epochs too;
    /// `None` if the run is not configured in epochs.
    pub(crate) fn count(config: RunConfig, samples: Option<u64>) -> (RunConfig, Option<Self>) {
        let Some(samples) = samples.filter(|_| config.train.epochs > 0.0) else { return (config, None) };
        let config = config.with_epoch_of(samples);
        let unit = match config.data.kind {
            DataKind::Preference => "pair",
            DataKind::Images => "image",
            _ => "sequence",
        };
        let epochs = Epochs { epochs: config.train.epochs, samples, steps: config.train.steps, unit };
        (config, Some(epochs))
    }
}

impl fmt::Display for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Epochs { epochs, samples, steps, unit } = self;
        let epochs = if *epochs == 1.0 { "1 epoch".to_owned() } else { format!("{epochs} epochs") };
        write!(f, "{epochs} of {}: {} steps", counted(*samples, unit), grouped(*steps))
    }
}
