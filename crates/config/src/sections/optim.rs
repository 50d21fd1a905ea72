//! The keys of `[optim]`.

use keys::{Error, Interval, RawValues, Row, choice, section};

use super::MOST;
use super::lora::LoraSection;
use super::memory::Memory;
use super::train::Train;
use crate::choices::{DataKind, OptimKind, ScheduleName, StateType};
use crate::fine_tuning;

section! {
    /// `[optim]`: the optimizer and its learning rate.
    pub struct Optim = "optim" {
        /// AdamW; Lion, which has one moment instead of two and needs a learning rate 3 to 10 times lower; or
        /// stochastic gradient descent with momentum.
        kind: OptimKind = choice!(OptimKind, OptimKind::ALL).default("\"adamw\"").decides_times();
        /// Storage type of moments and velocity. "bf16" takes half the bytes; updates are rounded
        /// stochastically, with the same random numbers on every grid. "8bit" takes a quarter: one of 256
        /// fractions of the largest magnitude in each block of 256 elements. Master weights stay f32.
        state: StateType = choice!(StateType, StateType::ALL).default("\"f32\"").decides_times();
        /// Keeps moments and separate master weights in host memory, pinned for a GPU. Each update copies
        /// them to the device and back in chunks. The bits are the same.
        offload: bool = Row::flag()
            .derived("as `memory.offload_weights`", |raw| Ok(raw.flag(Memory::offload_weights)?.into()))
            .any_bits();
        /// The maximum learning rate, reached at the end of warm-up.
        learning_rate: f64 = Row::number(Interval::Positive)
            .derived(
                "1e-3; in fine-tuning 2e-5, of adapters 2e-4, and on pairs of answers 1e-6 and 5e-6",
                |raw| Ok(default_learning_rate(raw)?.into()),
            )
            .may_change();
        /// The learning rate after warm-up. "cosine" and "linear" decrease it until the last step; "constant"
        /// keeps it; "wsd" (warm-up, stable, decay) keeps it and decreases it linearly in the last
        /// `decay_steps`; "step" multiplies it by `gamma` at certain steps.
        schedule: ScheduleName =
            choice!(ScheduleName, ScheduleName::ALL).default("\"cosine\"").may_change();
        /// Steps after which the learning rate is multiplied by `gamma`, in increasing order.
        milestones: Vec<usize> =
            Row::counts(0, 1, MOST).default("[]").only(Optim::schedule, &["step"]).may_change();
        /// Steps between multiplications by `gamma`, if there are no `milestones`.
        step_size: u64 = Row::integer(1, MOST)
            .derived("a third of `train.steps`, rounded up", |raw| {
                Ok(Optim::default_step_size(raw.integer(Train::steps)?).into())
            })
            .only(Optim::schedule, &["step"])
            .may_change();
        /// The factor that multiplies the learning rate.
        gamma: f64 =
            Row::number(Interval::Inside).default("0.1").only(Optim::schedule, &["step"]).may_change();
        /// Steps at the end in which the learning rate decreases. A run resumed from an earlier step with
        /// more `train.steps` continues at the full rate.
        decay_steps: u64 = Row::integer(1, MOST)
            .derived("a tenth of `train.steps`, rounded up", |raw| {
                Ok(Optim::default_decay_steps(raw.integer(Train::steps)?).into())
            })
            .only(Optim::schedule, &["wsd"])
            .may_change();
        /// The learning rate that "cosine" or "linear" would reach one step after the last.
        min_learning_rate: f64 = Row::number(Interval::NotNegative)
            .derived("a tenth of `learning_rate` for a cosine, else 0; in fine-tuning 0", |raw| {
                Ok(default_min_learning_rate(raw)?.into())
            })
            .only(Optim::schedule, &["cosine", "linear", "wsd"])
            .may_change();
        /// Steps at the start in which the learning rate rises linearly.
        warmup_steps: u64 = Row::integer(0, MOST).default("20").may_change().finish(|written, raw| {
            let ratio = default_warmup_ratio(raw)?;
            Ok(if ratio > 0.0 { Optim::ratio_of(ratio, raw.integer(Train::steps)?) } else { written })
        });
        /// The fraction of the steps in which the learning rate rises, rounded up. If above 0, it sets
        /// `warmup_steps`. A file may set only one of the two.
        warmup_ratio: f64 = Row::number(Interval::Fraction)
            .derived("0; in fine-tuning 0.03, unless `warmup_steps` is written", |raw| {
                Ok(default_warmup_ratio(raw)?.into())
            })
            .may_change()
            .finish(|_, raw| default_warmup_ratio(raw));
        /// Weight decay: decoupled in AdamW and Lion, added to the gradient in SGD.
        weight_decay: f64 = Row::number(Interval::NotNegative)
            .derived("0.1; in fine-tuning 0", |raw| {
                Ok(fine_tuning::number(raw, Optim::weight_decay, 0.0, 0.1)?.into())
            })
            .may_change();
        /// Whether weight decay also applies to norms and biases.
        decay_norms: bool = Row::flag()
            .derived("true for SGD, as in PyTorch; else false", |raw| {
                Ok((raw.text(Optim::kind)? == OptimKind::Sgd.name()).into())
            })
            .may_change();
        /// Maximum gradient norm, to which larger gradients are scaled; 0: no clipping.
        clip_norm: f64 = Row::number(Interval::NotNegative).default("1.0").may_change();
        /// Decay rate of the gradient's running mean; in Lion, the mean's weight in the update direction.
        beta1: f64 = Row::number(Interval::Fraction).default("0.9").only(Optim::kind, &["adamw", "lion"]);
        /// Decay rate of the squared gradient's running mean; in Lion, of the gradient's running mean.
        beta2: f64 = Row::number(Interval::Fraction)
            .derived("0.95 for AdamW, in fine-tuning 0.999; 0.99 for Lion", |raw| {
                let is_lion = raw.text(Optim::kind)? == OptimKind::Lion.name();
                Ok(if is_lion { 0.99 } else { fine_tuning::number(raw, Optim::beta2, 0.999, 0.95)? }.into())
            })
            .only(Optim::kind, &["adamw", "lion"]);
        /// Small number added to the denominator of the update.
        epsilon: f64 = Row::number(Interval::Positive).default("1e-8").only(Optim::kind, &["adamw"]);
        /// The momentum factor: the fraction of the velocity that an update keeps.
        momentum: f64 = Row::number(Interval::Fraction).default("0.9").only(Optim::kind, &["sgd"]);
    }
}

