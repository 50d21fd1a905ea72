//! The directory of a run, in which only one process at a time trains.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use telemetry::run_files;

use crate::error::{Result, RunError};
use crate::reference;
use crate::summary;
use crate::utc::compact;
use config::RunConfig;
use data::{FileTokenizer, Tokenizer};
use worker::Setup;

/// File name of the resolved configuration.
pub(crate) const CONFIG: &str = "config.toml";
/// File name of the metrics, one line per step.
pub(crate) const METRICS: &str = "metrics.jsonl";
/// File name of the copied tokenizer, if the run's tokenizer is a file.
const TOKENIZER: &str = "tokenizer.json";
/// File name of the copied chat template.
const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// Subdirectories that contain only files written by runs.
const DIRECTORIES: [&str; 3] = ["logs", "memory", "traces"];
/// Maximum size of a chat template, in bytes.
const MOST_TEMPLATE: u64 = 16 << 20;

/// A lock on a run directory, held until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct RunLock {
    path: PathBuf,
    _held: Option<File>,
}

impl RunLock {
    /// Locks the directory `path`.
    ///
    /// # Errors
    /// Another process holds the lock.
    pub(crate) fn take(path: &Path) -> Result<Self> {
        let unreadable = |error: std::io::Error| {
            RunError::Refused(format!("--run-dir {}: it cannot be opened: {error}", path.display()))
        };
        check_directory(path)?;
        let directory = File::open(path).map_err(unreadable)?;
        let held = match directory.try_lock() {
            Ok(()) => Some(directory),
            Err(TryLockError::WouldBlock) => {
                let text = format!("--run-dir {}: another process is training there", path.display());
                return Err(RunError::Refused(text));
            }
            // Some network file systems cannot lock directories; the run continues without a lock.
            Err(TryLockError::Error(_)) => None,
        };
        Ok(RunLock { path: path.to_owned(), _held: held })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Checks that `path` is a directory or does not exist.
///
/// # Errors
/// The path is anything else.
fn check_directory(path: &Path) -> Result<()> {
    if path.exists() && !path.is_dir() {
        return Err(RunError::Refused(format!("--run-dir {}: it is a file", path.display())));
    }
    Ok(())
}

/// Creates a directory below `runs`, named after the run and the current time. A number is appended if
/// another run started in the same second.
///
/// # Errors
/// The directory cannot be created.
fn new_directory(name: &str) -> Result<PathBuf> {
    let unusable = |path: &Path, error: std::io::Error| {
        RunError::Refused(format!("{}: the run's directory cannot be created: {error}", path.display()))
    };
    let runs = Path::new("runs");
    let name = format!("{name}-{}", compact(SystemTime::now()));
    std::fs::create_dir_all(runs).map_err(|error| unusable(runs, error))?;
    let mut path = runs.join(&name);
    for number in 2_u64.. {
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                path = runs.join(format!("{name}-{number}"));
            }
            Err(error) => return Err(unusable(&path, error)),
            Ok(()) => break,
        }
    }
    Ok(path)
}

/// An open run directory.
#[derive(Clone, Debug)]
pub(crate) struct RunDirectory {
    lock: Arc<RunLock>,
    /// Summary written at the resumed step. It is restored if this session adds no step.
    earlier_summary: Option<Arc<Vec<u8>>>,
}

impl RunDirectory {
    /// Creates the directory and writes the resolved configuration.
    ///
    /// # Errors
    /// The directory already holds a run.
    pub(crate) fn create(config: &RunConfig, chosen: Option<PathBuf>, name: &str) -> Result<Self> {
        let Some(path) = chosen else { return Self::begin(config, RunLock::take(&new_directory(name)?)?) };
        check_directory(&path)?;
        let holds = |what: &str| {
            Err(RunError::Refused(format!(
                "--run-dir {}: it holds a run already ({what}): --resume continues it, and a new run needs \
                 another directory",
                path.display()
            )))
        };
        if let Some(file) = ["summary.json", METRICS].iter().find(|file| path.join(file).exists()) {
            return holds(file);
        }
        if let Some((step, _)) = checkpoint::list(&path)?.last() {
            return holds(&format!("a checkpoint of step {step}"));
        }
        let unusable = |error: std::io::Error| {
            RunError::Refused(format!("--run-dir {}: it cannot be created: {error}", path.display()))
        };
        std::fs::create_dir_all(&path).map_err(unusable)?;
        let lock = RunLock::take(&path)?;
        // A process may have been killed there before its first step.
        remove_temporaries(&path)?;
        Self::begin(config, lock)
    }

