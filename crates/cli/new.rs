//! `plimsoll new`.

use std::path::{Path, PathBuf};

use plan::{DeviceRanks, PlanOptions, PlanReport, PlanTarget};
use recipes::{Conversion, Directories, Draft, Fitted, JobOptions, Outcome, Program, RecipeError};
use telemetry::log::Log;

use crate::error::CliError;
use crate::output::{note, print};
use crate::outputs::{Force, Kind, Output};

/// Maximum size of another trainer's file in bytes.
const MOST_BYTES: u64 = 1 << 20;
/// Minimum compute capability of GPUs with bf16.
const WITH_BF16: (u32, u32) = (8, 0);

/// Write a starting configuration for a job on your data and device, or convert another trainer's file
///
/// Inspects the model folder, the data and the device, writes a commented configuration, and prints its
/// choices with reasons, the planned memory, the predicted time and the next command to run. With --from,
/// converts a file of axolotl, TRL or LLaMA-Factory, and lists every key without an equivalent.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct NewArgs {
    #[command(subcommand)]
    job: Option<Job>,
    /// File to convert: YAML or JSON with the arguments of axolotl, TRL (or Hugging Face's Trainer) or
    /// LLaMA-Factory.
    #[arg(long, value_name = "FILE", required = true)]
    from: Option<PathBuf>,
    /// Program to which the file belongs [default: detected from its keys].
    #[arg(long, value_name = "PROGRAM", value_parser = Program::ALL.map(Program::name))]
    format: Option<String>,
    #[command(flatten)]
    file: FileArgs,
}

#[derive(clap::Subcommand, Debug)]
enum Job {
    /// Fine-tune the model in a folder on conversations, preference pairs, text or token shards
    Finetune {
        /// Folder of the model, with config.json and safetensors.
        model: String,
        #[command(flatten)]
        job: JobArgs,
        /// Train the whole model instead of adapters.
        #[arg(long)]
        full: bool,
        /// File with the chat template, for a tokenizer without one.
        #[arg(long, value_name = "FILE")]
        chat_template: Option<PathBuf>,
        /// Tokenizer to use instead of the model's: a tokenizer.json or its folder.
        #[arg(long, value_name = "TOKENIZER")]
        tokenizer: Option<String>,
    },
    /// Train a language model from random weights on text or token shards
    Pretrain {
        #[command(flatten)]
        job: JobArgs,
        /// Tokenizer: bytes, gpt2, or a tokenizer.json or its folder [default: depends on the size of the
        /// text].
        #[arg(long, value_name = "TOKENIZER")]
        tokenizer: Option<String>,
    },
    /// Train a classifier on images
    Classify {
        #[command(flatten)]
        job: JobArgs,
    },
}

#[derive(clap::Args, Debug)]
struct JobArgs {
    /// Data: files, globs or folders.
    #[arg(required = true)]
    data: Vec<String>,
    /// Device that the run must fit, as in `plimsoll plan`: auto, cpu, cuda, the name of a GPU that this host
    /// need not have, such as rtx-4090 or h100-80gb, or a file written by `plimsoll plan --describe`.
    #[arg(long, value_name = "DEVICE|FILE.toml", default_value = "auto")]
    device: String,
    #[command(flatten)]
    file: FileArgs,
}

#[derive(clap::Args, Debug)]
struct FileArgs {
    /// Configuration file to write, or - to print it [default: the name of the job or of the converted file,
    /// with .toml].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

/// Destination of a configuration; `file` is `None` if it is printed.
struct Target {
    file: Option<(PathBuf, Output)>,
}

impl Target {
    fn open(args: &FileArgs, default: &str) -> Result<Self, CliError> {
        let path = args.output.clone().unwrap_or_else(|| default.into());
        if path == Path::new("-") {
            return Ok(Self { file: None });
        }
        let output = args.force.output("-o", &path, Kind::Configuration)?;
        Ok(Self { file: Some((path, output)) })
    }

    fn directories(&self) -> Result<Directories, CliError> {
        let path = self.file.as_ref().map(|(path, _)| path.as_path());
        Directories::of_file(path).map_err(|source| CliError::File { path: ".".into(), source })
    }

    /// Prints a line of information; to standard error if the configuration itself is printed.
    fn say(&self, line: &str) -> Result<(), CliError> {
        match self.file {
            Some(_) => print(line),
            None => {
                note(line);
                Ok(())
            }
        }
    }

