//! Writes files: whole or not at all, without replacing files of another origin or following links.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Error, ErrorKind, IntoInnerError, Read, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Access, OFlags, access};

use crate::fail_point;
use crate::input::{self, check_regular};

/// Number of bytes at a file's start that must contain its writer's mark.
const MARKED_WITHIN: u64 = 4096;
/// Permissions of a new file, before the umask.
const MODE: u32 = 0o666;

/// Existing files that an output may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// No file: the path must not exist.
    Nothing,
    /// A file with this text in its first 4096 bytes, written by the same command.
    Marked(&'static str),
    /// Any regular file, or a symbolic link to one; the link itself is replaced.
    Anything,
}

/// A result file named by the user: checked before the result is computed, and written atomically.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    replace: Replace,
}

impl OutputFile {
    /// Checks that `path` can be written and that an existing file may be replaced.
    ///
    /// # Errors
    /// The file cannot be written or replaced, with the reason.
    pub fn new(path: &Path, replace: Replace) -> Result<Self> {
        check_replaceable(path, replace)?;
        let temporary = Temporary::create(path, MODE)?;
        drop(temporary);
        Ok(OutputFile { path: path.to_owned(), replace })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The system fails, or an irreplaceable file has been created meanwhile.
    pub fn write(self, bytes: &[u8]) -> Result<()> {
        let mut temporary = Temporary::create(&self.path, MODE)?;
        temporary.fill(bytes)?;
        check_replaceable(&self.path, self.replace)?;
        temporary.rename(&self.path)
    }
}

/// A result folder named by the user. It is created under a temporary name beside its path, and renamed once
/// it is completely on disk. Dropping it unpublished removes it.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    temporary: PathBuf,
}

