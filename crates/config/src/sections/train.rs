//! The keys of `[train]`.

use keys::{Error, Interval, RawValues, Row, choice, section};
use nn::MOST_EXTENT;

use super::MOST;
use crate::choices::{DataKind, Graphs, LossMean, OnOutOfMemory, OnSpike};
use crate::fine_tuning;

/// The most steps of a run.
const MOST_STEPS: u64 = 1 << 40;

section! {
    /// `[train]`: how long, and in which portions.
    pub struct Train = "train" {
        /// Optimizer steps.
        steps: u64 = Row::integer(1, MOST_STEPS).default("300").may_change();
        /// Epochs over the training data, which decide `steps` where they are above 0: the sequences or
        /// images of so many epochs over `global_batch_size`, rounded up. A file has one of both, and so has
        /// the command line, which takes precedence.
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
        /// Sequences, samples or images in one step, over all ranks: a multiple of `micro_batch_size`.
        global_batch_size: usize = Row::count(1, MOST_EXTENT << 20)
            .derived("32; in fine-tuning 8, or the next multiple of `micro_batch_size`", |raw| {
                Ok(default_global_batch_size(raw)?.into())
            })
            .renamed(
                "train.micro_batches",
                ", in sequences or samples: train.micro_batches × train.micro_batch",
            );
        /// The seed of initial weights and of the order of the data.
        seed: u64 = Row::integer(0, MOST).default("1");
        /// The loss of a step or a validation where not all tokens are targets (conversations, ORPO, padding
        /// of packed documents, `data.ignore`): "targets": the sum over its targets, divided by their number;
        /// "micro-batches": the mean of the means of its micro-batches, in which a target weighs more where
        /// there are few, as until version 0.1. A run from that time is resumed with "micro-batches".
        loss_mean: LossMean = choice!(LossMean, LossMean::ALL).default("\"targets\"");
        /// The part of each target's probability that is spread evenly over all classes in training, as
        /// PyTorch's `label_smoothing`; for images.
        label_smoothing: f64 = Row::number(Interval::Fraction).default("0");
        /// Factor of a loss that balances the loads of experts, for each layer experts · Σ f · P over experts
        /// with the share f of the choices of a micro-batch and the mean score P, as in Switch Transformers
        /// and transformers' `router_aux_loss_coef`, where f is larger by `experts_per_token`. It changes
        /// gradients, and is not part of the loss that is reported.
        balance_loss: f64 = Row::number(Interval::NotNegative).default("0");
        /// Factor of a loss that keeps the outputs of routers small, for each layer the mean square of their
        /// log-sum-exp, as in ST-MoE. It is not part of the loss that is reported. Padding of conversations,
        /// pairs and packed documents is no part of it, of `balance_loss`, and of loads.
        router_z_loss: f64 = Row::number(Interval::NotNegative).default("0");
        /// Change of the corrections of experts after each step, up for those with fewer tokens than the
        /// mean, down for those with more, as in DeepSeek-V3, which has 0.001; 0: they stay as they are.
        correction_rate: f64 = Row::number(Interval::NotNegative).default("0");
        /// Globs of the names of parameters that are not trained, such as "wte.*" or "h.[0-5].*": they have
        /// no gradient, no master weight and no optimizer state.
        freeze: Vec<String> = Row::texts().default("[]");
        /// Steps between validations; 0: only after the last step.
        validate_every: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Successive steps with a loss or gradient norm that is not finite after which a run ends. A
        /// gradient whose norm is not finite updates nothing.
        max_nonfinite_steps: u64 = Row::integer(1, MOST).default("1").any_bits();
        /// Validations without a lower loss after which the run ends; 0: it does all steps.
        patience: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// After a step that runs out of memory: "stop" ends the run; "halve_micro_batch" halves
        /// `micro_batch_size`, doubles the number of micro-batches, and repeats the step with the same
        /// samples, from ZeRO stage 2 on from the last checkpoint. Ranks of one process, without a pipeline;
        /// gradients are summed after backward.
        on_out_of_memory: OnOutOfMemory =
            choice!(OnOutOfMemory, OnOutOfMemory::ALL).default("\"stop\"").any_bits();
        /// After a step whose gradient norm is more than `spike_deviations` standard deviations above the
        /// mean of recent ones, and whose update is left out: "stop" ends the run, "skip" goes on with the
        /// next step, and "rewind" goes back to the last checkpoint and leaves out the step's samples.
        /// "ignore": there is no limit. The decisions are the same on every grid, and listed in spikes.json.
        on_spike: OnSpike = choice!(OnSpike, OnSpike::ALL).default("\"ignore\"").may_change();
        /// Standard deviations above the mean from which a gradient norm is a spike.
        spike_deviations: f64 = Row::number(Interval::Positive).default("6").may_change()
            .only(Train::on_spike, &["stop", "skip", "rewind"]);
        /// Steps whose norms give mean and deviation: those up to two steps before, without spikes. There is
        /// no limit before 8 of them.
        spike_window: usize = Row::count(2, 1 << 16).default("128").may_change()
            .only(Train::on_spike, &["stop", "skip", "rewind"]);
        /// Use of CUDA graphs on a GPU: after the first steps the calls of a step are captured once, and
        /// later steps launch them together, which saves most of the host's time; the calls between ranks
        /// are made again one by one. "auto": where no rank offloads and each has a GPU of its own; a log
        /// line says why a step is not captured. "on": such a step is refused. "off": every step makes its
        /// calls one by one, which a process needs that runs another job on the same GPU at the same time.
        /// The steps in which `sample` draws tokens and the micro-batches of validations and of `eval` are
        /// captured too, and make their calls if that fails. No bit and no byte of a plan depends on it; the
        /// driver's memory for graphs counts as warm-up.
        graphs: Graphs = choice!(Graphs, Graphs::ALL).default("\"auto\"").any_bits();
        /// Steps between verifications; 0: none. Before every such step each data-parallel rank runs a
        /// micro-batch of another one, or if there is none of its own, and the results of all operators are
        /// compared with those of the step. A difference ends the run and names ranks, GPUs and operator. No
        /// bit of the run changes.
        verify_every: u64 = Row::integer(0, MOST).default("0").any_bits();
        /// Micro-batches in a validation, over all ranks. Of images and conversations, those beyond the last
        /// are empty.
        validation_micro_batches: u64 = Row::integer(1, 1 << 20).default("8").any_bits();
    }
}