/// Returns the default maximum learning rate.
fn default_learning_rate(raw: &RawValues) -> Result<f64, Error> {
    let has_adapters = raw.integer(LoraSection::rank)? > 0 || !raw.is_empty(LoraSection::from);
    let tuned = match (fine_tuning::has_kind(raw, DataKind::Preference)?, has_adapters) {
        (false, true) => 2e-4,
        (false, false) => 2e-5,
        (true, true) => 5e-6,
        (true, false) => 1e-6,
    };
    fine_tuning::number(raw, Optim::learning_rate, tuned, 1e-3)
}

/// Returns the default learning rate at the end of "cosine" or "linear".
fn default_min_learning_rate(raw: &RawValues) -> Result<f64, Error> {
    let is_cosine = raw.text(Optim::schedule)? == ScheduleName::Cosine.name();
    let tenth = if is_cosine { default_learning_rate(raw)? / 10.0 } else { 0.0 };
    fine_tuning::number(raw, Optim::min_learning_rate, 0.0, tenth)
}

/// Returns the default fraction of steps in warm-up; 0 if `optim.warmup_steps` is set instead.
fn default_warmup_ratio(raw: &RawValues) -> Result<f64, Error> {
    let has_steps = raw.is_override(Optim::warmup_steps) && !raw.is_override(Optim::warmup_ratio);
    let is_number = has_steps || raw.is_set(Optim::warmup_steps) && !raw.is_set(Optim::warmup_ratio);
    if is_number { Ok(0.0) } else { fine_tuning::number(raw, Optim::warmup_ratio, 0.03, 0.0) }
}

impl Optim {
    /// Returns the default number of steps between multiplications by `gamma` in a run of `steps`.
    pub(crate) fn default_step_size(steps: u64) -> u64 {
        steps.div_ceil(3)
    }

    /// Returns the number of steps in a fraction `ratio` of `steps`, rounded up.
    pub(crate) fn ratio_of(ratio: f64, steps: u64) -> u64 {
        (ratio * steps as f64).ceil() as u64
    }

    /// Returns the default number of decay steps at the end of a run of `steps`.
    pub(crate) fn default_decay_steps(steps: u64) -> u64 {
        steps.div_ceil(10)
    }
}
