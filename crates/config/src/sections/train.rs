//! The keys of `[train]`.

use keys::{Error, Interval, RawValues, Row, choice, section};
use nn::{MOST_EXTENT, MOST_MODULES};

use super::MOST;
use crate::choices::{DataKind, Graphs, LossMean, OnOutOfMemory, OnSpike};
use crate::fine_tuning;

/// Maximum number of steps of a run.
const MOST_STEPS: u64 = 1 << 40;

section! {
    /// `[train]`: length, batch sizes and other settings of training.
    pub struct Train = "train" {
        /// Number of optimizer steps.
        steps: u64 = Row::integer(1, MOST_STEPS).default("300").may_change();
        /// Epochs over the training data. If above 0, they set `steps`: the number of sequences or images in
        /// all epochs divided by `global_batch_size`, rounded up. A file may set only one of the two, and so
        /// may the command line, which takes precedence.
        epochs: f64 = Row::number(Interval::NotNegative).derived(
            "0; in fine-tuning on conversations 3 and on pairs of answers 1, unless `steps` is written",
            |raw| Ok(default_epochs(raw)?.into()),
        ).may_change().finish(|written, raw| {
            let has_steps = raw.is_override(Train::steps) && !raw.is_override(Train::epochs);
            Ok(if has_steps { 0.0 } else { written })
        });
        /// Sequences, samples or images in one micro-batch.
        micro_batch_size: usize = Row::count(1, MOST_EXTENT)
            .derived("8; in fine-tuning 2", |raw| Ok(default_micro_batch_size(raw)?.into()))
            .decides_times()
            .renamed("train.micro_batch", "");
        /// Sequences, samples or images per step, over all ranks: a multiple of `micro_batch_size`.
        global_batch_size: usize = Row::count(1, MOST_EXTENT << 20)
            .derived("32; in fine-tuning 8, or the next multiple of `micro_batch_size`", |raw| {
                Ok(default_global_batch_size(raw)?.into())
            })
            .renamed(
                "train.micro_batches",
                ", in sequences or samples: train.micro_batches × train.micro_batch",
            );
        /// The random seed for initial weights and the order of the data.
        seed: u64 = Row::integer(0, MOST).default("1");
        /// How the loss of a step or validation is averaged if some tokens are not targets (conversations,
        /// ORPO, packed documents, `data.ignore`). "targets": the sum over all targets, divided by their
        /// number. "micro-batches": the mean of the micro-batches' means, which weights targets more in
        /// micro-batches with few of them, as versions up to 0.1 did. Resume a run of such a version with
        /// "micro-batches".
        loss_mean: LossMean = choice!(LossMean, LossMean::ALL).default("\"targets\"");
        /// The part of each target's probability that is spread evenly over all classes in training, as
        /// PyTorch's `label_smoothing`; for images.
        label_smoothing: f64 = Row::number(Interval::Fraction).default("0");
        /// Factor of an auxiliary loss that balances the load of experts. For each layer it is experts · Σ f
        /// · P, summed over experts, where f is the expert's fraction of a micro-batch's choices and P its
        /// mean score. As in Switch Transformers; in transformers' `router_aux_loss_coef`, f is larger by a
        /// factor of `experts_per_token`. It changes gradients, but the reported loss does not include it.
        balance_loss: f64 = Row::number(Interval::NotNegative).default("0");
        /// Factor of an auxiliary loss that keeps router outputs small: for each layer, the mean square of
        /// their log-sum-exp, as in ST-MoE. The reported loss does not include it. Padding is excluded from
        /// it, from `balance_loss`, and from expert loads.
        router_z_loss: f64 = Row::number(Interval::NotNegative).default("0");
        /// Step size of the experts' bias corrections: after each step, raised for experts with fewer tokens
        /// than the mean and lowered for those with more, as in DeepSeek-V3, which uses 0.001. 0: corrections
        /// stay constant.
        correction_rate: f64 = Row::number(Interval::NotNegative).default("0");
        /// Magnitude of noise on token embeddings in training, as transformers' `neftune_noise_alpha`:
        /// uniform numbers in [-1, 1) times `neftune_alpha` / √(`model.context` × `model.width`), also of
        /// packed, padded and shorter sequences. 0: there is none.
        neftune_alpha: f64 = Row::number(Interval::NotNegative).default("0");
        /// Number of tokens that are predicted at each position. Above 1, one module for each token after the
        /// next one follows the last layer, as in DeepSeek-V3: it reads the output before it and the token
        /// that precedes its target, and shares the token table and the output head. Modules are read from
        /// folders that have them, and drawn otherwise. Their targets end with the document. They take no
        /// part in validation, `eval` and `sample`.
        predict_tokens: usize = Row::count(1, 1 + MOST_MODULES as u64).default("1");
        /// Factor of the mean of the modules' losses, which are reported apart from the loss. DeepSeek-V3
        /// began with 0.3, and ended with 0.1.
        predict_tokens_weight: f64 = Row::number(Interval::NotNegative).default("0.3");
        /// Globs of the names of parameters to freeze, such as "wte.*" or "h.[0-5].*". Frozen parameters have
        /// no gradient, master weight or optimizer state.
        freeze: Vec<String> = Row::texts().default("[]");
        /// Fraction of an exponential average of the weights that an update of it keeps, such as 0.999:
        /// average = `ema` × average + (1 - `ema`) × weight. 0: there is none. The average is f32, is
        /// kept like optimizer state, and does not change training. `sample`, `eval` and `export` use it
        /// with `--ema`. Frozen parameters and buffers have none. A run resumed from a checkpoint without
        /// an average begins it there.
        ema: f64 = Row::number(Interval::Fraction).default("0").any_bits();
        /// Number of steps between updates of the average.
        ema_every: u64 = Row::integer(1, MOST).default("1").any_bits();
        /// Number of steps after which averaging begins. Until then the average equals the weights.
        ema_start: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Whether validations compute the loss of the average instead of the weights, which
        /// `checkpoint.keep_best` and `patience` then compare.
        validate_ema: bool = Row::flag().default("false").any_bits();
        /// Steps between validations; 0: only after the last step.
        validate_every: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Number of consecutive steps with a non-finite loss or gradient norm after which a run ends. A step
        /// with a non-finite gradient norm does not update the weights.
        max_nonfinite_steps: u64 = Row::integer(1, MOST).default("1").any_bits();
        /// Number of validations without a lower loss after which the run ends; 0: never.
        patience: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// The action if a step runs out of memory: "stop" ends the run; "halve_micro_batch" halves
        /// `micro_batch_size`, doubles the number of micro-batches, and repeats the step with the same
        /// samples. From ZeRO stage 2 on, it repeats from the last checkpoint. It needs ranks of one process
        /// without a pipeline, and sums gradients after backward.
        on_out_of_memory: OnOutOfMemory =
            choice!(OnOutOfMemory, OnOutOfMemory::ALL).default("\"stop\"").any_bits();
        /// The action if a step's gradient norm is more than `spike_deviations` standard deviations above the
        /// mean of recent ones. "ignore": no limit. Otherwise the update is skipped; then "stop" ends the
        /// run, "skip" continues with the next step, and "rewind" restarts from the last checkpoint and skips
        /// the step's samples. Decisions are the same on every grid, and are listed in spikes.json.
        on_spike: OnSpike = choice!(OnSpike, OnSpike::ALL).default("\"ignore\"").may_change();
        /// Number of standard deviations above the mean from which a gradient norm is a spike.
        spike_deviations: f64 = Row::number(Interval::Positive).default("6").may_change()
            .only(Train::on_spike, &["stop", "skip", "rewind"]);
        /// Number of steps over which mean and standard deviation are computed, up to two steps before the
        /// current one and without spikes. There is no limit until 8 norms are known.
        spike_window: usize = Row::count(2, 1 << 16).default("128").may_change()
            .only(Train::on_spike, &["stop", "skip", "rewind"]);
        /// Whether to use CUDA graphs on a GPU: after the first steps, a step's calls are captured once and
        /// later launched together, which saves most of the host's time. Calls between ranks are still made
        /// one by one. "auto": if no rank offloads and each has its own GPU; a log line states why a step is
        /// not captured. "on": a step that cannot be captured is refused. "off": every call is made one by
        /// one, which is needed if another job's process uses the same GPU. Generation in `sample` and the
        /// micro-batches of validations and of `eval` are captured too, and fall back to single calls. Bits
        /// and planned bytes do not depend on it; the driver's memory for graphs is part of warm-up.
        graphs: Graphs = choice!(Graphs, Graphs::ALL).default("\"auto\"").any_bits();
        /// Steps between verified steps; 0: none. Before such a step, each data-parallel rank repeats a
        /// micro-batch of another rank, or its own if it is alone. The results of all operators are compared
        /// with the step's. A difference ends the run and names ranks, GPUs and operator. The bits of the run
        /// stay the same.
        verify_every: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Number of micro-batches per validation, over all ranks. For images and conversations,
        /// micro-batches beyond the data are empty.
        validation_micro_batches: u64 = Row::integer(1, 1 << 20).default("8").any_bits();
    }
}

