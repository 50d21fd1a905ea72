//! The state of a training step, in one small tensor on the device.

use std::cell::Cell;

use device::{Category, DType, Device, ReadGuard, Region, Request, WriteGuard};

use super::scale;
use crate::{Result, Tensor};

/// Indices of words in the tensor, the same as in `kernels/step_state.cuh`.
const NORM: usize = 0;
const CLIP_FACTOR: usize = 1;
const LEARNING_RATE: usize = 2;
const GRADIENT_SCALE: usize = 3;
const SKIP: usize = 4;
const UPDATES: usize = 5;
const LOSS_SCALE: usize = 6;
const GOOD_STEPS: usize = 7;
const TARGETS: usize = 8;
const TOKENS: usize = 9;
/// Copy of the learning rate, which no kernel reads.
const BASE_LEARNING_RATE: usize = 10;
const AVERAGE_FRACTION: usize = 11;
const COEFFICIENTS: usize = 12;
/// Number of words of the tensor.
const WORDS: usize = COEFFICIENTS + MOST_COEFFICIENTS;
/// Maximum number of coefficients of an update.
pub(crate) const MOST_COEFFICIENTS: usize = 8;

/// Coefficients of one update, equal for all elements; each rule defines their order.
pub(crate) type Coefficients = [f32; MOST_COEFFICIENTS];

/// Scalars of a training step in one device tensor: learning rate, gradient scale, gradient norm and clipping
/// factor, skip flag, number of updates, loss scale, number of targets, and the fraction that averages of
/// weights move. Operators read and write them on the device, so a step does not wait for the host.
///
/// Setters enqueue a copy on the compute stream and return. Getters wait for the device, and return zeros on
/// Meta. Every word is an f32, except the skip flag and the numbers of updates and targets, which are the
/// bits of a u32.
#[derive(Debug)]
pub struct StepState {
    words: Tensor,
    /// The learning rate set last; setting an equal one copies nothing.
    learning_rate: Cell<f32>,
    /// The numbers of targets and tokens set last; setting equal ones copies nothing.
    targets: Cell<[u32; 2]>,
    /// The fraction of averages set last; setting an equal one copies nothing.
    average_fraction: Cell<f32>,
}

impl StepState {
    /// Allocates the state before the first update: learning rate 0, gradient scale and clipping factor 1, no
    /// skip.
    pub fn new(device: &Device) -> Result<Self> {
        let request = Request::new(Category::OptimizerState, "step_state");
        let words = Tensor::empty(device, [WORDS], DType::F32, request)?;
        let mut initial = [0.0; WORDS];
        (initial[CLIP_FACTOR], initial[GRADIENT_SCALE]) = (1.0, 1.0);
        words.set(&initial)?;
        let learning_rate = Cell::new(0.0);
        let targets = Cell::default();
        Ok(StepState { words, learning_rate, targets, average_fraction: Cell::new(0.0) })
    }

    /// Returns all words, f32 \[20\].
    pub fn tensor(&self) -> &Tensor {
        &self.words
    }

    /// Returns the norm of the gradient before clipping, f32 \[1\], on the device.
    pub fn norm_tensor(&self) -> Result<Tensor> {
        self.words.view(NORM, [1])
    }

    /// Returns the norm of the gradient before clipping.
    pub fn norm(&self) -> Result<f32> {
        self.get(NORM)
    }

    /// Returns the factor that clips the gradient.
    pub fn clip_factor(&self) -> Result<f32> {
        self.get(CLIP_FACTOR)
    }

    /// Returns the number of updates made; skipped updates are not counted.
    pub fn updates(&self) -> Result<u32> {
        Ok(self.get(UPDATES)?.to_bits())
    }

    /// Returns three words, f32 \[3\]: the number of updates made (u32 bits), the loss scale, and the number
    /// of updates since it last changed (u32 bits).
    pub fn counters_tensor(&self) -> Result<Tensor> {
        self.words.view(UPDATES, [3])
    }

    /// Sets the learning rate of the following updates.
    pub fn set_learning_rate(&self, rate: f32) -> Result<()> {
        if self.learning_rate.get().to_bits() != rate.to_bits() {
            self.set(LEARNING_RATE, rate)?;
            self.learning_rate.set(rate);
        }
        Ok(())
    }

    /// Sets how far later updates move averages towards the weights, as a fraction of the distance: 0 keeps
    /// the averages, and 1 copies the weights.
    pub fn set_average_fraction(&self, fraction: f32) -> Result<()> {
        if self.average_fraction.get().to_bits() != fraction.to_bits() {
            self.set(AVERAGE_FRACTION, fraction)?;
            self.average_fraction.set(fraction);
        }
        Ok(())
    }

    /// Returns the fraction that [`StepState::set_average_fraction`] set last, without waiting for the
    /// device.
    pub fn average_fraction(&self) -> f32 {
        self.average_fraction.get()
    }

    /// Multiplies the learning rate by `factor` for the calls that `enqueue` makes. A factor of 1 adds no
    /// call.
    pub fn with_rate_factor(&self, factor: f32, enqueue: impl FnOnce() -> Result<()>) -> Result<()> {
        if factor == 1.0 {
            return enqueue();
        }
        let rate = self.words.view(LEARNING_RATE, [1])?;
        let base = self.words.view(BASE_LEARNING_RATE, [1])?;
        base.copy_from(&rate)?;
        scale::in_place(&rate, factor)?;
        enqueue()?;
        rate.copy_from(&base)
    }

