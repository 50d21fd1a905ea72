//! `plimsoll sample`.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use run::SampleOptions;
use worker::TrainError;

use crate::output::unwritable;

/// Generate text from the newest checkpoint of a run
///
/// Continues the prompt token by token, on the CPU, and prints each token as it is drawn. The same
/// checkpoint, prompt, temperature and seed always give the same text.
#[derive(clap::Args, Debug)]
pub(crate) struct SampleArgs {
    /// Directory of a run with checkpoints ([checkpoint] every).
    run_dir: PathBuf,
    /// Text to continue [default: a line feed].
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Number of tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 320)]
    tokens: usize,
    /// Sampling temperature; 0 always takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f64,
    /// Seed of the draws [default: the run's seed].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

/// Prints the text. A reader that goes away ends it without an error.
pub(crate) fn run(args: &SampleArgs) -> Result<(), TrainError> {
    let defaults = SampleOptions::default();
    let options = SampleOptions {
        run_dir: args.run_dir.clone(),
        prompt: args.prompt.clone().unwrap_or(defaults.prompt),
        tokens: args.tokens,
        temperature: args.temperature,
        seed: args.seed,
    };
    let mut out = std::io::stdout();
    let mut print = |text: &str| out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match run::sample(&options, &mut print).and_then(|()| print("\n").map_err(unwritable)) {
        Err(TrainError::File { source, .. }) if source.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}
