//! The keys of `[optim]`.

use keys::{Error, Interval, RawValues, Row, Takes, choice, section};
use parallel::data::MatrixScale;

use super::MOST;
use super::lora::LoraSection;
use super::memory::Memory;
use super::train::Train;
use crate::choices::{DataKind, OptimKind, ScheduleName, StateType};
use crate::fine_tuning;
use crate::optim_group::{self, OptimGroup};
use crate::schedule_length::ScheduleLength;

section! {
    /// `[optim]`: the optimizer and its learning rate.
    pub struct Optim = "optim" {
        /// AdamW; Lion, which has one moment instead of two and needs a learning rate 3 to 10 times lower;
        /// stochastic gradient descent with momentum; or Muon, which orthogonalises the momentum of each
        /// matrix of a hidden layer and leaves all other parameters to AdamW.
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
        /// The end of the run in which the learning rate decreases: steps, a part of the run or tokens, as in
        /// `warmup`. It sets `decay_steps`; a file may set only one of the two.
        decay: ScheduleLength =
            Row::new(ScheduleLength::TAKES, ScheduleLength::read, ScheduleLength::value)
                .default("\"\"")
                .only(Optim::schedule, &["wsd"])
                .may_change()
                .finish(|written, raw| {
                    let is_decided = decides(raw, &[Optim::decay, Optim::decay_steps]) == Some(Optim::decay);
                    Ok(if is_decided { written } else { ScheduleLength::Unset })
                });
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
        /// The first step of the schedule, counted from 0. Warm-up, decay and milestones are counted from it,
        /// and parts of the run are parts of the steps after it. A run that is resumed after step N with a
        /// new schedule sets N.
        schedule_start: u64 = Row::integer(0, MOST).default("0").may_change();
        /// The start of the run in which the learning rate rises linearly: a number of steps, a part of the
        /// run such as "2%", or tokens such as "100M tokens", rounded up to steps. Tokens are positions of
        /// the sequences, with padding; samples for models without tokens. It sets `warmup_steps`; a file may
        /// set only one of `warmup`, `warmup_ratio` and `warmup_steps`.
        warmup: ScheduleLength =
            Row::new(ScheduleLength::TAKES, ScheduleLength::read, ScheduleLength::value)
                .default("\"\"")
                .may_change()
                .finish(|written, raw| {
                    let is_decided = decides(raw, &WARMUP) == Some(Optim::warmup);
                    Ok(if is_decided { written } else { ScheduleLength::Unset })
                });
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
        beta1: f64 =
            Row::number(Interval::Fraction).default("0.9").only(Optim::kind, &["adamw", "lion", "muon"]);
        /// Decay rate of the squared gradient's running mean; in Lion, of the gradient's running mean.
        beta2: f64 = Row::number(Interval::Fraction)
            .derived("0.95 for AdamW, in fine-tuning 0.999; 0.99 for Lion", |raw| {
                let is_lion = raw.text(Optim::kind)? == OptimKind::Lion.name();
                let rule = if is_lion { OptimKind::Lion } else { OptimKind::AdamW };
                Ok(Optim::default_betas(raw, rule)?[1].into())
            })
            .only(Optim::kind, &["adamw", "lion", "muon"]);
        /// Small number added to the denominator of the update.
        epsilon: f64 = Row::number(Interval::Positive)
            .default("1e-8")
            .only_or_in(Optim::kind, &["adamw", "muon"], Optim::groups);
        /// The momentum factor: the fraction of the velocity that an update keeps.
        momentum: f64 = Row::number(Interval::Fraction)
            .default("0.9")
            .only_or_in(Optim::kind, &["sgd"], Optim::groups);
        /// The fraction of a matrix's running mean of gradients that an update keeps.
        muon_momentum: f64 = Row::number(Interval::Fraction)
            .default("0.95")
            .only_or_in(Optim::kind, &["muon"], Optim::groups);
        /// The factor of an orthogonalised matrix. "rms" is 0.2 · √max(rows, columns), with which AdamW's
        /// learning rates carry over; "spectral" is √max(1, rows / columns), for rates about 20 times higher.
        muon_scale: MatrixScale = choice!(MatrixScale, MatrixScale::ALL)
            .default("\"rms\"")
            .only_or_in(Optim::kind, &["muon"], Optim::groups);
        /// Coefficients a, b and c of the five Newton–Schulz iterations: X becomes aX + (bG + cG²)X with
        /// G = XXᵀ.
        muon_coefficients: Vec<f64> = Row::numbers(Interval::Any)
            .default("[3.4445, -4.775, 2.0315]")
            .only_or_in(Optim::kind, &["muon"], Optim::groups);
        /// A factor of the learning rate for the parameters that AdamW updates beside Muon: embeddings, the
        /// head, norms, biases and routers.
        muon_adamw_rate: f64 =
            Row::number(Interval::Positive).default("1.0").only(Optim::kind, &["muon"]).may_change();
        /// Parameters with settings of their own: `[[optim.groups]]` with `match`, a glob of names of
        /// parameters or a list of globs, and any of `kind`, `learning_rate` (a factor of the schedule's
        /// rate), `weight_decay` (also of norms and biases), `beta1` and `beta2`. Other settings are
        /// `[optim]`'s; a group of another `kind` has its kind's decay rates. A parameter is in the first
        /// group that matches it, or in a default group. `name`, by default the first glob, is the
        /// group's in logs and metrics.
        groups: Vec<OptimGroup> =
            Row::new(Takes::Tables(OptimGroup::KEYS), OptimGroup::read_all, optim_group::value)
                .default("[]")
                .may_change()
                .finish(complete_groups);
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

/// Keys that set the steps of warm-up. Of two that a resolved configuration has, the first decides.
const WARMUP: [&str; 3] = [Optim::warmup, Optim::warmup_ratio, Optim::warmup_steps];

/// Returns the first of `keys` that is written on the command line, or else in the file; `None` if none is.
/// An empty string is not written.
fn decides(raw: &RawValues, keys: &[&'static str]) -> Option<&'static str> {
    let mut written = keys.iter().copied().filter(|key| !raw.is_empty(key));
    written.clone().find(|key| raw.is_override(key)).or_else(|| written.next())
}

/// Returns the default fraction of steps in warm-up; 0 if another key decides them.
fn default_warmup_ratio(raw: &RawValues) -> Result<f64, Error> {
    match decides(raw, &WARMUP) {
        None | Some(Optim::warmup_ratio) => fine_tuning::number(raw, Optim::warmup_ratio, 0.03, 0.0),
        Some(_) => Ok(0.0),
    }
}

/// Sets the decay rates of groups whose rule is not `optim.kind`, which do not inherit them.
fn complete_groups(mut groups: Vec<OptimGroup>, raw: &RawValues) -> Result<Vec<OptimGroup>, Error> {
    // Beside Muon, parameters are AdamW's.
    let own = raw.text(Optim::kind)?.replace(OptimKind::Muon.name(), OptimKind::AdamW.name());
    for group in &mut groups {
        let Some(kind) = group.kind.filter(|kind| kind.name() != own && kind.has_betas()) else { continue };
        let [beta1, beta2] = Optim::default_betas(raw, kind)?;
        group.beta1.get_or_insert(beta1);
        group.beta2.get_or_insert(beta2);
    }
    Ok(groups)
}

impl Optim {
    /// Name of the default group, for parameters that no configured group matches.
    pub const DEFAULT_GROUP: &'static str = "default";
    /// Name of the default group of matrices that Muon updates.
    pub const MATRICES_GROUP: &'static str = "matrices";
    /// Name of the default group of norms and biases, which have no weight decay.
    pub const UNDECAYED_GROUP: &'static str = "norms and biases";
    /// Name of the group of the matrices B of adapters, with `lora.b_learning_rate`.
    pub const LORA_GROUP: &'static str = "lora_B";

    /// Checks that every glob of `groups` matches a trained parameter, and that every group has one. `names`
    /// has the names of the whole model's parameters, and whether each is trained.
    ///
    /// # Errors
    /// A sentence about the first group without a match.
    pub fn check_groups<'a>(
        &self,
        names: impl Iterator<Item = (&'a str, bool)> + Clone,
    ) -> Result<(), String> {
        optim_group::check_matches(&self.groups, names)
    }

    /// Returns whether Muon updates any parameter.
    #[must_use]
    pub fn uses_muon(&self) -> bool {
        let kinds = self.groups.iter().map(|group| group.kind_or(self.kind));
        kinds.chain([self.kind]).any(|kind| kind == OptimKind::Muon)
    }

    /// Returns the default `beta1` and `beta2` of `kind`.
    pub(crate) fn default_betas(raw: &RawValues, kind: OptimKind) -> Result<[f64; 2], Error> {
        let tuned = fine_tuning::is_fine_tuning(raw)?;
        let beta2 = match kind {
            OptimKind::Lion => 0.99,
            _ if tuned => 0.999,
            _ => 0.95,
        };
        Ok([0.9, beta2])
    }

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
