//! The keys of `[optim]`.

use keys::{Interval, Row, choice, section};

use super::MOST;
use super::memory::Memory;
use super::train::Train;
use crate::choices::{OptimKind, ScheduleName, StateType};

section! {
    /// `[optim]`: the optimizer and its learning rate.
    pub struct Optim = "optim" {
        /// AdamW; Lion, whose one moment is half of AdamW's bytes and which wants a learning rate 3 to 10
        /// times lower; or stochastic gradient descent with momentum.
        kind: OptimKind = choice!(OptimKind, OptimKind::ALL).default("\"adamw\"").decides_times();
        /// The type of moments and velocity. bf16 takes half the bytes; each update rounds it up or down at
        /// random, with the same random numbers on every grid. 8bit takes a quarter: 256 fractions of the
        /// largest magnitude of every block of 256 elements. Master weights stay f32.
        state: StateType = choice!(StateType, StateType::ALL).default("\"f32\"").decides_times();
        /// Keeps moments, and master weights that are not the weights themselves, in host memory, which is
        /// pinned for a GPU. Each update brings them to the device and back in pieces; the bits are the same.
        offload: bool = Row::flag()
            .derived("as `memory.offload_weights`", |raw| Ok(raw.flag(Memory::offload_weights)?.into()))
            .any_bits();
        /// The highest learning rate, at the end of warm-up.
        learning_rate: f64 = Row::number(Interval::Positive).default("1e-3").may_change();
        /// The learning rate after warm-up: it falls along half a cosine, or a line, to the last step; it is
        /// constant; it is constant and falls along a line in the last `decay_steps` (wsd: warm-up, stable,
        /// decay); or it is multiplied by `gamma` at some steps.
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
        /// The factor of the learning rate.
        gamma: f64 =
            Row::number(Interval::Inside).default("0.1").only(Optim::schedule, &["step"]).may_change();
        /// Steps at the end in which the learning rate falls. A run that is resumed from a step before them
        /// with more `train.steps` goes on at the full rate.
        decay_steps: u64 = Row::integer(1, MOST)
            .derived("a tenth of `train.steps`, rounded up", |raw| {
                Ok(Optim::default_decay_steps(raw.integer(Train::steps)?).into())
            })
            .only(Optim::schedule, &["wsd"])
            .may_change();
        /// The learning rate that a cosine or a line reaches one step after the last.
        min_learning_rate: f64 = Row::number(Interval::NotNegative)
            .derived("a tenth of `learning_rate` for a cosine, else 0", |raw| {
                let is_cosine = raw.text(Optim::schedule)? == ScheduleName::Cosine.name();
                Ok(if is_cosine { raw.number(Optim::learning_rate)? / 10.0 } else { 0.0 }.into())
            })
            .only(Optim::schedule, &["cosine", "linear", "wsd"])
            .may_change();
        /// Steps in which the learning rate rises linearly.
        warmup_steps: u64 = Row::integer(0, MOST).default("20").may_change();
        /// Weight decay: decoupled in AdamW and Lion, added to the gradient in SGD.
        weight_decay: f64 = Row::number(Interval::NotNegative).default("0.1").may_change();
        /// Whether weight decay applies to norms and biases too.
        decay_norms: bool = Row::flag()
            .derived("true for SGD, as in PyTorch; else false", |raw| {
                Ok((raw.text(Optim::kind)? == OptimKind::Sgd.name()).into())
            })
            .may_change();
        /// The norm that the gradient is clipped to; 0: no clipping.
        clip_norm: f64 = Row::number(Interval::NotNegative).default("1.0").may_change();
        /// Decay of the gradient's running mean; in Lion, its weight in an update's direction.
        beta1: f64 = Row::number(Interval::Fraction).default("0.9").only(Optim::kind, &["adamw", "lion"]);
        /// Decay of the squared gradient's running mean; in Lion, of the gradient's.
        beta2: f64 = Row::number(Interval::Fraction)
            .derived("0.95 for AdamW, 0.99 for Lion", |raw| {
                Ok(if raw.text(Optim::kind)? == OptimKind::Lion.name() { 0.99 } else { 0.95 }.into())
            })
            .only(Optim::kind, &["adamw", "lion"]);
        /// Added to the denominator of the update.
        epsilon: f64 = Row::number(Interval::Positive).default("1e-8").only(Optim::kind, &["adamw"]);
        /// The fraction of the velocity that an update keeps.
        momentum: f64 = Row::number(Interval::Fraction).default("0.9").only(Optim::kind, &["sgd"]);
    }
}

impl Optim {
    /// Steps between multiplications by `gamma` in a run of `steps`, if they are not written.
    pub(crate) fn default_step_size(steps: u64) -> u64 {
        steps.div_ceil(3)
    }

    /// Steps in which the rate of a run of `steps` falls at its end, if they are not written.
    pub(crate) fn default_decay_steps(steps: u64) -> u64 {
        steps.div_ceil(10)
    }
}
