//! The directory of a run's checkpoints: file names, listing, deletion.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use system::fail_point;
use system::file_error::FileContext;

use crate::error::{CheckpointError, Result};
use crate::manifest::MANIFEST;
use crate::reader::{Checkpoint, Share};

/// Name of the checkpoints directory in a run directory.
const CHECKPOINTS: &str = "checkpoints";
/// Name of the link in that directory to the checkpoint with the lowest validation loss.
const BEST: &str = "best";

/// The directory `RUN_DIR/checkpoints`.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    /// Process id of rank 0, used in the names of temporary files.
    process: u32,
}

impl Directory {
    /// Returns the directory of the run in `run_dir`, which need not exist.
    pub fn in_run(run_dir: &Path) -> Self {
        Self::written_by(run_dir, std::process::id())
    }

    /// Returns the directory of the run in `run_dir`, where `process` is rank 0's process id.
    pub(crate) fn written_by(run_dir: &Path, process: u32) -> Self {
        Directory { path: run_dir.join(CHECKPOINTS), process }
    }

    /// Creates the directory if it is missing, and syncs its parent.
    pub(crate) fn make(&self) -> Result<()> {
        match fs::create_dir(&self.path) {
            Ok(()) => sync_directory(self.path.parent().unwrap_or(Path::new("."))),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            failed => Ok(failed.context(&self.path, "make the directory")?),
        }
    }

    /// Returns the path of the checkpoint after `step` steps.
    pub(crate) fn step(&self, step: u64) -> PathBuf {
        self.path.join(format!("step-{step:06}"))
    }

    /// Returns the path of a checkpoint while it is written or deleted. Nothing is read there.
    pub(crate) fn temporary(&self, step: u64) -> PathBuf {
        self.path.join(format!(".step-{step:06}.tmp-{}", self.process))
    }

    /// Returns (step, path) of every checkpoint, oldest first; empty if the directory is missing.
    pub(crate) fn list(&self) -> Result<Vec<(u64, PathBuf)>> {
        let mut checkpoints = Vec::new();
        for (name, path) in self.entries()? {
            checkpoints.extend(step_of(&name).map(|step| (step, path)));
        }
        checkpoints.sort();
        Ok(checkpoints)
    }

    fn entries(&self) -> Result<Vec<(String, PathBuf)>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context(&self.path, "list the directory")?,
        };
        let named = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry.context(&self.path, "list the directory")?;
            Ok(entry.file_name().into_string().ok().map(|name| (name, entry.path())))
        };
        entries.map(named).filter_map(Result::transpose).collect()
    }

    /// Returns the newest checkpoint, verified; `None` if there is none.
    ///
    /// # Errors
    /// The newest checkpoint is damaged; the error names the newest intact one.
    pub(crate) fn newest(&self, share: Share) -> Result<Option<Checkpoint>> {
        let mut all = self.list()?;
        let Some((_, newest)) = all.pop() else { return Ok(None) };
        match Checkpoint::open_share(&newest, share) {
            Ok(checkpoint) => Ok(Some(checkpoint)),
            Err(damage) => {
                let intact =
                    all.into_iter().rev().map(|(_, path)| path).find(|path| Checkpoint::open(path).is_ok());
                Err(CheckpointError::NewestDamaged { damage: Box::new(damage), newest, intact })
            }
        }
    }

    /// Points the link `best` to the checkpoint after `step` steps.
    pub(crate) fn name_best(&self, step: u64) -> Result<()> {
        let path = self.step(step);
        let link = self.path.join(BEST);
        let temporary = self.temporary(step);
        let name = path.file_name().unwrap_or_default();
        symlink(name, &temporary).context(&temporary, "make the link")?;
        fs::rename(&temporary, &link).context(&link, "rename it")?;
        sync_directory(&self.path)
    }

    /// Deletes all checkpoints except the newest `keep` and the best.
    pub(crate) fn retain(&self, keep: u64) -> Result<()> {
        let all = self.list()?;
        let best = fs::read_link(self.path.join(BEST)).ok();
        let is_best = |path: &Path| path.file_name() == best.as_deref().map(Path::as_os_str);
        let surplus = all.len().saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX));
        let mut surplus = all[..surplus].iter().filter(|(_, path)| !is_best(path));
        surplus.try_for_each(|(step, path)| self.delete(*step, path))
    }

    /// Deletes the checkpoints whose step passes `filter`.
    pub(crate) fn delete_those(&self, filter: impl Fn(u64) -> bool) -> Result<()> {
        let all = self.list()?;
        all.iter().filter(|(step, _)| filter(*step)).try_for_each(|(step, path)| self.delete(*step, path))
    }

    fn delete(&self, step: u64, path: &Path) -> Result<()> {
        // A partly deleted checkpoint must not have a complete one's name.
        let temporary = self.temporary(step);
        fs::rename(path, &temporary).context(path, "rename it to delete it")?;
        fail_point::reach("checkpoint renamed to be deleted");
        Ok(fs::remove_dir_all(&temporary).context(&temporary, "delete it")?)
    }

    /// Moves the checkpoints after `step` to a new subdirectory, where nothing reads or deletes them. Returns
    /// it; `None` if there are none.
    pub fn set_aside_after(&self, step: u64) -> std::result::Result<Option<PathBuf>, CheckpointError> {
        let mut later = self.list()?;
        later.retain(|(there, _)| *there > step);
        if later.is_empty() {
            return Ok(None);
        }
        let free = (1..).map(|number| self.path.join(format!("aside-{number}"))).find(|path| !path.exists());
        let aside = free.unwrap_or_else(|| self.path.join("aside"));
        fs::create_dir(&aside).context(&aside, "make the directory")?;
        for (_, path) in later {
            let to = aside.join(path.file_name().unwrap_or_default());
            fs::rename(&path, &to).context(&path, "set it aside")?;
        }
        sync_directory(&self.path)?;
        Ok(Some(aside))
    }

    /// Deletes files that killed processes left: temporary directories, and checkpoints beyond the newest
    /// `keep`.
    pub fn tidy(&self, keep: u64) -> std::result::Result<(), CheckpointError> {
        self.remove_temporaries()?;
        self.retain(keep)
    }

    /// Deletes temporary directories that earlier processes left behind.
    fn remove_temporaries(&self) -> Result<()> {
        for (name, path) in self.entries()? {
            if name.starts_with(".step-") && name.contains(".tmp-") {
                let remove =
                    if path.is_symlink() { fs::remove_file(&path) } else { fs::remove_dir_all(&path) };
                remove.context(&path, "delete it")?;
            }
        }
        Ok(())
    }

    /// Renames a written checkpoint to its final name, and syncs the directories.
    pub(crate) fn publish(&self, temporary: &Path, step: u64) -> Result<()> {
        sync_directory(temporary)?;
        let path = self.step(step);
        fail_point::reach("checkpoint complete");
        fs::rename(temporary, &path).context(&path, "rename it")?;
        fail_point::reach("checkpoint published");
        sync_directory(&self.path)
    }
}

