//! Finds a run's initial state: a checkpoint to resume from, or weights of another run. It is compared with
//! the configuration before anything is written or allocated.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Result, RunError};
use crate::newest_intact::NewestIntact;
use crate::options::RunOptions;
use crate::reference;
use crate::resumed_states;
use crate::run_directory::{METRICS, RunLock};
use crate::weights;
use checkpoint::{Checkpoint, CheckpointError, ResumePoint, Share};
use config::{Change, LoraBase, LoraSection, Optim, RunConfig, Train};
use device::Description;
use telemetry::{hashes, metrics};
use worker::{Averaged, Setup, Start, build};

/// The checkpoint found by `--resume` in the run directory, which is not modified yet.
#[derive(Debug)]
pub(crate) struct Resumption {
    /// Lock of the run directory. `None` in a process that does not write the shared files, or if the
    /// directory does not exist yet.
    pub(crate) lock: Option<RunLock>,
    /// The checkpoint; `None` if the run starts from the beginning.
    pub(crate) point: Option<Arc<ResumePoint>>,
    /// The run directory.
    run_dir: PathBuf,
}

impl Resumption {
    /// Finds the checkpoint to resume from, the newest or that of `--step`, verifies it and compares it with
    /// `config`.
    ///
    /// `owns`: whether this process writes the run's shared files. Each process of a job verifies its `share`
    /// of the checkpoint. In a restarted job, `found` is the state that all processes chose together.
    ///
    /// # Errors
    /// There is no directory; it is in use, or holds a run that ended without a checkpoint; the checkpoint is
    /// damaged or belongs to another run.
    pub(crate) fn find(
        config: &RunConfig,
        options: &RunOptions,
        owns: bool,
        (share, found): (Share, Option<&NewestIntact>),
    ) -> Result<Self> {
        let Some(run_dir) = options.run_dir.as_deref() else {
            return Err(RunError::Refused("--resume needs --run-dir, the run to resume".to_owned()));
        };
        if !run_dir.exists() {
            return Ok(Resumption { lock: None, point: None, run_dir: run_dir.to_owned() });
        }
        let lock = owns.then(|| RunLock::take(run_dir)).transpose()?;
        if owns {
            check_lines(run_dir)?;
        }
        let checkpoint = match (options.step_to_resume(), found) {
            (Some(step), _) => Some(checkpoint::find_share(run_dir, Some(step), share)?),
            (None, Some(found)) => Some(found.checkpoint.clone()),
            (None, None) => checkpoint::newest_share(run_dir, share)?,
        };
        let run_dir = run_dir.to_owned();
        let Some(checkpoint) = checkpoint else {
            if run_dir.join("summary.json").exists() {
                let text =
                    format!("--resume: {} holds a run that ended and no checkpoint", run_dir.display());
                return Err(RunError::Refused(text));
            }
            return Ok(Resumption { lock, point: None, run_dir });
        };
        check_settings(config, &checkpoint)?;
        let losses = checkpoint.losses()?;
        let damaged_newer = found.map_or_else(Vec::new, |found| found.damage.clone());
        let point = Some(Arc::new(ResumePoint { checkpoint, losses, damaged_newer }));
        Ok(Resumption { lock, point, run_dir })
    }

    /// Sets `setup` to resume from the checkpoint.
    ///
    /// # Errors
    /// The data differs, or the device is Meta.
    pub(crate) fn apply(&self, setup: &mut Setup) -> Result<()> {
        let Some(point) = &self.point else { return Ok(()) };
        if setup.placement.is_meta() {
            let text = "--resume: --device meta computes nothing and cannot resume a run";
            return Err(RunError::Refused(text.to_owned()));
        }
        if !is_same_corpus(setup, &point.checkpoint)? {
            return Err(RunError::Refused(format!(
                "{}: data.paths: it is not the text that {} was trained on",
                setup.config.origins.find("data.paths"),
                point.checkpoint.path().display()
            )));
        }
        check_steps(&setup.config, &point.checkpoint)?;
        resumed_states::check(setup, &point.checkpoint)?;
        reference::read(setup, &self.run_dir, &point.checkpoint)?;
        setup.start = Start::Resumed(Arc::clone(point));
        Ok(())
    }
}

/// Checks the line-based files that the resumed run appends to.
///
/// # Errors
/// A file cannot be read, or has a line that is too long.
fn check_lines(run_dir: &Path) -> Result<()> {
    let check = |file: &str| metrics::check(&run_dir.join(file));
    [METRICS, hashes::FILE]
        .into_iter()
        .try_for_each(check)
        .map_err(|error| RunError::Refused(format!("{error}; moved away, the resumed run begins it anew")))
}

