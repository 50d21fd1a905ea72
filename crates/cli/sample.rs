//! `plimsoll sample`.

use std::io::ErrorKind;
use std::path::PathBuf;

use crate::error::CliError;
use run::RunError;
use run::SampleOptions;

use crate::output::print;
use system::terminal;

/// Generate text from a checkpoint of a run
///
/// Continues the prompt token by token, on the CPU, and prints each token as it is drawn. The same
/// checkpoint, prompt, temperature and seed always give the same text.
#[derive(clap::Args, Debug)]
pub(crate) struct SampleArgs {
    /// Directory of a run with checkpoints.
    run_dir: PathBuf,
    /// Step of the checkpoint [default: the newest].
    #[arg(long, value_name = "N")]
    step: Option<u64>,
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

/// Prints the text. A reader that closes its end stops it without an error.
pub(crate) fn run(args: &SampleArgs) -> Result<(), CliError> {
    let defaults = SampleOptions::default();
    let options = SampleOptions {
        run_dir: args.run_dir.clone(),
        step: args.step,
        prompt: args.prompt.clone().unwrap_or(defaults.prompt),
        tokens: args.tokens,
        temperature: args.temperature,
        seed: args.seed,
    };
    let unread = |error: &std::io::Error| error.kind() == ErrorKind::BrokenPipe;
    match run::sample(&options, &mut terminal::print) {
        Err(RunError::File { source, .. }) if unread(&source) => return Ok(()),
        done => done?,
    }
    print("")
}