/// Returns the epochs; 0 if `steps` is the length of the run.
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

/// Returns the sequences of a micro-batch.
pub(crate) fn default_micro_batch_size(raw: &RawValues) -> Result<u64, Error> {
    let global = raw.is_set(Train::global_batch_size).then(|| raw.integer(Train::global_batch_size));
    let tuned = match global.transpose()? {
        Some(global) if !global.is_multiple_of(2) => 1,
        _ => 2,
    };
    fine_tuning::integer(raw, Train::micro_batch_size, tuned, 8)
}

/// Returns the sequences of a step.
pub(crate) fn default_global_batch_size(raw: &RawValues) -> Result<u64, Error> {
    let micro = raw.is_set(Train::micro_batch_size).then(|| raw.integer(Train::micro_batch_size));
    let micro = micro.transpose()?.unwrap_or(1).max(1);
    fine_tuning::integer(raw, Train::global_batch_size, 8_u64.next_multiple_of(micro), 32)
}

impl Train {
    /// Micro-batches in a step, over all ranks.
    #[must_use]
    pub fn micro_batches(&self) -> usize {
        self.global_batch_size / self.micro_batch_size
    }

    /// Returns the steps that `epochs` over `sequences` training sequences or images take; `None` if `steps`
    /// is their number, or if there is no sequence.
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