/// Returns the default epochs; 0 if `steps` sets the length of the run.
fn default_epochs(raw: &RawValues) -> Result<f64, Error> {
    if raw.is_set(Train::steps) && !raw.is_set(Train::epochs) {
        return Ok(0.0);
    }
    let tuned = if fine_tuning::has_kind(raw, DataKind::Chat)? {
        3.0
    } else if fine_tuning::has_kind(raw, DataKind::Preference)? {
        1.0
    } else {
        0.0
    };
    fine_tuning::number(raw, Train::epochs, tuned, 0.0)
}

/// Returns the default number of sequences per micro-batch.
pub(crate) fn default_micro_batch_size(raw: &RawValues) -> Result<u64, Error> {
    let global = raw.is_set(Train::global_batch_size).then(|| raw.integer(Train::global_batch_size));
    let tuned = match global.transpose()? {
        Some(global) if !global.is_multiple_of(2) => 1,
        _ => 2,
    };
    fine_tuning::integer(raw, Train::micro_batch_size, tuned, 8)
}

/// Returns the default number of sequences per step.
pub(crate) fn default_global_batch_size(raw: &RawValues) -> Result<u64, Error> {
    let micro = raw.is_set(Train::micro_batch_size).then(|| raw.integer(Train::micro_batch_size));
    let micro = micro.transpose()?.unwrap_or(1).max(1);
    fine_tuning::integer(raw, Train::global_batch_size, 8_u64.next_multiple_of(micro), 32)
}

impl Train {
    /// Returns the number of micro-batches per step, over all ranks.
    #[must_use]
    pub fn micro_batches(&self) -> usize {
        self.global_batch_size / self.micro_batch_size
    }

    /// Returns the number of modules that predict later tokens than the next one.
    #[must_use]
    pub fn prediction_modules(&self) -> usize {
        self.predict_tokens - 1
    }

    /// Returns the number of steps for `epochs` over `sequences` training sequences or images; `None` if
    /// `steps` sets the length or there are no sequences.
    #[must_use]
    pub fn steps_of_epochs(&self, sequences: u64) -> Option<u64> {
        let steps = (self.epochs * sequences as f64 / self.global_batch_size as f64).ceil();
        (steps > 0.0).then(|| (steps as u64).clamp(1, MOST_STEPS))
    }

    /// Returns whether a step that runs out of memory is repeated with smaller micro-batches.
    #[must_use]
    pub fn halves_micro_batches(&self) -> bool {
        self.on_out_of_memory == OnOutOfMemory::HalveMicroBatch
    }
}
