//! The result of measuring a collective, and errors.

use collective::{CollectiveError, Communicator};
use device::{DeviceError, StreamKind};
use parallel::ParallelError;
use serde::Serialize;
use system::terminal;
use tensor::TensorError;

/// Stream on which every measured call runs.
pub(super) const STREAM: StreamKind = StreamKind::Reduce;

/// Bytes that a rank's link carries for each byte of the operand, as a function of the number of ranks.
pub(super) type Bus = fn(f64) -> f64;

/// Bus factor of an all-reduce, which scatters and gathers the operand.
pub(super) const BOTH_WAYS: Bus = |n| 2.0 * (n - 1.0) / n;
/// Bus factor of reduce-scatter and all-gather.
pub(super) const ONE_WAY: Bus = |n| (n - 1.0) / n;
/// Bus factor of operations that send the operand once.
pub(super) const ONCE: Bus = |_| 1.0;

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
pub(super) enum BenchError {
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    #[error("standard output: {0}")]
    Output(#[from] std::io::Error),
}

/// Result of a measurement.
pub(super) type Result<T> = std::result::Result<T, BenchError>;

/// A measured operation, printed as a line of JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Measurement<'a> {
    ranks: usize,
    pub(super) operation: &'a str,
    pub(super) dtype: &'a str,
    pub(super) bytes: usize,
    pub(super) seconds: f64,
    /// `None` for a barrier, which moves no data.
    #[serde(flatten)]
    pub(super) bandwidth: Option<Bandwidth>,
}

/// Bandwidth of an operation, in 10⁹ bytes per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Bandwidth {
    #[serde(rename = "algorithm_gigabytes_per_second")]
    pub(super) algorithm: f64,
    #[serde(rename = "bus_gigabytes_per_second")]
    pub(super) bus: f64,
}

impl<'a> Measurement<'a> {
    /// Creates the result of an operation on `bytes` bytes of elements of `dtype`.
    pub(super) fn new(
        ranks: usize,
        operation: &'a str,
        (dtype, bytes): (&'a str, usize),
        seconds: f64,
        bus: Bus,
    ) -> Self {
        let algorithm = bytes as f64 / seconds / 1e9;
        let bandwidth = Some(Bandwidth { algorithm, bus: algorithm * bus(ranks as f64) });
        Measurement { ranks, operation, dtype, bytes, seconds, bandwidth }
    }

    /// Creates the result of a barrier, measured along with operands of `dtype`.
    pub(super) fn barrier(ranks: usize, dtype: &'a str, seconds: f64) -> Self {
        Measurement { ranks, operation: "barrier", dtype, bytes: 0, seconds, bandwidth: None }
    }
}

/// Prints a line on rank 0.
pub(super) fn say(communicator: &Communicator, line: &str) -> Result<()> {
    if communicator.rank() == 0 {
        terminal::print_to_reader(&format!("{}\n", line.trim_end()))?;
    }
    Ok(())
}

/// Prints `value` as a line of JSON on rank 0.
pub(super) fn say_json(communicator: &Communicator, value: &impl Serialize) -> Result<()> {
    say(communicator, &serde_json::to_string(value).map_err(std::io::Error::from)?)
}
