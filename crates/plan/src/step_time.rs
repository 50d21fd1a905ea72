//! The predicted time of a training step, as text and as JSON.

use std::fmt;

use serde::Serialize;
use telemetry::Phase;
use telemetry::table::aligned;
use telemetry::units::grouped;

/// Calls of one family in a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FamilySeconds {
    /// Family of the kernel, or `matmul`, `convolution`, `copy` or a communication operation.
    pub family: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Seconds on the device.
    pub seconds: f64,
}

/// Breakdown of a predicted step for one pipeline stage, in seconds: work by phase, and waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepParts {
    /// Copies of inputs, and waits for them.
    pub inputs_seconds: f64,
    /// Forward passes.
    pub forward_seconds: f64,
    /// Backward passes, with recomputation.
    pub backward_seconds: f64,
    /// Waits for other pipeline stages, including those at the end of a step.
    pub pipeline_seconds: f64,
    /// Waits for tensor-parallel ranks.
    pub layers_seconds: f64,
    /// Waits for context-parallel ranks.
    pub sequences_seconds: f64,
    /// Waits for gradients or weights of other ranks.
    pub reduction_seconds: f64,
    /// Waits for copies of offloaded tensors.
    pub offload_seconds: f64,
    /// Gradient norm, clipping and update.
    pub optimizer_seconds: f64,
    /// Waits for the host.
    pub host_seconds: f64,
}

/// Electric energy of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepEnergy {
    /// Joules of all GPUs together.
    pub joules: f64,
    /// Watts of each GPU.
    pub watts: f64,
    /// Source of the watts: `power limit` or `measured power`.
    pub source: &'static str,
}

/// The kind of data on which a prediction is based.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Calls measured on such a device.
    MeasuredCalls,
    /// Rates measured on such a device.
    MeasuredRates,
    /// The device's data sheet.
    DataSheet,
    /// Rates of another device model.
    AnotherModel,
}

impl Basis {
    /// Returns whether the data was measured on such a device.
    #[must_use]
    pub fn is_measured(self) -> bool {
        matches!(self, Basis::MeasuredCalls | Basis::MeasuredRates)
    }

    /// Returns the clause that marks an estimate; empty for measured data.
    fn in_words(self) -> &'static str {
        match self {
            Basis::MeasuredCalls | Basis::MeasuredRates => "",
            Basis::DataSheet => ", an estimate from the data sheet: nothing was measured on such a device",
            Basis::AnotherModel => ", an estimate with the rates of another model of GPU",
        }
    }
}

/// Prediction of a step. The parts are those of the rank that computes the longest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTime {
    /// Model of the device.
    pub device_model: String,
    /// Kind of data on which the prediction is based.
    pub basis: Basis,
    /// Seconds of the step.
    pub step_seconds: f64,
    /// Breakdown of the step; the parts sum to the step.
    #[serde(flatten)]
    pub parts: StepParts,
    /// Mean fraction of the step in which ranks of the pipeline wait for each other.
    pub pipeline_idle: f64,
    /// Breakdown for each rank of the pipeline.
    pub stages: Vec<StepParts>,
    /// Number of tokens in a step, or of samples for models without tokens.
    pub tokens: u64,
    /// Unit of the throughput: tokens/s, samples/s or images/s.
    pub unit: &'static str,
    /// Tokens per second over all ranks.
    pub tokens_per_second: f64,
    /// Tokens per second of each rank.
    pub tokens_per_second_per_rank: f64,
    /// Number of ranks.
    pub ranks: usize,
    /// Whether steps are replayed as CUDA graphs.
    #[serde(rename = "replayed_as_graphs")]
    pub is_replayed: bool,
    /// Model FLOPs utilization, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Hours of all steps of the run.
    pub hours: f64,
    /// Electric energy of a step, if the device's power is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<StepEnergy>,
    /// Calls of the step by family, the longest first.
    pub families: Vec<FamilySeconds>,
    /// Fraction of the device time in kinds of calls that were measured on such a device.
    pub measured_share: f64,
    /// Rates that were assumed, not measured.
    pub assumed: Vec<String>,
    #[serde(skip)]
    pub(crate) steps: u64,
}

impl StepTime {
    /// Returns the mean of `steps`, weighted by each step's share of the run. Figures without a mean are
    /// those of the last step. `None` without steps.
    pub(crate) fn mean(steps: Vec<(f64, StepTime)>) -> Option<Self> {
        let weighted =
            |figure: &dyn Fn(&StepTime) -> f64| steps.iter().map(|(share, step)| share * figure(step)).sum();
        let step_seconds: f64 = weighted(&|step| step.step_seconds);
        let factor = |step: &StepTime| step_seconds / step.step_seconds;
        let mut parts = StepParts::default();
        let mut stages: Vec<StepParts> = Vec::new();
        let mut families: Vec<FamilySeconds> = Vec::new();
        for (share, step) in &steps {
            parts.add(step.parts, *share);
            stages.resize(stages.len().max(step.stages.len()), StepParts::default());
            stages.iter_mut().zip(&step.stages).for_each(|(sum, stage)| sum.add(*stage, *share));
            for family in &step.families {
                match families.iter_mut().find(|other| other.family == family.family) {
                    Some(sum) => sum.seconds += share * family.seconds,
                    None => families.push(FamilySeconds { seconds: share * family.seconds, ..*family }),
                }
            }
        }
        families.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        let last = steps.last()?.1.clone();
        let energy = last.energy.map(|energy| StepEnergy { joules: energy.joules * factor(&last), ..energy });
        Some(StepTime {
            step_seconds,
            parts,
            pipeline_idle: weighted(&|step| step.pipeline_idle),
            stages,
            tokens_per_second: last.tokens_per_second / factor(&last),
            tokens_per_second_per_rank: last.tokens_per_second_per_rank / factor(&last),
            hours: last.hours * factor(&last),
            energy,
            families,
            measured_share: weighted(&|step| step.measured_share),
            ..last
        })
    }
}

