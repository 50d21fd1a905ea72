//! Batch normalisation with running statistics.

use autograd::ops::{self, Statistics};
use autograd::{Mode, Tape, Var, Weight};
use nn::layers::{short, within};
use nn::{ChannelStatistics, Init, Parameters, Result};
use tensor::Tensor;

/// Epsilon added to the variance, PyTorch's default.
const EPSILON: f32 = 1e-5;

/// Normalises each channel to mean 0 and variance 1, then applies weight and bias. A residual addition and
/// ReLU may follow in the same kernel. Training uses the statistics of the micro-batch, evaluation uses
/// running averages.
#[derive(Debug)]
pub struct BatchNorm {
    name: String,
    weight: Weight,
    bias: Weight,
    statistics: ChannelStatistics,
}

impl BatchNorm {
    /// Registers `{name}.weight` (ones) and `{name}.bias` (zeros), both `[channels]`, and running statistics,
    /// which [`BatchNorm::allocate_statistics`] allocates.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub fn new(parameters: &mut Parameters, name: &str, channels: usize) -> Result<Self> {
        let weight = parameters.create(&format!("{name}.weight"), [channels], Init::Constant(1.0))?;
        let bias = parameters.create(&format!("{name}.bias"), [channels], Init::Constant(0.0))?;
        let statistics = parameters.statistics().add(name, channels);
        Ok(BatchNorm { name: name.to_owned(), weight, bias, statistics })
    }

    /// Allocates the running statistics of all batch norms registered so far in `parameters`, and registers
    /// their buffers. A model calls this once, after building its layers.
    ///
    /// # Errors
    /// Memory is exhausted, or a name exists.
    pub fn allocate_statistics(parameters: &mut Parameters) -> Result<()> {
        let statistics = parameters.statistics();
        match statistics.is_empty() {
            true => Ok(()),
            false => {
                statistics.allocate(parameters.device()).and_then(|buffers| parameters.register(buffers))
            }
        }
    }

    /// Normalises `x_nhwc [.., channels]`.
    ///
    /// # Errors
    /// The shape or dtype differs, or memory is exhausted.
    pub fn forward(&self, tape: &Tape, x_nhwc: Var) -> Result<Var> {
        self.run(tape, x_nhwc, None, false)
    }

    /// Computes relu(norm(x) + residual).
    pub fn forward_relu(&self, tape: &Tape, x_nhwc: Var, residual_nhwc: Option<Var>) -> Result<Var> {
        self.run(tape, x_nhwc, residual_nhwc, true)
    }

    /// Returns the operator's parameters and options.
    pub(super) fn operands(&self, relu: bool) -> ops::BatchNorm {
        let BatchNorm { weight, bias, .. } = self;
        ops::BatchNorm { weight: weight.clone(), bias: bias.clone(), epsilon: EPSILON, relu }
    }

    /// Returns the running averages of mean and variance, `[channels]` f32 each.
    ///
    /// # Errors
    /// The statistics have not been allocated.
    pub(super) fn averages(&self) -> Result<[Tensor; 2]> {
        self.statistics.averages()
    }

    fn run(&self, tape: &Tape, x_nhwc: Var, residual_nhwc: Option<Var>, relu: bool) -> Result<Var> {
        let norm = self.operands(relu);
        within(tape, short(&self.name), || {
            if tape.mode() == Mode::Evaluate {
                let [mean_c, variance_c] = &self.averages()?;
                let running = Statistics::Running([mean_c, variance_c]);
                return Ok(ops::batch_norm(tape, x_nhwc, residual_nhwc, &norm, running)?);
            }
            let record = self.statistics.record(tape)?;
            Ok(ops::batch_norm(
                tape,
                x_nhwc,
                residual_nhwc,
                &norm,
                Statistics::Batch { record: record.as_ref() },
            )?)
        })
    }
}
