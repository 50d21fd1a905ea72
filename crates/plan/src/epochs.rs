//! The steps of `train.epochs`, which depend on the number of sequences in the data.

use std::fmt;

use config::{DataKind, RunConfig};
use serde::Serialize;
use telemetry::units::{counted, grouped};

/// The length of a run whose epochs are counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Epochs {
    /// Number of epochs.
    pub epochs: f64,
    /// Number of sequences, pairs of answers or images in an epoch, packed if the run packs them.
    pub samples: u64,
    /// Number of steps.
    pub steps: u64,
    #[serde(skip)]
    unit: &'static str,
}

impl Epochs {
    /// Returns the configuration with the steps of its epochs of so many samples, and how many they are.
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
