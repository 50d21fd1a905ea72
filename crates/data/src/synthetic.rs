//! Micro-batches from a random number generator, for benchmarks, plans and tests.

use crate::batch::checked_shape;
use crate::images::pattern::{self, Pattern, fill_pattern};
use crate::{ArrayShape, BatchShape, Error, MicroBatch, Normalisation, Source};
use philox::{key_of_name, normals, philox4x32};

/// The kind of synthetic data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntheticKind {
    /// Sequences of independent, uniform tokens; a target is the token after its input. Nothing can be
    /// learnt: the loss stays at ln(vocabulary).
    Tokens {
        /// Number of token ids.
        vocabulary: usize,
        /// Number of input tokens per sequence.
        context: usize,
    },
    /// Independent standard normal inputs, and targets that are a smooth function of them, the same in every
    /// run: target j = sin(x\[j mod n\] + x\[(j + 1) mod n\]). A model can learn it.
    Regression {
        /// Number of input values per sample, n.
        inputs: usize,
        /// Number of target values per sample.
        outputs: usize,
    },
    /// Square images of classes, which a model can learn: each class is a wave pattern under noise. An image
    /// is a function of its number, so it does not depend on the micro-batch size.
    Images {
        /// Values per pixel.
        channels: usize,
        /// Height and width in pixels.
        size: usize,
        /// Number of classes.
        classes: usize,
    },
}

/// Options of synthetic micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticOptions {
    /// The kind of data.
    pub kind: SyntheticKind,
    /// Sequences or samples per micro-batch.
    pub micro_batch: usize,
    /// Seed of the training micro-batches; validation does not depend on it.
    pub seed: u64,
    /// Number of validation micro-batches.
    pub validation_micro_batches: u64,
}

/// Generates micro-batches with Philox from their number. Tokens are `u32` \[micro_batch, context\]. A
/// regression has `f32` \[micro_batch, inputs\] and \[micro_batch, outputs\]. Images are `u8` \[micro_batch,
/// size, size, channels\] with classes `u32` \[micro_batch\].
#[derive(Clone, Debug)]
pub struct SyntheticSource {
    options: SyntheticOptions,
    /// Normalisation of synthetic images.
    normalisation: Normalisation,
    train_key: [u32; 2],
    validation_key: [u32; 2],
}

impl SyntheticSource {
    /// Returns a source with these options.
    ///
    /// # Errors
    /// [`Error::BadShape`], [`Error::BadVocabulary`].
    pub fn new(options: SyntheticOptions) -> Result<Self, Error> {
        match options.kind {
            SyntheticKind::Tokens { vocabulary, context } => {
                checked_shape(options.micro_batch, context)?;
                if vocabulary == 0 || u32::try_from(vocabulary).is_err() {
                    return Err(Error::BadVocabulary { vocabulary });
                }
            }
            SyntheticKind::Regression { inputs, outputs } => {
                checked_shape(options.micro_batch, inputs)?;
                checked_shape(options.micro_batch, outputs)?;
            }
            SyntheticKind::Images { channels, size, classes } => {
                let columns = size.saturating_mul(size).saturating_mul(channels);
                checked_shape(options.micro_batch, columns)?;
                if classes == 0 || u32::try_from(classes).is_err() {
                    return Err(Error::BadClasses { classes });
                }
            }
        }
        Ok(Self {
            options,
            normalisation: pattern::normalisation(),
            train_key: key_of_name(options.seed, "data.synthetic.train"),
            validation_key: key_of_name(0, "data.synthetic.validation"),
        })
    }