/// Checks the settings of a resumed run.
///
/// # Errors
/// A setting changed that may not, or the run has fewer steps than the checkpoint.
fn check_settings(config: &RunConfig, checkpoint: &Checkpoint) -> Result<()> {
    let mut changes = config.changes_since(checkpoint.configuration());
    let may_halve =
        |change: &Change| config.train.halves_micro_batches() && change.key == Train::micro_batch_size;
    changes.retain(|change| !change.allowed && !may_halve(change));
    if !changes.is_empty() {
        let what = format!("{} when a run is resumed: {}", cannot_change(&changes), listed(&changes));
        return Err(CheckpointError::OtherRun { path: checkpoint.path().to_owned(), what }.into());
    }
    // The data, which is not open yet, decides the steps of epochs.
    if config.train.epochs > 0.0 { Ok(()) } else { check_steps(config, checkpoint) }
}

/// Checks that a run has at least as many steps as its checkpoint.
fn check_steps(config: &RunConfig, checkpoint: &Checkpoint) -> Result<()> {
    let steps = config.train.steps;
    let done = checkpoint.step();
    if steps < done {
        return Err(RunError::Refused(format!(
            "{}: train.steps = {steps}: {} has done {done} steps already; --step resumes from an earlier one",
            config.origins.find("train.steps"),
            checkpoint.path().display()
        )));
    }
    Ok(())
}

/// Returns the start of an error message that [`listed`] completes.
fn cannot_change(changes: &[Change]) -> String {
    match changes {
        [only] => format!("{} cannot change", only.key),
        _ => "these settings cannot change".to_owned(),
    }
}

fn listed(changes: &[Change]) -> String {
    match changes {
        [only] => only.values(),
        all => {
            let each = all.iter().map(|change| format!("{}: {}", change.key, change.values()));
            each.collect::<Vec<_>>().join("; ")
        }
    }
}

/// Returns the weights named by `--from`: a checkpoint, or a run with checkpoints. This process verifies a
/// `share` of its files.
///
/// # Errors
/// No checkpoint is found, or it is damaged or belongs to another model.
pub(crate) fn weights_from(
    path: &Path,
    step: Option<u64>,
    config: &RunConfig,
    share: Share,
) -> Result<Start> {
    if !path.is_dir() {
        let what = if path.exists() { "it is no directory" } else { "there is no such directory" };
        return Err(RunError::Refused(format!("--from {}: {what}", path.display())));
    }
    let checkpoint = checkpoint::find_share(path, step, share)?;
    check_model(config, &checkpoint)?;
    let has_adapters = checkpoint.configuration().get("lora.rank").is_some_and(|rank| rank != "0");
    if has_adapters && config.lora.rank == 0 {
        let path = checkpoint.path().display();
        return Err(RunError::Refused(format!(
            "--from: {path} has adapters, and this run has no [lora]: `plimsoll export --merge` makes \
             one model"
        )));
    }
    // A checkpoint without the model's folder has its frozen weights as the run had them.
    let of_base = |change: &Change| change.key == LoraSection::base;
    let change = config.changes_since(checkpoint.configuration()).into_iter().find(of_base);
    let is_coded = |text: &&String| {
        let is_named = |base: &LoraBase| base.alphabet().is_some() && text.contains(base.name());
        LoraBase::ALL.iter().any(is_named)
    };
    let coded = change.as_ref().and_then(|change| change.from.as_ref()).filter(is_coded);
    if let (Some(there), None) = (coded, checkpoint.base()) {
        let path = checkpoint.path().display();
        let key = LoraSection::base;
        let text = format!("--from: {path} has weights in the codes of {key} = {there}: use that");
        return Err(RunError::Refused(text));
    }
    Ok(Start::Weights(weights::complete(checkpoint, config)?))
}

/// Checks that the model and tokenizer settings equal the checkpoint's.
///
/// # Errors
/// Some settings differ.
pub fn check_model(config: &RunConfig, checkpoint: &Checkpoint) -> Result<()> {
    let changes = config.model_changes_since(checkpoint.configuration());
    if changes.is_empty() {
        return Ok(());
    }
    let each = changes.iter().map(|change| format!("{}: {}", change.key, change.values()));
    let what = format!("it is of another model: {}", each.collect::<Vec<_>>().join("; "));
    Err(CheckpointError::OtherRun { path: checkpoint.path().to_owned(), what }.into())
}

/// Returns the settings that affect results and changed since the checkpoint of a resumed run.
pub(crate) fn changes(setup: &Setup) -> Vec<Change> {
    setup
        .resumed()
        .map_or_else(Vec::new, |point| setup.config.changes_since(point.checkpoint.configuration()))
}

