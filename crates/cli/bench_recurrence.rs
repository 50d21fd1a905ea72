//! `plimsoll bench recurrence`.

use bench::{Recurrence, RecurrenceSizes, RecurrenceTime, bench_recurrence};
use device::{DType, Device};
use serde::Serialize;
use telemetry::table::aligned;

use crate::arguments::count;
use crate::bench_operands::CallArgs;
use crate::error::CliError;
use crate::output::{print, print_json, rounded};

/// Measure recurrent operators alone, forward and backward: the gated delta rule and the state space scan
///
/// Prints the milliseconds of a call (the median of several after a warm-up) and, on a GPU, its floor: the
/// longer of the time to copy its bytes and to multiply its FLOPs, at the device's own best rates for large
/// copies and matmuls. Bytes count operands and results. In the backward pass they also count the states
/// before all chunks of 64 tokens, written and read once.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchRecurrenceArgs {
    /// Operators, each a row of the table: delta, delta-by-channel, scan
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "delta,scan")]
    operators: Vec<String>,
    /// Number of sequences
    #[arg(long, value_name = "N", default_value = "4", value_parser = count::<usize>)]
    batch: usize,
    /// Number of positions in a sequence
    #[arg(long, value_name = "N", default_value = "4096", value_parser = count::<usize>)]
    positions: usize,
    /// Number of heads, each with a state
    #[arg(long, value_name = "N", default_value = "32", value_parser = count::<usize>)]
    heads: usize,
    /// Number of key heads, or groups of a scan, shared by consecutive heads [default: as many as heads]
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    key_heads: Option<usize>,
    /// Columns of a query or key; rows of a state
    #[arg(long, value_name = "N", default_value = "128", value_parser = count::<usize>)]
    width: usize,
    /// Columns of a value [default: as of a key]
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    value_width: Option<usize>,
    #[command(flatten)]
    call: CallArgs,
}

/// Runs the command: measures and prints.
///
/// # Errors
/// The arguments are invalid, or the device is missing or fails.
pub(crate) fn run(args: &BenchRecurrenceArgs) -> Result<(), CliError> {
    let find = |name: &String| {
        let refused = || format!("--operators {name}: unknown; there are delta, delta-by-channel and scan");
        let found = Recurrence::ALL.into_iter().find(|operator| operator.name() == name);
        found.ok_or_else(|| CliError::Refused(refused()))
    };
    let operators = args.operators.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let (device, dtype) = args.call.device_and_type()?;
    let sizes = RecurrenceSizes {
        batch: args.batch,
        positions: args.positions,
        heads: args.heads,
        key_heads: args.key_heads.unwrap_or(args.heads),
        width: args.width,
        value_width: args.value_width.unwrap_or(args.width),
    };
    let mut lines = Vec::new();
    for operator in operators {
        let time = bench_recurrence(&device, (operator, &sizes), dtype, args.call.calls)?;
        let line = Line::from_time(&device, (operator, &sizes), dtype, time);
        if args.call.json {
            print_json(&line)?;
        }
        lines.push(line);
    }
    if args.call.json {
        return Ok(());
    }
    let RecurrenceSizes { batch, positions, heads, key_heads, width, value_width } = sizes;
    print(&format!(
        "{}\n{dtype}, {batch} × {positions} positions, {heads} heads ({key_heads} of keys) of \
         {width}/{value_width}, median of {} calls\n\n{}",
        device.description().model,
        args.call.calls,
        table(&lines)
    ))
}

/// Measurement of one operator, printed as a line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    device: &'a str,
    precision: String,
    operator: &'static str,
    batch: usize,
    positions: usize,
    heads: usize,
    key_heads: usize,
    width: usize,
    value_width: usize,
    forward_milliseconds: f64,
    forward_floor_milliseconds: Option<f64>,
    backward_milliseconds: f64,
    backward_floor_milliseconds: Option<f64>,
}

impl<'a> Line<'a> {
    fn from_time(
        device: &'a Device,
        (operator, sizes): (Recurrence, &RecurrenceSizes),
        dtype: DType,
        time: RecurrenceTime,
    ) -> Self {
        let milliseconds = |seconds: f64| rounded(1e3 * seconds, 4);
        let RecurrenceSizes { batch, positions, heads, key_heads, width, value_width } = *sizes;
        Line {
            device: &device.description().model,
            precision: dtype.to_string(),
            operator: operator.name(),
            batch,
            positions,
            heads,
            key_heads,
            width,
            value_width,
            forward_milliseconds: milliseconds(time.forward),
            forward_floor_milliseconds: time.floors.map(|[forward, _]| milliseconds(forward)),
            backward_milliseconds: milliseconds(time.backward),
            backward_floor_milliseconds: time.floors.map(|[_, backward]| milliseconds(backward)),
        }
    }
}

/// Formats a table with a row for each operator and pass, and for both passes together.
fn table(lines: &[Line<'_>]) -> String {
    let titles = ["operator", "pass", "ms", "floor ms", "ratio"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for line in lines {
        let floors = [line.forward_floor_milliseconds, line.backward_floor_milliseconds];
        let both = floors[0].zip(floors[1]).map(|(forward, backward)| forward + backward);
        let passes = [
            ("forward", line.forward_milliseconds, floors[0]),
            ("backward", line.backward_milliseconds, floors[1]),
            ("both", line.forward_milliseconds + line.backward_milliseconds, both),
        ];
        rows.extend(passes.map(|(pass, milliseconds, floor)| {
            vec![
                line.operator.to_owned(),
                pass.to_owned(),
                format!("{milliseconds:.3}"),
                floor.map_or_else(String::new, |floor| format!("{floor:.3}")),
                floor.map_or_else(String::new, |floor| format!("{:.2}", milliseconds / floor)),
            ]
        }));
    }
    aligned(&rows, 2, &[])
}