    /// Writes or prints the configuration, and shows the next command to run.
    fn write(self, text: &str, device: &str) -> Result<(), CliError> {
        let Some((path, output)) = self.file else { return print(text) };
        output.write(text)?;
        let device = if device == "cpu" { " --device cpu" } else { "" };
        let path = path.display();
        print(&format!("{path} is written. Next: plimsoll train {path}{device}"))
    }
}

/// Runs the command: writes a configuration.
///
/// # Errors
/// The arguments, model, data or file are invalid, or no run fits.
pub(crate) fn run(args: &NewArgs) -> Result<(), CliError> {
    Log::new().install()?;
    match &args.job {
        Some(Job::Finetune { model, job, full, chat_template, tokenizer }) => {
            let make = |options: &JobOptions| {
                let options = JobOptions {
                    tokenizer: tokenizer.clone(),
                    chat_template: chat_template.clone(),
                    ..options.clone()
                };
                recipes::finetune(model, *full, &options)
            };
            new_job(job, "finetune.toml", make)
        }
        Some(Job::Pretrain { job, tokenizer }) => new_job(job, "pretrain.toml", |options| {
            recipes::pretrain(&JobOptions { tokenizer: tokenizer.clone(), ..options.clone() })
        }),
        Some(Job::Classify { job }) => new_job(job, "classify.toml", recipes::classify),
        None => match &args.from {
            Some(from) => converted(from, args),
            None => Err(CliError::Refused("--from: name the file to convert".to_owned())),
        },
    }
}

/// Chooses, fits and writes the configuration of a job.
fn new_job(
    args: &JobArgs,
    default: &str,
    make: impl Fn(&JobOptions) -> recipes::Result<Draft>,
) -> Result<(), CliError> {
    let target = Target::open(&args.file, default)?;
    let directories = target.directories()?;
    let device = PlanOptions { target: PlanTarget::from_argument(&args.device)?, capacity: None };
    let planned_device = device.target.device(None, DeviceRanks::ALONE)?;
    let type_of_gpu = || if planned_device.compute_capability >= WITH_BF16 { "bf16" } else { "f16" };
    let half = planned_device.is_gpu().then(type_of_gpu);
    let options =
        JobOptions { data: args.data.clone(), tokenizer: None, chat_template: None, half, directories };
    let draft = make(&options)?;
    for choice in &draft.choices {
        target.say(choice)?;
    }
    let mut on_try = |change: &str| note(&format!("it does not fit; planning with {change}"));
    let fitted = recipes::fit(&draft, options.directories.of_configuration(), &device, &mut on_try)?;
    let Fitted { document, changes, report } = fitted;
    if !changes.is_empty() {
        target.say(&format!("so that it fits: {}", changes.join(", ")))?;
    }
    for line in planned(&report) {
        target.say(&line)?;
    }
    target.write(&document.to_toml(), &args.device)
}

/// Returns lines about planned memory and time.
fn planned(report: &PlanReport) -> Vec<String> {
    let mut lines = vec![format!("planned memory on {}: {}", report.device_model, report.fit.figures())];
    lines.extend(report.defaults.iter().cloned());
    lines.extend(report.epochs.map(|epochs| format!("planned length: {epochs}")));
    lines.extend(report.warnings.iter().map(|warning| format!("warning: {warning}")));
    match &report.time {
        Some(time) => lines.push(time.to_string()),
        None => lines.push("no predicted time: only steps of GPUs are predicted".to_owned()),
    }
    lines
}

/// Converts another trainer's file.
fn converted(from: &Path, args: &NewArgs) -> Result<(), CliError> {
    let unreadable = |source| RecipeError::Unreadable { path: from.to_owned(), source };
    let text = system::input::read_text(from, MOST_BYTES).map_err(unreadable)?;
    let default = Path::new(from.file_name().unwrap_or_default()).with_extension("toml");
    let target = Target::open(&args.file, &default.to_string_lossy())?;
    let program = args.format.as_deref();
    let program = program.and_then(|name| Program::ALL.into_iter().find(|program| program.name() == name));
    let name = from.display().to_string();
    let conversion = recipes::convert(&text, &name, program, &target.directories()?)?;
    for line in described(&conversion, &name) {
        target.say(&line)?;
    }
    target.write(&conversion.document.to_toml(), "auto")
}

/// Returns lines about a conversion: what became of each key, and what remains to be done.
fn described(conversion: &Conversion, name: &str) -> Vec<String> {
    let evidence = match conversion.recognised_by.as_slice() {
        [] => "as --format says".to_owned(),
        keys => format!("recognised by {}", keys.join(", ")),
    };
    let mut lines = vec![format!("{name}: arguments of {}, {evidence}", conversion.program.title())];
    for finding in &conversion.findings {
        let key = &finding.key;
        lines.push(match &finding.outcome {
            Outcome::Converted(settings) => format!("  {key}: {settings}"),
            Outcome::Option(option) => format!("  {key}: the option {option} of plimsoll train"),
            Outcome::NotNeeded(reason) => format!("  {key}: not needed: {reason}"),
            Outcome::NoEquivalent(reason) => {
                format!("  {key} = {} has no equivalent: {reason}", finding.value)
            }
        });
    }
    if !conversion.defaults.is_empty() {
        let title = conversion.program.title();
        lines.push(format!("defaults of {title} that differ here: {}", conversion.defaults.join(", ")));
    }
    lines.extend(conversion.notes.iter().map(|each| format!("note: {each}")));
    lines.extend(conversion.error.iter().map(|error| format!("it cannot run yet: {error}")));
    let count = conversion.without_equivalent().count();
    let plural = crate::output::plural(count);
    lines.push(match count {
        0 => "every key has been converted or needs no equivalent".to_owned(),
        _ => format!("{count} key{plural} without an equivalent"),
    });
    lines
}