/// Returns a sentence for each version (program, libraries) that differs from the one that wrote the
/// checkpoint of a resumed run. Bits may differ from there on.
fn other_software(checkpoint: &Checkpoint, description: &Description) -> Vec<String> {
    let here = [("Plimsoll", env!("CARGO_PKG_VERSION")), ("the libraries", description.libraries.as_str())];
    let there = [Some(checkpoint.version()), checkpoint.libraries()];
    let differs = |((what, here), there): ((&str, &str), Option<&str>)| {
        let there = there.filter(|there| *there != here)?;
        Some(format!("the checkpoint was written by {what} {there}, and this is {here}: bits may differ"))
    };
    here.into_iter().zip(there).filter_map(differs).collect()
}

/// Returns whether the data is the checkpoint's: the same size, the same hash of samples, and of the whole
/// corpus if both have one. Modification times may differ.
fn is_same_corpus(setup: &Setup, checkpoint: &Checkpoint) -> Result<bool> {
    let (Some(here), Some(there)) = (setup.dataset.mark()?, checkpoint.corpus()) else {
        // Earlier versions hashed the whole corpus.
        return Ok(setup.dataset.sha256()?.as_deref() == checkpoint.corpus_sha256());
    };
    let hashes = here.sha256.as_ref().zip(there.sha256.as_ref());
    let same_hashes = here.samples_sha256 == there.samples_sha256 && hashes.is_none_or(|(a, b)| a == b);
    Ok(here.tokens == there.tokens && same_hashes)
}

/// Returns a warning if data files were modified since the checkpoint and only samples of them could be
/// compared.
fn other_times(setup: &Setup, checkpoint: &Checkpoint) -> Option<String> {
    let here = setup.dataset.mark().ok()??;
    let there = checkpoint.corpus()?;
    (here.modified != there.modified && here.sha256.is_none()).then(|| {
        "files of data.paths have another time than at the checkpoint; size and samples are equal \
         (data.full_hash = true compares all)"
            .to_owned()
    })
}

/// Returns warnings for the user of a resumed run, one sentence each.
pub(crate) fn warnings(setup: &Setup, point: &ResumePoint) -> Vec<String> {
    let software = other_software(&point.checkpoint, &setup.placement.description());
    let damaged_newer = point.damaged_newer.iter().cloned();
    damaged_newer.chain(software).chain(other_times(setup, &point.checkpoint)).collect()
}

/// Keys that decide the learning rates of a run.
const RATE_KEYS: [&str; 13] = [
    Train::steps,
    Optim::learning_rate,
    Optim::schedule,
    Optim::schedule_start,
    Optim::milestones,
    Optim::step_size,
    Optim::gamma,
    Optim::decay,
    Optim::decay_steps,
    Optim::min_learning_rate,
    Optim::warmup,
    Optim::warmup_ratio,
    Optim::warmup_steps,
];

/// Describes the learning rates of a run of `config` from step `first` on, counted from 0.
fn rates_in_words(config: &RunConfig, first: u64) -> String {
    let schedule = build::schedule(config);
    let last = config.train.steps.max(first + 1) - 1;
    format!(
        "from step {} on, the learning rate is {:e} (optim.schedule = \"{}\"); in step {}, the last, it is {:e}",
        first + 1,
        schedule.rate(first),
        config.optim.schedule.name(),
        last + 1,
        schedule.rate(last)
    )
}

/// Logs the start of the run and the settings that changed since the checkpoint.
pub(crate) fn announce(setup: &Setup, options: &RunOptions, run_dir: &Path) {
    match &setup.start {
        Start::Resumed(point) => {
            let step = point.checkpoint.step();
            let path = point.checkpoint.path().display();
            tracing::info!("resuming after step {step}, from {path}");
            let changes = changes(setup);
            for change in &changes {
                tracing::info!("from step {} on, {}: {}", step + 1, change.key, change.values());
            }
            if setup.config.train.ema > 0.0 && !Averaged::is_in(&point.checkpoint) {
                tracing::info!(
                    "the average of the weights begins as a copy of them: the checkpoint has none"
                );
            }
            if changes.iter().any(|change| RATE_KEYS.contains(&change.key.as_str())) {
                tracing::info!("{}", rates_in_words(&setup.config, step));
            }
            warnings(setup, point).iter().for_each(|text| tracing::warn!("{text}"));
        }
        Start::Weights(weights) => tracing::info!("weights from {}", weights.path().display()),
        Start::Drawn if options.resume => {
            tracing::info!("there is no checkpoint in {}: starting from the beginning", run_dir.display())
        }
        Start::Drawn => {}
    }
}