fn sync_directory(path: &Path) -> Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    Ok(synced.context(path, "bring it to the disk")?)
}

/// Returns (step, path) of a run's complete checkpoints, oldest first. They are not verified;
/// [`Checkpoint::open`] does that.
pub fn list(run_dir: &Path) -> std::result::Result<Vec<(u64, PathBuf)>, CheckpointError> {
    Directory::in_run(run_dir).list()
}

/// Returns the newest complete checkpoint of a run, verified; `None` if there is none.
///
/// # Errors
/// The newest checkpoint is damaged: [`CheckpointError::NewestDamaged`] names the newest intact one.
pub fn newest(run_dir: &Path) -> std::result::Result<Option<Checkpoint>, CheckpointError> {
    newest_share(run_dir, Share::ALL)
}

/// Returns the newest checkpoint, as [`newest`] does. This process verifies only its share of the files.
pub fn newest_share(
    run_dir: &Path,
    share: Share,
) -> std::result::Result<Option<Checkpoint>, CheckpointError> {
    Directory::in_run(run_dir).newest(share)
}

/// Returns a complete checkpoint, verified. `path` is a checkpoint, or a run directory with the checkpoint of
/// `step` (default: the newest).
///
/// # Errors
/// The checkpoint does not exist or is damaged.
pub fn find(path: &Path, step: Option<u64>) -> std::result::Result<Checkpoint, CheckpointError> {
    find_share(path, step, Share::ALL)
}

/// Returns a checkpoint, as [`find`] does. This process verifies only its share of the files.
pub fn find_share(
    path: &Path,
    step: Option<u64>,
    share: Share,
) -> std::result::Result<Checkpoint, CheckpointError> {
    let missing = |there| CheckpointError::Missing { path: path.to_owned(), step, there };
    if path.join(MANIFEST).exists() {
        let checkpoint = Checkpoint::open_share(path, share)?;
        return match step.filter(|step| *step != checkpoint.step()) {
            Some(_) => Err(missing(vec![checkpoint.step()])),
            None => Ok(checkpoint),
        };
    }
    let Some(step) = step else { return newest_share(path, share)?.ok_or_else(|| missing(Vec::new())) };
    let all = list(path)?;
    match all.iter().find(|(there, _)| *there == step) {
        Some((_, path)) => Checkpoint::open_share(path, share),
        None => Err(missing(all.into_iter().map(|(there, _)| there).collect())),
    }
}

/// Returns the step of a run's checkpoint with the lowest validation loss. `path` is the run or one of its
/// checkpoints.
///
/// # Errors
/// The run keeps no such checkpoint.
pub fn best(path: &Path) -> std::result::Result<u64, CheckpointError> {
    let run = run_of(path);
    let target = fs::read_link(run.join(CHECKPOINTS).join(BEST)).ok();
    let name = target.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    name.and_then(step_of).ok_or(CheckpointError::NoBest { path: run })
}

fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    digits?.parse().ok()
}

/// Returns the run directory of a `path` that [`find`] accepts.
pub fn run_of(path: &Path) -> PathBuf {
    let run = path.parent().filter(|parent| parent.file_name() == Some(OsStr::new(CHECKPOINTS)));
    let run = run.filter(|_| path.join(MANIFEST).exists()).and_then(Path::parent);
    run.unwrap_or(path).to_owned()
}
