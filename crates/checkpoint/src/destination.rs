//! Writes a checkpoint's files: each rank writes its own arrays, rank 0 also the index and the manifest.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use system::fail_point;
use system::file_error::FileContext;
use system::numbers::{grouped, megabytes_of};
use system::pace::{Pace, QUIET};

use crate::contents::Contents;
use crate::directory::Directory;
use crate::error::{CheckpointError, Result};
use crate::format;
use crate::index::{INDEX, Index, file_name};
use crate::manifest::{FileDigest, LossScale, MANIFEST, Manifest, STATE};
use crate::snapshot::{FileNumber, Snapshot};
use crate::validations::Validations;

/// Size and hash of each file of arrays, by file name.
pub(crate) type Files = BTreeMap<String, FileDigest>;

/// The directory of a run's checkpoints and, on rank 0, the data stored in each of them.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) directory: Directory,
    pub(crate) contents: Option<Contents>,
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) step: u64,
    pub(crate) validations: Validations,
    /// Whether the last of `validations` is of this state and has the lowest loss.
    pub(crate) is_best: bool,
    pub(crate) began: Instant,
    /// Gradient norms of the last steps, if spike limits depend on them.
    pub(crate) gradient_norms: Vec<Option<f32>>,
}

impl Destination {
    pub(crate) fn path(&self, step: &Step) -> PathBuf {
        self.directory.step(step.step)
    }

    /// Writes this rank's file under a temporary name, and syncs it. Returns its name and digest; empty for a
    /// rank that writes nothing.
    ///
    /// # Errors
    /// The file cannot be written, the copy of the state failed, or `is_abandoned` was set.
    pub(crate) fn write_file(
        &self,
        snapshot: &Snapshot,
        step: &Step,
        is_abandoned: &AtomicBool,
    ) -> Result<Files> {
        let (name, is_only) = match snapshot.file {
            FileNumber::Only => (STATE.to_owned(), true),
            FileNumber::OneOf(Some(number), files) => (file_name(number, files), false),
            FileNumber::OneOf(None, _) => return Ok(Files::new()),
        };
        snapshot.wait(is_abandoned).map_err(|what| self.unready(step, what))?;
        let parts = snapshot.parts().map_err(|what| self.unready(step, what))?;
        let all = parts.iter().map(|part| part.len() as u64).sum();
        let temporary = self.directory.temporary(step.step);
        self.directory.make()?;
        make_temporary(&temporary, is_only)?;
        fail_point::reach("checkpoint directory made");
        let pace = Pace::of_files();
        let written = |bytes: usize| {
            if pace.is_due() {
                let progress = megabytes_of(bytes as u64, all);
                tracing::info!("writing the checkpoint of step {}: {progress}", step.step);
            }
        };
        let digest = format::write(&temporary.join(&name), &snapshot.entries, &parts, written)?;
        Ok(Files::from([(name, digest)]))
    }

    /// Completes the checkpoint whose `files` have been written: writes index and manifest, renames the
    /// directory, links it as `best` if it is, and deletes the oldest checkpoints. Does nothing on ranks
    /// other than 0.
    pub(crate) fn complete(&self, snapshot: &Snapshot, step: &Step, files: Result<Files>) -> Result<()> {
        let Some(contents) = &self.contents else { return files.map(drop) };
        let temporary = self.directory.temporary(step.step);
        let bytes = files.as_ref().map_or(0, |files| files.values().map(|digest| digest.bytes).sum());
        let described = files.and_then(|files| {
            (contents.before)().map_err(|what| self.unready(step, what))?;
            check_present(&temporary, &files)?;
            let counters = snapshot.counters().map_err(|what| self.unready(step, what))?;
            describe(&temporary, snapshot.index.as_ref(), counters, step, contents, files)
        });
        if let Err(error) = described.and_then(|()| self.directory.publish(&temporary, step.step)) {
            self.discard(step);
            return Err(error);
        }
        if step.began.elapsed() > QUIET {
            let number = step.step;
            let bytes = grouped(bytes);
            let seconds = step.began.elapsed().as_secs_f64();
            tracing::info!(
                "the checkpoint of step {number}, {bytes} bytes, is on the disk after {seconds:.0} s"
            );
        }
        // The checkpoint is complete whatever becomes of others.
        if step.is_best
            && let Err(error) = self.directory.name_best(step.step)
        {
            tracing::warn!("the checkpoint of step {} is not named the best: {error}", step.step);
        }
        if let Err(error) = self.directory.retain(contents.keep) {
            tracing::warn!("an older checkpoint is still there: {error}");
        }
        Ok(())
    }

    /// Returns the error for a checkpoint that lacks data.
    fn unready(&self, step: &Step, what: String) -> CheckpointError {
        CheckpointError::Thread { path: self.path(step), what }
    }

    /// Deletes the files of an incomplete checkpoint.
    pub(crate) fn discard(&self, step: &Step) {
        // The first error matters; there may be nothing to delete.
        let _ = fs::remove_dir_all(self.directory.temporary(step.step));
    }
}

/// Creates the temporary directory. Unless this rank writes the only file, another rank may have created it.
fn make_temporary(path: &Path, is_only: bool) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if !is_only && error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => Ok(made.context(path, "make the directory")?),
    }
}

/// Checks that the files of all ranks are in the directory.
///
/// # Errors
/// A file is missing, for example because a rank's host uses other storage.
fn check_present(directory: &Path, files: &Files) -> Result<()> {
    for (name, digest) in files {
        let path = directory.join(name);
        let metadata = fs::metadata(&path);
        let action = "find it there; all hosts need the same storage";
        let bytes = metadata.context(&path, action)?.len();
        if bytes != digest.bytes {
            return Err(CheckpointError::damaged(&path, "it has not the bytes that its rank wrote"));
        }
    }
    Ok(())
}

/// Writes the manifest, and the index if there are several files.
fn describe(
    directory: &Path,
    index: Option<&Index>,
    counters: (u32, Option<LossScale>),
    step: &Step,
    contents: &Contents,
    mut files: Files,
) -> Result<()> {
    if let Some(index) = index {
        files.insert(INDEX.to_owned(), index.write(directory)?);
    }
    let manifest = Manifest::new(step.step, counters, contents, step.validations, files)
        .with_gradient_norms(&step.gradient_norms);
    let path = directory.join(MANIFEST);
    let mut file = File::create_new(&path).context(&path, "create it")?;
    file.write_all(&manifest.to_text()).context(&path, "write to it")?;
    fail_point::reach("checkpoint manifest written");
    Ok(file.sync_all().context(&path, "bring it to the disk")?)
}
