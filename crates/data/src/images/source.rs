//! Provides micro-batches of images.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use philox::key_of_name;
use rayon::prelude::*;

use super::augment::{Draws, centered, training};
use super::mixup::{self, SHARES};
use super::normalisation::Normalisation;
use super::options::ImageOptions;
use super::picture::{Picture, invalid};
use super::split::{ImageSplit, ImageSubset};
use crate::batch::checked_shape;
use crate::{ArrayShape, BatchShape, Error, IGNORED, MicroBatch, MicroBatchId, Permutation, Source};

/// Provides micro-batches of images, decoded on all cores. Inputs are `u8` \[images, size, size, channels\].
/// Targets are `u32` \[images\], or with mixup \[images, 3\]: the class, the other class, and the first one's
/// share out of [`SHARES`].
#[derive(Debug)]
pub struct ImageSource {
    split: ImageSplit,
    options: ImageOptions,
    normalisation: Normalisation,
    order_key: [u32; 2],
    augment_key: [u32; 2],
    /// Names of the images skipped so far.
    skipped: Mutex<BTreeSet<String>>,
}

/// A sample: its pixels \[size, size, channels\], and its targets.
struct Sample {
    pixels: Vec<u8>,
    target: u32,
}

impl ImageSource {
    /// Returns a source for the images of `split`.
    ///
    /// # Errors
    /// A size is 0, options contradict each other, or the images have more classes than the model.
    pub fn new(split: ImageSplit, options: ImageOptions) -> Result<Self, Error> {
        let ImageOptions { channels, size, classes, .. } = options;
        checked_shape(options.micro_batch, size.saturating_mul(size).saturating_mul(channels))?;
        let fits = |values: &[f64]| values.len() == channels || values.len() == 1;
        if ![1, 3].contains(&channels) || !fits(&options.mean) || !fits(&options.deviation) {
            let mean = options.mean.len();
            let deviation = options.deviation.len();
            return Err(Error::BadChannels { channels, mean, deviation });
        }
        if split.classes() > classes {
            return Err(Error::TooManyClasses { folders: split.classes(), classes });
        }
        let each = |values: &[f64]| values.iter().copied().cycle().take(channels).collect();
        Ok(Self {
            normalisation: Normalisation { mean: each(&options.mean), deviation: each(&options.deviation) },
            order_key: key_of_name(options.seed, "data.images.order"),
            augment_key: key_of_name(options.seed, "data.images.augment"),
            split,
            options,
            skipped: Mutex::default(),
        })
    }

    /// Returns the training and validation images.
    #[must_use]
    pub fn split(&self) -> &ImageSplit {
        &self.split
    }

    /// Returns the number of images skipped so far because they could not be decoded.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the index, within the training images, of sample `sample`, which is counted over all epochs.
    fn index(&self, sample: u64) -> u64 {
        let count = self.split.training.len();
        Permutation::new(count, self.order_key, sample / count).at(sample % count)
    }

    /// Returns sample `sample` before mixup.
    fn training_sample(&self, sample: u64) -> Result<Sample, Error> {
        let draws = Draws { key: self.augment_key, sample };
        self.sample(&self.split.training, self.index(sample), |image| training(image, &self.options, draws))
    }

    /// Returns validation image `index`; beyond the last, a black image with an ignored target.
    fn validation_sample(&self, index: u64) -> Result<Sample, Error> {
        let ImageOptions { channels, size, .. } = self.options;
        if index >= self.split.validation.len() {
            return Ok(Sample { pixels: vec![0; size * size * channels], target: IGNORED });
        }
        self.sample(&self.split.validation, index, |image| centered(image, size))
    }

    /// Reads image `index`, or the next decodable one if invalid images are skipped. `show` crops it.
    fn sample(
        &self,
        part: &ImageSubset,
        index: u64,
        show: impl Fn(Picture) -> Option<Picture>,
    ) -> Result<Sample, Error> {
        let ImageOptions { channels, classes, .. } = self.options;
        let mut tried = 0;
        loop {
            let index = (index + tried) % part.len();
            let read = part.read(index, channels, classes).and_then(|(image, target)| match show(image) {
                Some(shown) => Ok(Sample { pixels: shown.pixels, target }),
                None => {
                    let path = part.path(index).unwrap_or_default();
                    Err(invalid(&path.display().to_string(), "it cannot be scaled"))
                }
            });
            tried += 1;
            match read {
                Err(error @ Error::BadImage { .. }) if self.options.skip_invalid && tried < part.len() => {
                    self.note(&error);
                }
                read => return read,
            }
        }
    }