impl OutputFolder {
    /// Starts writing the folder `path`.
    ///
    /// # Errors
    /// The path exists, or the system fails.
    pub fn create(path: &Path) -> Result<Self> {
        if fs::symlink_metadata(path).is_ok() {
            let text = "it exists: a folder is written whole, to a new path";
            return Err(Error::new(ErrorKind::AlreadyExists, text));
        }
        let name = path.file_name().ok_or_else(|| Error::from(ErrorKind::IsADirectory))?;
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".tmp-{}", std::process::id()));
        let temporary = path.with_file_name(temporary);
        fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        // Removes leftovers of a killed process with the same number.
        if let Err(error) = fs::remove_dir_all(&temporary)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error);
        }
        // Newly created, so never through a link.
        fs::create_dir(&temporary)?;
        Ok(OutputFolder { path: path.to_owned(), temporary })
    }

    /// Returns the directory to which files are to be written.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.temporary
    }

    /// Syncs all files to disk and renames the folder.
    ///
    /// # Errors
    /// The system fails, or the path has been created meanwhile.
    pub fn publish(self) -> Result<()> {
        for entry in fs::read_dir(&self.temporary)? {
            File::open(entry?.path())?.sync_all()?;
        }
        File::open(&self.temporary)?.sync_all()?;
        fail_point::reach("output complete");
        fs::rename(&self.temporary, &self.path)?;
        sync_parent(&self.path)
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        // After renaming it no longer exists; otherwise, the error of the write is the one to report.
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

/// Returns whether this user can create `path` or write in it: the nearest existing directory above it is
/// writable.
#[must_use]
pub fn is_writable(path: &Path) -> bool {
    let existing = path.ancestors().find(|path| path.as_os_str().is_empty() || path.exists());
    let existing = existing.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    access(existing, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Syncs the directory of a file or folder, which makes its name durable.
pub fn sync_parent(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all())
}

/// Writes one of the program's own files atomically: writes a temporary file beside `path`, syncs it to disk
/// and renames it. A symbolic link at `path` is replaced, not followed.
///
/// # Errors
/// The system fails, or the path is not a regular file.
pub fn write_own(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with_mode(path, bytes, MODE)
}

/// Like [`write_own`], for bytes that `write` produces incrementally.
///
/// # Errors
/// As for [`write_own`]; `write` fails.
pub fn write_own_with(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    check_replaceable(path, Replace::Anything)?;
    let temporary = Temporary::create(path, MODE)?;
    let mut buffered = BufWriter::new(&temporary.file);
    write(&mut buffered)?;
    buffered.into_inner().map_err(IntoInnerError::into_error)?.sync_all()?;
    temporary.rename(path)
}

/// Like [`write_own`], with these permissions before the umask.
pub(crate) fn write_with_mode(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    check_replaceable(path, Replace::Anything)?;
    let mut temporary = Temporary::create(path, mode)?;
    temporary.fill(bytes)?;
    temporary.rename(path)
}

/// Opens one of the program's own files with `options`.
///
/// # Errors
/// The system fails, or the path is a symbolic link or not a regular file (a FIFO is refused without
/// waiting).
pub fn open_own(path: &Path, options: &mut OpenOptions) -> Result<File> {
    if fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink()) {
        return Err(link());
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.custom_flags(flags.bits() as i32).open(path).map_err(|error| {
        // A link created since the check.
        if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) { link() } else { error }
    })?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

fn link() -> Error {
    Error::new(ErrorKind::InvalidInput, "it is a symbolic link, which is not followed")
}

/// Removes temporary files that a killed [`write_own`] or [`OutputFile::write`] left beside `path`. No other
/// process may be writing `path`.
pub fn remove_temporaries(path: &Path) -> Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    remove_temporaries_of(directory, |file| file == name)
}

/// Removes the temporary files of all files in a directory, which need not exist. No other process may be
/// writing in it.
pub fn remove_all_temporaries(directory: &Path) -> Result<()> {
    match remove_temporaries_of(directory, |_| true) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes the temporary files in a directory that belong to files whose name `is_meant` accepts.
fn remove_temporaries_of(directory: &Path, is_meant: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let left = entry.file_name();
        if left.to_str().and_then(file_of_temporary).is_some_and(&is_meant) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Returns the name of the file to which the temporary file `name` belongs; `None` if it is not a temporary
/// file.
fn file_of_temporary(name: &str) -> Option<&str> {
    let (file, numbers) = name.strip_prefix('.')?.rsplit_once('.')?;
    let (process, number) = numbers.split_once('-').unwrap_or((numbers, "0"));
    let are_numbers =
        [process, number].iter().all(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()));
    (are_numbers && !file.is_empty()).then_some(file)
}

/// Checks that the file at `path` may be replaced, or does not exist.
///
/// # Errors
/// The file may not be replaced.
fn check_replaceable(path: &Path, replace: Replace) -> Result<()> {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if there.is_symlink() && replace == Replace::Anything {
        // A dangling link may be replaced too.
        return fs::metadata(path).map_or(Ok(()), |target| check_regular(&target));
    }
    check_regular(&there)?;
    let refusal = |why: &str| Error::new(ErrorKind::AlreadyExists, why.to_owned());
    match replace {
        Replace::Anything => Ok(()),
        Replace::Nothing => Err(refusal("it exists")),
        Replace::Marked(mark) if is_marked(path, mark)? => Ok(()),
        Replace::Marked(_) => Err(refusal("it exists, and Plimsoll did not write it")),
    }
}

fn is_marked(path: &Path, mark: &str) -> Result<bool> {
    let mut first = Vec::new();
    input::open(path)?.take(MARKED_WITHIN).read_to_end(&mut first)?;
    // An empty file has no content to lose; mktemp creates one.
    Ok(first.is_empty() || first.windows(mark.len()).any(|window| window == mark.as_bytes()))
}

/// A new file beside another; removed on drop unless renamed.
#[derive(Debug)]
struct Temporary {
    file: File,
    path: PathBuf,
}

impl Temporary {
    fn create(beside: &Path, mode: u32) -> Result<Self> {
        /// Distinguishes temporary files of one process.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = beside.file_name().ok_or_else(|| Error::from(ErrorKind::IsADirectory))?;
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
        let path = beside.with_file_name(temporary);
        // A killed process with the same number may have left its file.
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error);
        }
        // `create_new` never follows a link.
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        Ok(Temporary { file, path })
    }

    fn fill(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes)?;
        self.file.sync_all()
    }

    /// Renames the file and syncs the directory, which makes the new name durable.
    fn rename(self, to: &Path) -> Result<()> {
        fail_point::reach("output complete");
        fs::rename(&self.path, to)?;
        sync_parent(to)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After renaming it no longer exists; otherwise, the error of the write is the one to report.
        let _ = fs::remove_file(&self.path);
    }
}
