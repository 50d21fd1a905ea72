//! `plimsoll sample`.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use run::SampleOptions;
use worker::TrainError;

/// Text from the newest checkpoint of a run
///
/// Continues the prompt token by token, on the CPU, and prints as it goes. The same checkpoint, prompt, temperature and seed
/// always give the same text.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The directory of a run that took checkpoints ([checkpoint] every).
    run_dir: PathBuf,
    /// What is continued [default: a new line].
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Tokens to add to the prompt.
    #[arg(long, value_name = "N", default_value_t = 320)]
    tokens: usize,
    /// How far from the likeliest token the draws may go; 0: not at all.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f64,
    /// What the draws follow from [default: the run's seed].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

/// Prints the text; the exit status tells how it went.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let defaults = SampleOptions::default();
    let options = SampleOptions {
        run_dir: arguments.run_dir.clone(),
        prompt: arguments.prompt.clone().unwrap_or(defaults.prompt),
        tokens: arguments.tokens,
        temperature: arguments.temperature,
        seed: arguments.seed,
    };
    let mut out = std::io::stdout();
    let mut print = |text: &str| out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match run::sample(&options, &mut print).and_then(|()| end(&mut print)) {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody reads any more.
        Err(TrainError::File { source, .. }) if source.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "plimsoll: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn end(print: &mut dyn FnMut(&str) -> std::io::Result<()>) -> Result<(), TrainError> {
    print("\n").map_err(|source| TrainError::File { path: PathBuf::from("standard output"), source })
}