    fn fill(&self, key: [u32; 2], number: u64, out: &mut MicroBatch) {
        let blocks = Blocks { key, number };
        match self.options.kind {
            SyntheticKind::Tokens { vocabulary, context } => {
                fill_tokens(blocks, vocabulary as u64, self.options.micro_batch, context, out);
            }
            SyntheticKind::Regression { inputs, outputs } => {
                fill_regression(blocks, self.options.micro_batch, inputs, outputs, out);
            }
            SyntheticKind::Images { channels, size, classes } => {
                let pattern = Pattern { key, channels, size, classes: classes as u64 };
                fill_pattern(pattern, number, self.options.micro_batch, out);
            }
        }
    }
}

/// The random blocks of one micro-batch, drawn with the counter (block, micro-batch number).
#[derive(Clone, Copy)]
struct Blocks {
    key: [u32; 2],
    number: u64,
}

impl Blocks {
    fn iter(self) -> impl Iterator<Item = [u32; 4]> {
        let number = [self.number as u32, (self.number >> 32) as u32];
        (0_u64..).map(move |i| philox4x32(self.key, [i as u32, (i >> 32) as u32, number[0], number[1]]))
    }
}

fn fill_tokens(blocks: Blocks, vocabulary: u64, rows: usize, context: usize, out: &mut MicroBatch) {
    let mut words = blocks.iter().flatten();
    // The high word of the product scales 32 random bits to the vocabulary.
    let mut draw = || words.next().map_or(0, |word| ((u64::from(word) * vocabulary) >> 32) as u32);
    let inputs = out.inputs.reset_u32(&[rows, context]).chunks_exact_mut(context);
    let targets = out.targets.reset_u32(&[rows, context]).chunks_exact_mut(context);
    for (input, target) in inputs.zip(targets) {
        let mut token = draw();
        for (slot, next) in input.iter_mut().zip(target) {
            *slot = token;
            token = draw();
            *next = token;
        }
    }
}

fn fill_regression(blocks: Blocks, rows: usize, inputs: usize, outputs: usize, out: &mut MicroBatch) {
    let x = out.inputs.reset_f32(&[rows, inputs]);
    for (slots, words) in x.chunks_mut(4).zip(blocks.iter()) {
        slots.copy_from_slice(&normals(words)[..slots.len()]);
    }
    let y = out.targets.reset_f32(&[rows, outputs]);
    for (sample, target) in x.chunks_exact(inputs).zip(y.chunks_exact_mut(outputs)) {
        for (j, value) in target.iter_mut().enumerate() {
            let sum = f64::from(sample[j % inputs]) + f64::from(sample[(j + 1) % inputs]);
            *value = libm::sin(sum) as f32;
        }
    }
}

impl Source for SyntheticSource {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        self.fill(self.train_key, number, out);
        Ok(())
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let count = self.options.validation_micro_batches;
        if index >= count {
            return Err(Error::NoSuchValidation { index, count });
        }
        self.fill(self.validation_key, index, out);
        Ok(())
    }

    fn shape(&self) -> BatchShape {
        let rows = self.options.micro_batch;
        let (inputs, targets) = match self.options.kind {
            SyntheticKind::Tokens { context, .. } => {
                (ArrayShape::of_u32([rows, context]), ArrayShape::of_u32([rows, context]))
            }
            SyntheticKind::Regression { inputs, outputs } => {
                (ArrayShape::of_f32([rows, inputs]), ArrayShape::of_f32([rows, outputs]))
            }
            SyntheticKind::Images { channels, size, .. } => {
                (ArrayShape::of_u8([rows, size, size, channels]), ArrayShape::of_u32([rows]))
            }
        };
        BatchShape { inputs, targets }
    }

    fn classes(&self) -> Option<usize> {
        match self.options.kind {
            SyntheticKind::Images { classes, .. } => Some(classes),
            SyntheticKind::Tokens { .. } | SyntheticKind::Regression { .. } => None,
        }
    }

    fn normalisation(&self) -> Option<&Normalisation> {
        matches!(self.options.kind, SyntheticKind::Images { .. }).then_some(&self.normalisation)
    }

    fn validation_micro_batches(&self) -> u64 {
        self.options.validation_micro_batches
    }
}
