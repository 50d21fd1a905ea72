//! Folders of JPEG and PNG files: a folder for each class.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use system::numbers::grouped;
use system::pace::Pace;

use super::decode::decode;
use super::picture::{Picture, invalid};
use crate::Error;

/// Names of files that are read, without the dot and in lower case.
const EXTENSIONS: [&str; 3] = ["jpg", "jpeg", "png"];
/// Most bytes of a file.
const MOST_BYTES: u64 = 1 << 30;
/// Folders within folders that are followed.
const MOST_DEPTH: usize = 16;
/// The silence before the first report of a listing, and the time between reports.
const QUIET: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(10);

/// A file and the number of its class.
#[derive(Debug)]
pub(super) struct ImageFile {
    pub(super) path: Box<Path>,
    class: u32,
}

/// Returns the names of a folder's subfolders, without hidden ones, sorted.
///
/// # Errors
/// A folder that cannot be read.
pub(super) fn subfolders(folder: &Path) -> Result<Vec<String>, Error> {
    let folders = entries(folder)?.into_iter().filter(|path| path.is_dir());
    Ok(folders.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
}

/// Returns the paths in a folder, without hidden ones, sorted.
///
/// # Errors
/// A folder that cannot be read.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let unreadable = |source| Error::Unreadable { path: folder.to_path_buf(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

/// Returns the files of folders with a subfolder for each class, in an order that does not depend on the file
/// system. `names` are the classes that are known already; without any, they are the subfolders' names.
///
/// # Errors
/// A folder that cannot be read or has no image; a subfolder that is none of the classes.
pub(super) fn files(folders: &[PathBuf], names: &mut Vec<String>) -> Result<Vec<ImageFile>, Error> {
    let mut by_class: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let mut listing = Listing { images: 0, pace: Pace::new(QUIET, INTERVAL) };
    for folder in folders {
        for name in subfolders(folder)? {
            if !names.is_empty() && !names.contains(&name) {
                let reason = format!("its folder '{name}' is no class of the training images");
                return Err(Error::BadImages { path: folder.clone(), reason });
            }
            let inner = folder.join(&name);
            listing.walk(&inner, by_class.entry(name).or_default(), MOST_DEPTH)?;
        }
    }
    by_class.retain(|_, files| !files.is_empty());
    if names.is_empty() {
        *names = by_class.keys().cloned().collect();
    }
    let class = |name: &String| names.iter().position(|other| other == name).unwrap_or(0) as u32;
    let of_class = by_class.iter().flat_map(|(name, paths)| {
        let class = class(name);
        paths.iter().map(move |path| ImageFile { path: path.as_path().into(), class })
    });
    let files: Vec<ImageFile> = of_class.collect();
    match (files.is_empty(), folders.first()) {
        (true, Some(folder)) => {
            let reason = "it has no subfolder with JPEG or PNG files, one for each class".to_owned();
            Err(Error::BadImages { path: folder.clone(), reason })
        }
        _ => Ok(files),
    }
}

/// The listing of folders, which on a slow disk takes long and then reports its progress.
struct Listing {
    images: u64,
    pace: Pace,
}

impl Listing {
    /// Adds the images in a folder and the folders in it.
    fn walk(&mut self, folder: &Path, files: &mut Vec<PathBuf>, depth: usize) -> Result<(), Error> {
        if self.pace.is_due() {
            tracing::info!("listing images: {} before {}", grouped(self.images), folder.display());
        }
        for path in entries(folder)? {
            if path.is_dir() {
                if depth > 0 {
                    self.walk(&path, files, depth - 1)?;
                }
            } else if is_image(&path) {
                files.push(path);
                self.images += 1;
            }
        }
        Ok(())
    }
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
    EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str())
}

impl ImageFile {
    pub(super) fn class(&self) -> u32 {
        self.class
    }

    /// Reads and decodes an image.
    ///
    /// # Errors
    /// A file that cannot be read; one that is not regular, or whose contents are no image.
    pub(super) fn read(&self, channels: usize) -> Result<(Picture, u32), Error> {
        let invalid = |reason: String| invalid(&self.path.display().to_string(), reason);
        let bytes =
            system::input::read(&self.path, MOST_BYTES).map_err(|source| match self.leads_to_a_file() {
                // A FIFO, a socket, a device, or too long a file.
                _ if [ErrorKind::InvalidInput, ErrorKind::FileTooLarge].contains(&source.kind()) => {
                    invalid(source.to_string())
                }
                true => Error::Unreadable { path: self.path.to_path_buf(), source },
                false => invalid("it is a link to nothing".to_owned()),
            })?;
        Ok((decode(&bytes, channels).map_err(invalid)?, self.class))
    }

    /// Returns whether the path is no link to nothing.
    fn leads_to_a_file(&self) -> bool {
        self.path.exists() || fs::symlink_metadata(&self.path).is_err()
    }
}