    /// Sets the numbers of targets and of tokens of the following step.
    pub fn set_targets(&self, targets: u32, tokens: u32) -> Result<()> {
        let counts = [targets, tokens];
        if self.targets.get() != counts {
            self.words.view(TARGETS, [2])?.set(&counts.map(f32::from_bits))?;
            self.targets.set(counts);
        }
        Ok(())
    }

    /// Returns the number of the step's tokens without padding, one u32 on the device.
    pub fn tokens_tensor(&self) -> Result<Tensor> {
        self.words.view(TOKENS, [])?.view_as(DType::U32)
    }

    /// Returns the number of the step's targets, one u32 on the device.
    pub fn targets_tensor(&self) -> Result<Tensor> {
        self.words.view(TARGETS, [])?.view_as(DType::U32)
    }

    /// Sets the factor of every gradient, 1 / loss scale. The next norm is that of the scaled gradients.
    pub fn set_gradient_scale(&self, scale: f32) -> Result<()> {
        self.set(GRADIENT_SCALE, scale)
    }

    /// Returns the loss scale, and the number of updates since it last changed; zeros without a loss scale.
    pub fn loss_scale(&self) -> Result<(f32, u32)> {
        Ok((self.get(LOSS_SCALE)?, self.get(GOOD_STEPS)?.to_bits()))
    }

    /// Returns the loss scale, f32 \[1\], on the device.
    pub fn loss_scale_tensor(&self) -> Result<Tensor> {
        self.words.view(LOSS_SCALE, [1])
    }

    /// Returns the factor of every gradient, 1 / loss scale, f32 \[1\], on the device.
    pub fn gradient_scale_tensor(&self) -> Result<Tensor> {
        self.words.view(GRADIENT_SCALE, [1])
    }

    /// Sets the loss scale, the number of updates since it last changed, and the gradient scale to 1 / loss
    /// scale.
    pub fn set_loss_scale(&self, scale: f32, good_steps: u32) -> Result<()> {
        self.words.view(LOSS_SCALE, [2])?.set(&[scale, f32::from_bits(good_steps)])?;
        self.set_gradient_scale(1.0 / scale)
    }

    /// Sets whether the following updates are skipped. An update with a norm that is not finite is always
    /// skipped.
    pub fn set_skip(&self, skip: bool) -> Result<()> {
        self.set(SKIP, f32::from_bits(u32::from(skip)))
    }

    /// Sets the number of updates, as a checkpoint restores it.
    pub fn set_updates(&self, updates: u32) -> Result<()> {
        self.set(UPDATES, f32::from_bits(updates))
    }

    /// Sets the clipping factor and the norm, as [`super::norm::finish`] does.
    pub fn set_norm(&self, norm: f32, clip_factor: f32) -> Result<()> {
        self.words.view(NORM, [2])?.set(&[norm, clip_factor])
    }

    fn get(&self, word: usize) -> Result<f32> {
        Ok(self.words.view(word, [1])?.to_vec::<f32>()?.first().copied().unwrap_or_default())
    }

    fn set(&self, word: usize, value: f32) -> Result<()> {
        self.words.view(word, [1])?.set(&[value])
    }

    /// Returns the words as an operand of kernels.
    pub(crate) fn region(&self) -> Region<'_> {
        self.words.region()
    }

    pub(crate) fn read(&self) -> Result<Words<ReadGuard<'_, f32>>> {
        Ok(Words(self.words.read()?))
    }

    pub(crate) fn write(&self) -> Result<Words<WriteGuard<'_, f32>>> {
        Ok(Words(self.words.write()?))
    }
}

/// The words on the CPU, accessed by name.
pub(crate) struct Words<T>(T);

impl<T: std::ops::Deref<Target = [f32]>> Words<T> {
    pub(crate) fn learning_rate(&self) -> f32 {
        self.0[LEARNING_RATE]
    }

    pub(crate) fn average_fraction(&self) -> f32 {
        self.0[AVERAGE_FRACTION]
    }

    pub(crate) fn gradient_scale(&self) -> f32 {
        self.0[GRADIENT_SCALE]
    }

    /// Returns the factor of every gradient: the clipping factor times the gradient scale.
    pub(crate) fn factor(&self) -> f32 {
        self.0[CLIP_FACTOR] * self.0[GRADIENT_SCALE]
    }

    pub(crate) fn skip(&self) -> bool {
        self.0[SKIP].to_bits() != 0 || !self.is_finite()
    }

    pub(crate) fn is_finite(&self) -> bool {
        self.0[NORM].is_finite()
    }

    pub(crate) fn loss_scale(&self) -> f32 {
        self.0[LOSS_SCALE]
    }

    pub(crate) fn good_steps(&self) -> u32 {
        self.0[GOOD_STEPS].to_bits()
    }

    pub(crate) fn updates(&self) -> u32 {
        self.0[UPDATES].to_bits()
    }

    pub(crate) fn coefficients(&self) -> Coefficients {
        std::array::from_fn(|index| self.0[COEFFICIENTS + index])
    }
}

impl<T: std::ops::DerefMut<Target = [f32]>> Words<T> {
    pub(crate) fn count_updates(&mut self, count: u32) {
        self.0[UPDATES] = f32::from_bits(self.updates() + count);
    }

    pub(crate) fn set_loss_scale(&mut self, scale: f32, good_steps: u32) {
        (self.0[LOSS_SCALE], self.0[GOOD_STEPS]) = (scale, f32::from_bits(good_steps));
        self.0[GRADIENT_SCALE] = 1.0 / scale;
    }

    pub(crate) fn set_coefficients(&mut self, coefficients: &Coefficients) {
        self.0[COEFFICIENTS..].copy_from_slice(coefficients);
    }
}
