//! `cargo bench --bench step [-- SECTION.KEY=VALUE…]`: the median time of a training step on the CPU, one rank, and
//! beside it the same step in PyTorch where `python3 -c 'import torch'` works (`PYTHON` names another python3).

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use collective::Communicator;
use device::Description;
use trainer::config::{Model, RunConfig};
use trainer::{Placement, Setup, Worker};

type Failure = Box<dyn std::error::Error>;

const STEPS: u64 = 15;
const WARM_UP: u64 = 3;

/// A byte-level GPT of the quickstart's shape on random tokens, unless overridden.
const CONFIG: &str = r#"
[model]
layers = 4
heads = 4
width = 128
context = 128
[data]
kind = "synthetic"
[train]
steps = 1000000
micro_batch = 8
micro_batches = 4
[parallel]
lanes = 1
"#;

fn main() -> Result<(), Failure> {
    let overrides: Vec<String> = std::env::args().skip(1).filter(|argument| argument.contains('=')).collect();
    let config = RunConfig::parse(CONFIG, "benches/step.rs", Path::new("/"), &overrides)?;
    let Model::Gpt(gpt) = config.model.clone() else { return Err("the benchmark is of a GPT".into()) };
    let train = config.train.clone();
    let tokens = (train.micro_batch * train.micro_batches * gpt.context) as f64;
    let mut out = std::io::stdout();
    writeln!(out, "{}, {} threads", Description::host().model, std::thread::available_parallelism()?)?;
    writeln!(out, "{gpt:?}, micro-batch {}, {} a step, f32, AdamW", train.micro_batch, train.micro_batches)?;
    let setup = Setup::new(config, Placement::Cpu)?;
    let mut worker = Worker::new(&setup, Communicator::solo())?;
    let sizes = [
        gpt.layers,
        gpt.heads,
        gpt.width,
        gpt.context,
        gpt.vocabulary,
        train.micro_batch,
        train.micro_batches,
    ];
    // Ours before and after theirs: the machine may have changed in between.
    let before = ours(&mut worker, 0)?;
    let theirs = pytorch(&sizes)?;
    let after = ours(&mut worker, WARM_UP + STEPS)?;
    let line = |out: &mut std::io::Stdout, name: &str, seconds: f64| {
        writeln!(out, "{name:<28} {:>9.2} ms a step {:>10.0} tokens/s", seconds * 1e3, tokens / seconds)
    };
    line(&mut out, "Plimsoll", before)?;
    if let Some((version, seconds)) = &theirs {
        line(&mut out, &format!("PyTorch {version}, eager"), *seconds)?;
    }
    line(&mut out, "Plimsoll, again", after)?;
    match theirs {
        Some((_, seconds)) => {
            writeln!(out, "Plimsoll is {:.2} times as fast as PyTorch", 2.0 * seconds / (before + after))?;
        }
        None => writeln!(out, "no PyTorch here to compare with")?,
    }
    let statistics = worker.device().statistics();
    writeln!(
        out,
        "peak allocated {}, reserved {} bytes",
        statistics.peak_allocated(),
        statistics.peak_reserved()
    )?;
    Ok(())
}

/// The median step, in seconds.
fn ours(worker: &mut Worker, first: u64) -> Result<f64, Failure> {
    let mut times = Vec::new();
    for step in first..first + WARM_UP + STEPS {
        let began = Instant::now();
        worker.step(step)?;
        worker.scalars(step)?;
        times.push(began.elapsed().as_secs_f64());
    }
    times.drain(..WARM_UP as usize);
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// PyTorch's version and its median step, if it can be had.
fn pytorch(sizes: &[usize]) -> Result<Option<(String, f64)>, Failure> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/step.py");
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    match Command::new(&python).args(["-c", "import torch"]).output() {
        Ok(output) if output.status.success() => {}
        _ => return Ok(None),
    }
    let numbers = sizes.iter().chain(&[STEPS as usize, WARM_UP as usize]).map(usize::to_string);
    let output = Command::new(&python).arg(&script).args(numbers).output()?;
    if !output.status.success() {
        return Err(format!("{}: {}", script.display(), String::from_utf8_lossy(&output.stderr)).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let (version, seconds) =
        text.trim().split_once(' ').ok_or("the PyTorch script printed something else")?;
    Ok(Some((version.to_owned(), seconds.parse()?)))
}
