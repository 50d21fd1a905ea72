//! `plimsoll bench experts`.

use bench::{ExpertSizes, ExpertTime, Spread, bench_experts, measured_device};
use device::{DType, Device};
use serde::Serialize;
use telemetry::table::aligned;
use worker::DeviceChoice;

use crate::arguments::count;
use crate::bench_operands::operand_type;
use crate::error::CliError;
use crate::output::{print, print_json, rounded};

/// Measure the matmuls of an expert layer alone: outputs, input gradients and weight gradients
///
/// Prints the milliseconds of a call (the median of several after a warm-up) and TFLOP/s, for rows
/// distributed evenly over the experts, unevenly, and to a single expert. Weight gradients are written in the
/// operands' dtype (bf16 for FP8), or accumulated in f32. benches/peers/experts.py also measures PyTorch's
/// grouped matmuls.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchExpertsArgs {
    /// Number of experts
    #[arg(long, value_name = "N", default_value = "128", value_parser = count::<usize>)]
    experts: usize,
    /// Total rows of all experts, approximately; each expert has a multiple of 16
    #[arg(long, value_name = "N", default_value = "65536", value_parser = count::<usize>)]
    rows: usize,
    /// Number of outputs of an expert
    #[arg(long, value_name = "N", default_value = "1536", value_parser = count::<usize>)]
    outputs: usize,
    /// Number of inputs of an expert
    #[arg(long, value_name = "N", default_value = "2048", value_parser = count::<usize>)]
    inputs: usize,
    /// Distributions of rows: balanced, skewed (in proportion to 1, 1/2, 1/3 …) or one
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "balanced,skewed,one")]
    spreads: Vec<String>,
    /// Dtype of the operands: bf16, f16, f32 or fp8 [default: bf16 on a GPU, f32 otherwise]
    #[arg(long)]
    precision: Option<String>,
    /// Device: auto, cpu or cuda; on a CPU, use small sizes such as --experts 4 --rows 256 --outputs 64
    /// --inputs 64
    #[arg(long, default_value = "auto")]
    device: String,
    /// Number of timed calls of each matmul
    #[arg(long, value_name = "N", default_value = "20", value_parser = count::<usize>)]
    calls: usize,
    /// Print a line of JSON for each distribution instead of a table
    #[arg(long)]
    json: bool,
}

/// Dtypes of the operands, by name.
const TYPES: &[(&str, DType)] =
    &[("bf16", DType::Bf16), ("f16", DType::F16), ("f32", DType::F32), ("fp8", DType::E4m3)];

impl BenchExpertsArgs {
    fn spreads(&self) -> Result<Vec<Spread>, CliError> {
        let find_spread = |name: &String| {
            let spread = Spread::ALL.into_iter().find(|spread| spread.name() == name);
            let text = || format!("--spreads {name}: unknown; there are balanced, skewed and one");
            spread.ok_or_else(|| CliError::Refused(text()))
        };
        self.spreads.iter().map(find_spread).collect()
    }
}

/// Runs the command: measures and prints.
///
/// # Errors
/// The arguments are invalid, or the device is missing or fails.
pub(crate) fn run(args: &BenchExpertsArgs) -> Result<(), CliError> {
    let spreads = args.spreads()?;
    let device = measured_device(DeviceChoice::from_name(&args.device)?)?;
    let dtype = operand_type(args.precision.as_deref(), TYPES, &device)?;
    let mut lines = Vec::new();
    for spread in spreads {
        let rows = spread.rows(args.rows, args.experts);
        let sizes = ExpertSizes { rows, outputs: args.outputs, inputs: args.inputs };
        let time = bench_experts(&device, &sizes, dtype, args.calls)?;
        let line = Line::from_time(&device, (spread, &sizes), dtype, time);
        if args.json {
            print_json(&line)?;
        }
        lines.push(line);
    }
    if args.json {
        return Ok(());
    }
    print(&format!(
        "{}\n{} experts of {} × {}, {dtype}, about {} rows, median of {} calls\n\n{}",
        device.description().model,
        args.experts,
        args.outputs,
        args.inputs,
        args.rows,
        args.calls,
        table(&lines)
    ))
}

/// Measurement of one distribution, printed as a line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    device: &'a str,
    precision: String,
    spread: &'static str,
    experts: usize,
    rows: usize,
    outputs: usize,
    inputs: usize,
    flops: f64,
    forward_milliseconds: f64,
    input_milliseconds: f64,
    weight_milliseconds: f64,
    weight_f32_milliseconds: f64,
}

impl<'a> Line<'a> {
    fn from_time(
        device: &'a Device,
        (spread, sizes): (Spread, &ExpertSizes),
        dtype: DType,
        time: ExpertTime,
    ) -> Self {
        let milliseconds = |seconds: f64| rounded(1e3 * seconds, 4);
        Line {
            device: &device.description().model,
            precision: dtype.to_string(),
            spread: spread.name(),
            experts: sizes.rows.len(),
            rows: sizes.all_rows(),
            outputs: sizes.outputs,
            inputs: sizes.inputs,
            flops: sizes.flops(),
            forward_milliseconds: milliseconds(time.forward),
            input_milliseconds: milliseconds(time.input),
            weight_milliseconds: milliseconds(time.weight),
            weight_f32_milliseconds: milliseconds(time.weight_f32),
        }
    }
}

fn table(lines: &[Line<'_>]) -> String {
    let head = ["rows", "forward", "input", "weight", "weight, f32"].map(str::to_owned);
    let row = |line: &Line<'_>| {
        let cell = |milliseconds: f64| {
            format!("{milliseconds:.3} ms {:.3} TFLOP/s", line.flops / milliseconds / 1e9)
        };
        vec![
            line.spread.to_owned(),
            cell(line.forward_milliseconds),
            cell(line.input_milliseconds),
            cell(line.weight_milliseconds),
            cell(line.weight_f32_milliseconds),
        ]
    };
    let rows: Vec<_> = std::iter::once(head.to_vec()).chain(lines.iter().map(row)).collect();
    aligned(&rows, 2, &[])
}
