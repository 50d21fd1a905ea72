//! Folders of JPEG and PNG files: a folder for each class.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use system::numbers::grouped;
use system::pace::Pace;
use system::tally::Tally;

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
/// A folder that cannot be read; a name that is not UTF-8.
pub(super) fn subfolders(folder: &Path) -> Result<Vec<String>, Error> {
    let folders = entries(folder)?.into_iter().filter(|path| path.is_dir());
    let name = |path: PathBuf| match path.file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok(name.to_owned()),
        None => Err(Error::BadImages { path, reason: "its name is not UTF-8".to_owned() }),
    };
    folders.map(name).collect()
}

/// Returns the paths in a folder, without hidden ones, sorted.
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
/// Files that are not read are counted in a line of the log.
///
/// # Errors
/// A folder that cannot be read or has no image; a subfolder that is none of the classes; a class without an
/// image where the classes are numbered.
pub(super) fn files(folders: &[PathBuf], names: &mut Vec<String>) -> Result<Vec<ImageFile>, Error> {
    let mut by_class: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let mut listing = Listing::new();
    for folder in folders {
        for name in subfolders(folder)? {
            if !names.is_empty() && !names.contains(&name) {
                let reason = format!("its folder '{name}' is no class of the training images");
                return Err(Error::BadImages { path: folder.clone(), reason });
            }
            let inner = folder.join(&name);
            listing.walk(&inner, by_class.entry(name).or_default(), MOST_DEPTH)?;
        }
        listing.add_loose(folder)?;
    }
    if let (true, Some(folder)) = (listing.images == 0, folders.first()) {
        let found = listing.unread.list().map(|kinds| format!("; it has {kinds}")).unwrap_or_default();
        let reason = format!("it has no subfolder with JPEG or PNG files, one for each class{found}");
        return Err(Error::BadImages { path: folder.clone(), reason });
    }
    if names.is_empty() {
        check_classes(folders, &by_class)?;
        *names = by_class.keys().cloned().collect();
    }
    if let Some(kinds) = listing.unread.list() {
        tracing::warn!("images: files that are not read: {kinds}");
    }
    let class = |name: &String| names.iter().position(|other| other == name).unwrap_or(0) as u32;
    let of_class = by_class.iter().flat_map(|(name, paths)| {
        let class = class(name);
        paths.iter().map(move |path| ImageFile { path: path.as_path().into(), class })
    });
    Ok(of_class.collect())
}

/// Checks that every class has an image, because the others would have other numbers without it, and that its
/// first one is no pointer to a file.
fn check_classes(folders: &[PathBuf], by_class: &BTreeMap<String, Vec<PathBuf>>) -> Result<(), Error> {
    for (name, files) in by_class {
        let Some(first) = files.first() else {
            let inner = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_dir());
            let path = inner.unwrap_or_else(|| name.into());
            let mut listing = Listing::new();
            listing.walk(&path, &mut Vec::new(), MOST_DEPTH)?;
            let found = listing.unread.list().map(|kinds| format!(" (it has {kinds})")).unwrap_or_default();
            let reason = format!(
                "this class has no JPEG or PNG file{found}: convert its images, or remove the folder, after which \
                 the classes are numbered without it"
            );
            return Err(Error::BadImages { path, reason });
        };
        match system::input::open(first) {
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Err(Error::BadImages { path: first.clone(), reason: error.to_string() });
            }
            // Others are read, refused or skipped when a step needs them.
            _ => {}
        }
    }
    Ok(())
}

/// The listing of folders, which on a slow disk takes long and then reports its progress.
struct Listing {
    images: u64,
    /// Files of other kinds, by extension, and files that are in no class.
    unread: Tally,
    pace: Pace,
}

impl Listing {
    fn new() -> Self {
        Self { images: 0, unread: Tally::default(), pace: Pace::new(QUIET, INTERVAL) }
    }

    /// Adds the images in a folder and the folders in it.
    fn walk(&mut self, folder: &Path, files: &mut Vec<PathBuf>, depth: usize) -> Result<(), Error> {
        if self.pace.is_due() {
            tracing::info!("listing images: {} before {}", grouped(self.images), folder.display());
        }
        for path in entries(folder)? {
            if path.is_dir() {
                match depth.checked_sub(1) {
                    Some(depth) => self.walk(&path, files, depth)?,
                    None => self.unread.add(&format!("folders below {MOST_DEPTH} others")),
                }
            } else if is_image(&path) {
                files.push(path);
                self.images += 1;
            } else {
                self.unread.add(&kind_of(&path));
            }
        }
        Ok(())
    }

    /// Counts the images that are beside the folders of classes.
    fn add_loose(&mut self, folder: &Path) -> Result<(), Error> {
        for path in entries(folder)?.iter().filter(|path| is_image(path) && !path.is_dir()) {
            self.unread.add(&format!("{} outside of the classes", kind_of(path)));
        }
        Ok(())
    }
}

/// Returns the kind of a file by its name.
fn kind_of(path: &Path) -> String {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some(extension) => format!(".{}", extension.to_ascii_lowercase()),
        None => "without an extension".to_owned(),
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