    /// Opens the directory of a resumed run, and removes outdated results and partly written files.
    pub(crate) fn reopen(setup: &Setup, lock: RunLock) -> Result<Self> {
        let path = lock.path().to_owned();
        // When resuming from an earlier step than the newest, later checkpoints belong to the abandoned part
        // of the run.
        let later = setup
            .resumed()
            .map(|point| checkpoint::Directory::in_run(&path).set_aside_after(point.checkpoint.step()));
        if let Some(aside) = later.transpose()?.flatten() {
            tracing::info!("later checkpoints are now in {}", aside.display());
        }
        tidy(setup, &path)?;
        let earlier_summary = summary::of_step(setup.first_step(), &path).map(Arc::new);
        summary::remove(&path)?;
        Ok(RunDirectory { earlier_summary, ..Self::begin(&setup.config, lock)? })
    }

    /// Returns the directory that rank 0 opened in another process, without a lock.
    pub(crate) fn of_rank_zero(path: PathBuf) -> Self {
        RunDirectory { lock: Arc::new(RunLock { path, _held: None }), earlier_summary: None }
    }

    fn begin(config: &RunConfig, lock: RunLock) -> Result<Self> {
        let write = |name: &str, contents: &[u8]| run_files::atomic_write(&lock.path().join(name), contents);
        let mut tokenizer = None;
        let mut chat_template = None;
        // The run keeps copies of the tokenizer, of what belongs to it, and of the template of its texts.
        if let Tokenizer::File(file) = &config.tokenizer {
            write(TOKENIZER, file.json())?;
            file.beside().iter().try_for_each(|(name, contents)| write(name, contents))?;
            tokenizer = Some(TOKENIZER);
        }
        if let Some(path) = &config.data.chat_template {
            write(CHAT_TEMPLATE, &read(path)?)?;
            chat_template = Some(CHAT_TEMPLATE);
        }
        let text = config.to_toml_beside(tokenizer, chat_template);
        run_files::atomic_write(&lock.path().join(CONFIG), text.as_bytes())?;
        Ok(RunDirectory { lock: Arc::new(lock), earlier_summary: None })
    }

    pub(crate) fn path(&self) -> &Path {
        self.lock.path()
    }

    /// Returns the text of the summary written at the resumed step, if there is one.
    pub(crate) fn earlier_summary(&self) -> Option<Arc<Vec<u8>>> {
        self.earlier_summary.clone()
    }

    /// Returns the directory of the logs.
    pub(crate) fn logs(&self) -> PathBuf {
        self.path().join("logs")
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let unreadable = |source| RunError::unreadable(path, source);
    system::input::read(path, MOST_TEMPLATE).map_err(unreadable)
}

/// Deletes files that killed processes left in a run directory. This process must hold its lock.
pub(crate) fn tidy(setup: &Setup, run_dir: &Path) -> Result<()> {
    checkpoint::Directory::in_run(run_dir).tidy(setup.config.checkpoint.keep)?;
    remove_temporaries(run_dir)
}

/// Deletes temporary files that killed processes left in a run directory. This process must hold its lock.
fn remove_temporaries(run_dir: &Path) -> Result<()> {
    let own = [CONFIG, METRICS, "sessions.json", "summary.json", reference::FILE, TOKENIZER];
    for file in own.into_iter().chain(FileTokenizer::BESIDE) {
        run_files::remove_temporaries(&run_dir.join(file))?;
    }
    for directory in DIRECTORIES {
        run_files::remove_all_temporaries(&run_dir.join(directory))?;
    }
    Ok(())
}
