//! Lists and reads folders of JPEG and PNG files, with a subfolder for each class.

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

/// Extensions of image files, in lower case and without the dot.
const EXTENSIONS: [&str; 3] = ["jpg", "jpeg", "png"];
/// Maximum size of an image file in bytes.
const MOST_BYTES: u64 = 1 << 30;
/// Maximum depth of nested folders.
const MOST_DEPTH: usize = 16;
/// Time before the first progress message of a listing, and between messages.
const QUIET: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(10);

/// An image file with its class index.
#[derive(Debug)]
pub(super) struct ImageFile {
    pub(super) path: Box<Path>,
    class: u32,
}

/// Returns the names of a folder's subfolders, sorted, without hidden ones.
///
/// # Errors
/// The folder cannot be read, or a name is not UTF-8.
pub(super) fn subfolders(folder: &Path) -> Result<Vec<String>, Error> {
    let folders = entries(folder)?.into_iter().filter(|path| path.is_dir());
    let name = |path: PathBuf| match path.file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok(name.to_owned()),
        None => Err(Error::BadImages { path, reason: "its name is not UTF-8".to_owned() }),
    };
    folders.map(name).collect()
}

/// Returns the paths in a folder, sorted, without hidden ones.
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

/// Returns the image files in folders with a subfolder for each class, in an order that does not depend on
/// the file system. `names` are the class names if known; otherwise they are set to the subfolders' names.
/// Logs the number of ignored files.
///
/// # Errors
/// A folder cannot be read or has no image, a subfolder is not a known class, or a class has no image.
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

/// Checks that every class has an image, because other classes would otherwise be renumbered, and that its
/// first file is not a git-lfs pointer.
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

/// Lists folders, with progress messages if a slow disk makes it take long.
struct Listing {
    images: u64,
    /// Ignored files: by extension, or because they are outside the class folders.
    unread: Tally,
    pace: Pace,
}

impl Listing {
    fn new() -> Self {
        Self { images: 0, unread: Tally::default(), pace: Pace::new(QUIET, INTERVAL) }
    }

    /// Adds the images in a folder and its subfolders to `files`.
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

    /// Counts images that lie beside the class folders.
    fn add_loose(&mut self, folder: &Path) -> Result<(), Error> {
        for path in entries(folder)?.iter().filter(|path| is_image(path) && !path.is_dir()) {
            self.unread.add(&format!("{} outside of the classes", kind_of(path)));
        }
        Ok(())
    }
}

/// Returns the kind of a file, from its extension.
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
    /// The file cannot be read, is not regular, or is not an image.
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

    /// Returns whether the path is not a dangling link.
    fn leads_to_a_file(&self) -> bool {
        self.path.exists() || fs::symlink_metadata(&self.path).is_err()
    }
}
