//! `plimsoll bench attention`.

use bench::{AttentionSizes, AttentionTime, bench_attention};
use device::{DType, Device};
use serde::Serialize;
use telemetry::table::aligned;
use tensor::ops::attention::Heads;

use crate::arguments::count;
use crate::bench_operands::CallArgs;
use crate::error::CliError;
use crate::output::{print, print_json, rounded};

/// Measure causal attention alone, forward and backward, by head width
///
/// Prints the milliseconds of a call (the median of several after a warm-up) and TFLOP/s. FLOPs are counted
/// for matmuls over visible pairs of query and key: two matmuls forward and five backward. A kernel that
/// computes more than necessary therefore shows a lower rate. benches/peers/attention.py measures PyTorch at
/// the same sizes: its SDPA backends, and FlexAttention with --window.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchAttentionArgs {
    /// Head widths (columns per head); each width is a row of the table
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "64,80,128,192,256",
        value_parser = count::<usize>
    )]
    head_widths: Vec<usize>,
    /// Columns per head of values and output [default: as queries and keys]
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    value_width: Option<usize>,
    /// Total columns of all query heads; as many whole heads as fit, at least one
    #[arg(long, value_name = "N", default_value = "2048", value_parser = count::<usize>)]
    columns: usize,
    /// Number of query heads at every width, instead of --columns
    #[arg(long, value_name = "N", conflicts_with = "columns", value_parser = count::<usize>)]
    heads: Option<usize>,
    /// Number of key and value heads, shared by consecutive query heads [default: as many as query heads]
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    key_value_heads: Option<usize>,
    /// Number of sequences
    #[arg(long, value_name = "N", default_value = "4", value_parser = count::<usize>)]
    batch: usize,
    /// Number of positions in a sequence
    #[arg(long, value_name = "N", default_value = "4096", value_parser = count::<usize>)]
    positions: usize,
    /// Number of keys visible to a query, including its own position [default: all up to its own]
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    window: Option<usize>,
    /// Number of pieces in which each sequence is computed, one call each, as with context parallelism; times
    /// are the sum over all pieces
    #[arg(long, value_name = "N", default_value = "1", value_parser = count::<usize>)]
    pieces: usize,
    #[command(flatten)]
    call: CallArgs,
}

impl BenchAttentionArgs {
    fn sizes(&self, width: usize) -> Result<AttentionSizes, CliError> {
        let query = self.heads.unwrap_or((self.columns / width).max(1));
        let key_value = self.key_value_heads.unwrap_or(query);
        if !query.is_multiple_of(key_value) {
            let text = format!("--key-value-heads {key_value}: they do not divide {query} query heads");
            return Err(CliError::Refused(text));
        }
        let value_width = self.value_width.unwrap_or(width);
        let heads = Heads { value_width, ..Heads::grouped(query, key_value, width) };
        let Self { batch, positions, window, pieces, .. } = *self;
        Ok(AttentionSizes { batch, positions, heads, window, pieces })
    }
}

/// Runs the command: measures and prints.
///
/// # Errors
/// The arguments are invalid, or the device is missing or fails.
pub(crate) fn run(args: &BenchAttentionArgs) -> Result<(), CliError> {
    let widths = args.head_widths.iter().map(|width| args.sizes(*width));
    let widths = widths.collect::<Result<Vec<_>, _>>()?;
    let (device, dtype) = args.call.device_and_type()?;
    let mut lines = Vec::new();
    for sizes in &widths {
        let line =
            Line::from_time(&device, sizes, dtype, &bench_attention(&device, sizes, dtype, args.call.calls)?);
        if args.call.json {
            print_json(&line)?;
        }
        lines.push(line);
    }
    if args.call.json {
        return Ok(());
    }
    let window = args.window.map_or_else(String::new, |window| format!(", windows of {window}"));
    let AttentionSizes { batch, positions, pieces, .. } = widths[0];
    let pieces = if pieces > 1 { format!(" in {pieces} pieces") } else { String::new() };
    print(&format!(
        "{}\ncausal attention{window}, {dtype}, {batch} × {positions} positions{pieces}, median of {} \
         calls\n\n{}",
        device.description().model,
        args.call.calls,
        table(&lines)
    ))
}

/// Measurement of one width, printed as a line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    device: &'a str,
    precision: String,
    batch: usize,
    positions: usize,
    window: Option<usize>,
    pieces: usize,
    head_width: usize,
    value_width: usize,
    heads: usize,
    key_value_heads: usize,
    forward_milliseconds: f64,
    forward_tflops_per_second: f64,
    backward_milliseconds: f64,
    backward_tflops_per_second: f64,
}

impl<'a> Line<'a> {
    fn from_time(device: &'a Device, sizes: &AttentionSizes, dtype: DType, time: &AttentionTime) -> Self {
        let rate = |flops: f64, seconds: f64| rounded(flops / seconds / 1e12, 3);
        Line {
            device: &device.description().model,
            precision: dtype.to_string(),
            batch: sizes.batch,
            positions: sizes.positions,
            window: sizes.window,
            pieces: sizes.pieces,
            head_width: sizes.heads.width,
            value_width: sizes.heads.value_width,
            heads: sizes.heads.query,
            key_value_heads: sizes.heads.key_value,
            forward_milliseconds: rounded(1e3 * time.forward, 4),
            forward_tflops_per_second: rate(sizes.flops(1, 1), time.forward),
            backward_milliseconds: rounded(1e3 * time.backward, 4),
            backward_tflops_per_second: rate(sizes.flops(3, 2), time.backward),
        }
    }
}

/// Formats a table with a row for each width.
fn table(lines: &[Line<'_>]) -> String {
    let titles = ["width", "values", "heads", "keys", "forward ms", "TFLOP/s", "backward ms", "TFLOP/s"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(lines.iter().map(|line| {
        vec![
            line.head_width.to_string(),
            line.value_width.to_string(),
            line.heads.to_string(),
            line.key_value_heads.to_string(),
            format!("{:.3}", line.forward_milliseconds),
            rate(line.forward_tflops_per_second),
            format!("{:.3}", line.backward_milliseconds),
            rate(line.backward_tflops_per_second),
        ]
    }));
    aligned(&rows, 2, &[])
}

/// Formats a rate with one decimal, or three if it is small.
fn rate(rate: f64) -> String {
    let digits = if rate < 10.0 { 3 } else { 1 };
    format!("{rate:.digits$}")
}