    /// Logs an invalid image, once per image.
    fn note(&self, error: &Error) {
        let text = error.to_string();
        let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
        if skipped.insert(text.clone()) {
            tracing::warn!("{text}: skipped, {} so far", skipped.len());
        }
    }

    fn targets(&self) -> usize {
        if self.options.mixup > 0.0 { 3 } else { 1 }
    }

    fn target_extents(&self) -> Vec<usize> {
        let rows = self.options.micro_batch;
        if self.options.mixup > 0.0 { vec![rows, self.targets()] } else { vec![rows] }
    }

    /// Writes the samples to `out`. Each is (sample, class of its partner, its own share).
    fn write(&self, samples: &[(Sample, u32, u32)], out: &mut MicroBatch) {
        let ImageOptions { channels, size, micro_batch, .. } = self.options;
        let inputs = out.inputs.reset_u8(&[micro_batch, size, size, channels]);
        inputs.par_chunks_exact_mut(size * size * channels).zip(samples).for_each(|(input, (sample, ..))| {
            input.copy_from_slice(&sample.pixels);
        });
        let targets = out.targets.reset_u32(&self.target_extents());
        for (target, (sample, other, share)) in targets.chunks_exact_mut(self.targets()).zip(samples) {
            target.copy_from_slice(&[sample.target, *other, *share][..target.len()]);
        }
    }

    /// Blends each of `count` samples, from `first` on, with its partner.
    fn mixed(&self, first: u64, count: u64) -> Result<Vec<(Sample, u32, u32)>, Error> {
        // Whole pairs, of which those at the ends may reach beyond the micro-batch.
        let begin = first & !1;
        let end = (first + count).next_multiple_of(2);
        let whole = read_all(begin..end, |sample| self.training_sample(sample))?;
        let mixed = (first..first + count).into_par_iter().map(|sample| {
            let at = |sample: u64| &whole[(sample - begin) as usize];
            let own = at(sample);
            let other = at(mixup::partner(sample));
            let share = mixup::share(self.options.mixup, Draws { key: self.augment_key, sample });
            let mut pixels = own.pixels.clone();
            mixup::mix(&mut pixels, &other.pixels, share);
            (Sample { pixels, target: own.target }, other.target, share)
        });
        Ok(mixed.collect())
    }
}

/// Reads a range of samples on all cores.
fn read_all(
    samples: std::ops::Range<u64>,
    read: impl Fn(u64) -> Result<Sample, Error> + Sync + Send,
) -> Result<Vec<Sample>, Error> {
    let read: Vec<_> = samples.into_par_iter().map(read).collect();
    read.into_iter().collect()
}

/// Returns samples without mixup, each with the full share.
fn whole(samples: Vec<Sample>) -> Vec<(Sample, u32, u32)> {
    let alone = |sample: Sample| {
        let target = sample.target;
        (sample, target, SHARES)
    };
    samples.into_iter().map(alone).collect()
}

impl Source for ImageSource {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let count = self.options.micro_batch as u64;
        let first = number.wrapping_mul(count);
        let samples = match self.options.mixup > 0.0 {
            true => self.mixed(first, count)?,
            false => whole(read_all(first..first + count, |sample| self.training_sample(sample))?),
        };
        self.write(&samples, out);
        Ok(())
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let count = self.options.validation_micro_batches;
        let rows = self.options.micro_batch as u64;
        if index >= count {
            return Err(Error::NoSuchValidation { index, count });
        }
        let first = index * rows;
        let samples = read_all(first..first + rows, |sample| self.validation_sample(sample))?;
        self.write(&whole(samples), out);
        Ok(())
    }

    fn training_sequences(&self) -> Option<u64> {
        Some(self.split.training_images())
    }

    fn file_of(&self, id: MicroBatchId) -> Option<PathBuf> {
        let rows = self.options.micro_batch as u64;
        match id {
            MicroBatchId::Training(number) => self.split.training.path(self.index(number.wrapping_mul(rows))),
            MicroBatchId::Validation(index) => self.split.validation.path(index * rows),
            MicroBatchId::Pairs(_) => None,
        }
    }

    fn shape(&self) -> BatchShape {
        let ImageOptions { channels, size, micro_batch, .. } = self.options;
        BatchShape {
            inputs: ArrayShape::of_u8([micro_batch, size, size, channels]),
            targets: ArrayShape::of_u32(self.target_extents()),
        }
    }

    fn held_out_sequences(&self) -> Option<u64> {
        Some(self.split.validation_images())
    }

    fn classes(&self) -> Option<usize> {
        Some(self.options.classes)
    }

    fn normalisation(&self) -> Option<&Normalisation> {
        Some(&self.normalisation)
    }

    fn validation_micro_batches(&self) -> u64 {
        self.options.validation_micro_batches
    }
}
