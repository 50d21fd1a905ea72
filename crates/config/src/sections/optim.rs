//! The keys of `[optim]`.

use keys::{Interval, Row, choice, section};

use super::MOST;
use super::train::Train;
use crate::choices::{OptimKind, ScheduleName, StateType};

section! {
    /// `[optim]`: the optimizer and its learning rate.
    pub struct Optim = "optim" {
        /// AdamW, or stochastic gradient descent with momentum.
        kind: OptimKind = choice!(OptimKind, OptimKind::ALL).default("\"adamw\"").decides_times();
        /// The type of moments and velocity. bf16 takes half the bytes; each update rounds it up or down at
        /// random, with the same random numbers on every grid. 8bit takes a quarter: 256 fractions of the
        /// largest magnitude of every block of 256 elements. Master weights stay f32.
        state: StateType = choice!(StateType, StateType::ALL).default("\"f32\"").decides_times();
        /// The highest learning rate, at the end of warm-up.
        learning_rate: f64 = Row::number(Interval::Positive).default("1e-3").may_change();
        /// The decay of the learning rate: along half a cosine, or by `gamma` at some steps.
        schedule: ScheduleName =
            choice!(ScheduleName, ScheduleName::ALL).default("\"cosine\"").may_change();
        /// Steps after which the learning rate is multiplied by `gamma`, in increasing order.
        milestones: Vec<usize> =
            Row::counts(0, 1, MOST).default("[]").only(Optim::schedule, &["step"]).may_change();
        /// Steps between multiplications by `gamma`, if there are no `milestones`.
        step_size: u64 = Row::integer(1, MOST)
            .derived("a third of `train.steps`, rounded up", |raw| {
                Ok(raw.integer(Train::steps)?.div_ceil(3).into())
            })
            .only(Optim::schedule, &["step"])
            .may_change();
        /// The factor of the learning rate.
        gamma: f64 =
            Row::number(Interval::Inside).default("0.1").only(Optim::schedule, &["step"]).may_change();
        /// The learning rate of the last step, reached along a cosine.
        min_learning_rate: f64 = Row::number(Interval::NotNegative)
            .derived("a tenth of `learning_rate`", |raw| {
                Ok((raw.number(Optim::learning_rate)? / 10.0).into())
            })
            .only(Optim::schedule, &["cosine"])
            .may_change();
        /// Steps in which the learning rate rises linearly.
        warmup_steps: u64 = Row::integer(0, MOST).default("20").may_change();
        /// Weight decay: decoupled in AdamW, added to the gradient in SGD.
        weight_decay: f64 = Row::number(Interval::NotNegative).default("0.1").may_change();
        /// Whether weight decay applies to norms and biases too.
        decay_norms: bool = Row::flag()
            .derived("true for SGD, as in PyTorch; else false", |raw| {
                Ok((raw.text(Optim::kind)? == OptimKind::Sgd.name()).into())
            })
            .may_change();
        /// The norm that the gradient is clipped to; 0: no clipping.
        clip_norm: f64 = Row::number(Interval::NotNegative).default("1.0").may_change();
        /// Decay of the gradient's running mean.
        beta1: f64 = Row::number(Interval::Fraction).default("0.9").only(Optim::kind, &["adamw"]);
        /// Decay of the squared gradient's running mean.
        beta2: f64 = Row::number(Interval::Fraction).default("0.95").only(Optim::kind, &["adamw"]);
        /// Added to the denominator of the update.
        epsilon: f64 = Row::number(Interval::Positive).default("1e-8").only(Optim::kind, &["adamw"]);
        /// The fraction of the velocity that an update keeps.
        momentum: f64 = Row::number(Interval::Fraction).default("0.9").only(Optim::kind, &["sgd"]);
    }
}