impl StepParts {
    /// Adds the fraction `share` of the seconds of other parts.
    fn add(&mut self, other: Self, share: f64) {
        self.inputs_seconds += share * other.inputs_seconds;
        self.forward_seconds += share * other.forward_seconds;
        self.backward_seconds += share * other.backward_seconds;
        self.pipeline_seconds += share * other.pipeline_seconds;
        self.layers_seconds += share * other.layers_seconds;
        self.sequences_seconds += share * other.sequences_seconds;
        self.reduction_seconds += share * other.reduction_seconds;
        self.offload_seconds += share * other.offload_seconds;
        self.optimizer_seconds += share * other.optimizer_seconds;
        self.host_seconds += share * other.host_seconds;
    }

    /// Returns the seconds of each part by name, in the order of a step.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 10] {
        [
            ("inputs", self.inputs_seconds),
            ("forward", self.forward_seconds),
            ("backward", self.backward_seconds),
            ("idle in the pipeline", self.pipeline_seconds),
            ("waiting for shared layers", self.layers_seconds),
            ("waiting for shared sequences", self.sequences_seconds),
            ("waiting for gradients and weights", self.reduction_seconds),
            ("waiting for copies from host memory", self.offload_seconds),
            ("optimizer", self.optimizer_seconds),
            ("waiting for the host", self.host_seconds),
        ]
    }

    /// Returns the seconds of a phase of the step.
    #[must_use]
    pub fn of_phase(&self, phase: Phase) -> f64 {
        match phase {
            Phase::Inputs => self.inputs_seconds,
            Phase::Forward => self.forward_seconds,
            Phase::Backward => self.backward_seconds,
            Phase::Pipeline => self.pipeline_seconds,
            Phase::Exchange => self.exchange_seconds(),
            Phase::Reduce => self.reduction_seconds,
            Phase::Update => self.optimizer_seconds,
        }
    }

    /// Returns the seconds of waiting for tensor- and context-parallel ranks.
    #[must_use]
    pub fn exchange_seconds(&self) -> f64 {
        self.layers_seconds + self.sequences_seconds
    }
}

impl StepTime {
    /// Returns the joules of all steps of the run.
    fn joules_of_run(&self) -> Option<f64> {
        Some(self.energy?.joules * self.steps as f64)
    }
}

/// Formats joules in a suitable unit.
fn energy(joules: f64) -> String {
    match joules {
        joules if joules < 1e3 => format!("{joules:.1} J"),
        joules if joules < 3.6e6 => format!("{:.2} kJ", joules / 1e3),
        joules if joules < 3.6e9 => format!("{:.2} kWh", joules / 3.6e6),
        joules => format!("{:.2} MWh", joules / 3.6e9),
    }
}

impl fmt::Display for StepTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = |seconds: f64| format!("{:.2} ms", 1e3 * seconds);
        writeln!(f, "predicted: {} a step{}", milliseconds(self.step_seconds), self.basis.in_words())?;
        let is_shown = |(_, seconds): &(&str, f64)| *seconds >= 5e-6;
        let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / self.step_seconds);
        let row = |(name, seconds): (&str, f64)| vec![name.to_owned(), milliseconds(seconds), share(seconds)];
        let rows: Vec<_> = self.parts.named().into_iter().filter(is_shown).map(row).collect();
        write!(f, "{}", aligned(&rows, 1, &[]))?;
        write!(f, "{} {}, ", grouped(self.tokens_per_second as u64), self.unit)?;
        if self.ranks > 1 {
            write!(f, "{} for each GPU, ", grouped(self.tokens_per_second_per_rank as u64))?;
        }
        if let Some(mfu) = self.mfu {
            write!(f, "MFU {:.1} %, ", 100.0 * mfu)?;
        }
        match self.hours {
            hours if hours < 1.0 => writeln!(f, "{:.1} minutes for all steps", 60.0 * hours)?,
            hours => writeln!(f, "{hours:.1} hours for all steps")?,
        }
        if let (Some(of_step), Some(of_run)) = (self.energy, self.joules_of_run()) {
            let StepEnergy { joules, watts, source } = of_step;
            let of_step = energy(joules);
            let of_run = energy(of_run);
            writeln!(
                f,
                "{of_step} a step and {of_run} for all, at the {source} of {watts:.0} W for each GPU"
            )?;
        }
        if self.is_replayed {
            writeln!(f, "steps are replayed as CUDA graphs (train.graphs)")?;
        }
        let measured = 100.0 * self.measured_share;
        let assumed = assumed_in_words(&self.assumed);
        writeln!(f, "{measured:.0} % of the device's time is in calls measured on such a device{assumed}")
    }
}

/// Maximum number of assumptions that a text names; further ones are only counted.
const NAMED: usize = 2;

/// Describes the assumptions of a prediction as the end of a sentence; empty without assumptions.
pub(crate) fn assumed_in_words(assumed: &[String]) -> String {
    match assumed {
        [] => String::new(),
        names if names.len() <= NAMED => format!("; assumed, not measured: {}", names.join(", ")),
        names => format!("; {} figures are assumed, not measured (--json names them)", names.len()),
    }
}
