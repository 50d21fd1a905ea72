//! Training and validation images.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use philox::key_of_name;
use sha2::{Digest, Sha256};
use system::numbers::hexadecimal;
use system::quoted::shortened;

use super::picture::Picture;
use super::set::ImageSet;
use super::{cifar, folders};
use crate::files::matching;
use crate::{Error, Permutation};

/// Names of subfolders with validation images beside a folder `train`.
const HELD_OUT: [&str; 3] = ["val", "validation", "test"];
/// Names of dataset splits in lower case, which are unlikely to be class names.
const SPLITS: [&str; 8] = ["train", "training", "val", "valid", "validation", "test", "testing", "dev"];

/// Disjoint training and validation images.
#[derive(Debug)]
pub struct ImageSplit {
    pub(super) training: ImageSubset,
    pub(super) validation: ImageSubset,
    classes: usize,
}

/// A subset of an image set in a fixed random order, so that a few images show all classes.
#[derive(Clone, Debug)]
pub(super) struct ImageSubset {
    set: Arc<ImageSet>,
    order: Permutation,
    first: u64,
    count: u64,
}

enum Paths {
    Cifar { training: Vec<PathBuf>, validation: Vec<PathBuf> },
    Folders { training: Vec<PathBuf>, validation: Vec<PathBuf> },
}

impl ImageSplit {
    /// Opens the images named by `paths`, relative to `base`: CIFAR's files, a folder of them, or folders
    /// with a subfolder for each class, which may be in a subfolder `train` beside `val`. Validation uses
    /// `validation_paths` if set, or else the validation folder beside the training one, or else `fraction`
    /// of all images.
    ///
    /// # Errors
    /// A path has no images, a file cannot be read, or there is no image for training or validation.
    pub fn open(
        base: &Path,
        paths: &[String],
        validation_paths: &[String],
        fraction: f64,
    ) -> Result<Self, Error> {
        let mut names = Vec::new();
        let (training, beside) = opened(named(base, paths)?, &mut names)?;
        let beside = match validation_paths.is_empty() {
            true => beside,
            false => Some(opened(named(base, validation_paths)?, &mut names)?.0),
        };
        let all = training.len();
        let training = Arc::new(training);
        let (training, validation) = match beside {
            Some(validation) => {
                let count = validation.len();
                (ImageSubset::new(training, 0, all), ImageSubset::new(Arc::new(validation), 0, count))
            }
            None => {
                let held_out = ((all as f64 * fraction).ceil() as u64).min(all);
                let rest = all - held_out;
                (ImageSubset::new(Arc::clone(&training), 0, rest), ImageSubset::new(training, rest, held_out))
            }
        };
        for (part, what) in [(&training, "training"), (&validation, "validation")] {
            if part.count == 0 {
                return Err(Error::NoImages { what });
            }
        }
        Ok(Self { training, validation, classes: names.len() })
    }

    /// Returns the number of training images.
    #[must_use]
    pub fn training_images(&self) -> u64 {
        self.training.count
    }

    /// Returns the number of validation images.
    #[must_use]
    pub fn validation_images(&self) -> u64 {
        self.validation.count
    }

    /// Returns the number of class folders; 0 for CIFAR's files, whose classes are numbers.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Returns a hexadecimal SHA-256 over the names, classes and sizes of all images.
    #[must_use]
    pub fn identity(&self) -> String {
        let mut hash = Sha256::new();
        for part in [&self.training, &self.validation] {
            part.set.hash(&mut hash);
            hash.update(format!("{} {}", part.first, part.count));
        }
        hexadecimal(&hash.finalize())
    }
}

/// Sorts paths into CIFAR files and folders.
///
/// # Errors
/// Both occur, or a path does not exist.
fn named(base: &Path, patterns: &[String]) -> Result<Paths, Error> {
    let mut all = Vec::new();
    for pattern in patterns {
        all.extend(matching(base, pattern)?);
    }
    if let Some(missing) = all.iter().find(|path| !path.exists()) {
        return Err(Error::Missing { path: missing.clone() });
    }
    let (files, folders): (Vec<PathBuf>, Vec<PathBuf>) = all.into_iter().partition(|path| !path.is_dir());
    match (files.is_empty(), folders.as_slice()) {
        (false, [folder, ..]) => {
            let reason = "it is a folder, and other paths are files of CIFAR".to_owned();
            Err(Error::BadImages { path: folder.clone(), reason })
        }
        (false, []) => Ok(Paths::Cifar { training: files, validation: Vec::new() }),
        (true, [folder]) => of_folder(folder),
        (true, _) => Ok(Paths::Folders { training: folders, validation: Vec::new() }),
    }
}

fn of_folder(folder: &Path) -> Result<Paths, Error> {
    if let Some((training, validation)) = cifar::in_folder(folder) {
        return Ok(Paths::Cifar { training, validation });
    }
    let inner = folders::subfolders(folder)?;
    let is_split = |name: &&String| SPLITS.contains(&&*name.to_lowercase()) && *name != "train";
    let splits: Vec<&str> = inner.iter().filter(is_split).map(String::as_str).collect();
    if splits.len() > 1 && splits.len() == inner.len() {
        let reason = format!(
            "its folders {} are no classes: that of training images is named train, and that of others {}",
            shortened(&splits.join(", ")),
            HELD_OUT.join(" or ")
        );
        return Err(Error::BadImages { path: folder.to_path_buf(), reason });
    }
    if !inner.iter().any(|name| name == "train") {
        return Ok(Paths::Folders { training: vec![folder.to_path_buf()], validation: Vec::new() });
    }
    let held_out = HELD_OUT.into_iter().find(|name| inner.iter().any(|inner| inner == name));
    let is_read = |name: &&String| *name == "train" || held_out == Some(name.as_str());
    let others: Vec<&str> = inner.iter().filter(|name| !is_read(name)).map(String::as_str).collect();
    if !others.is_empty() {
        let folder = folder.display();
        let others = others.join(", ");
        tracing::warn!("{folder}: folders beside train that are not read: {}", shortened(&others));
    }
    let validation = held_out.map(|name| folder.join(name)).into_iter().collect();
    Ok(Paths::Folders { training: vec![folder.join("train")], validation })
}

/// Opens the training images, and the validation images if they are stored separately.
fn opened(paths: Paths, names: &mut Vec<String>) -> Result<(ImageSet, Option<ImageSet>), Error> {
    let apart = |paths: &[PathBuf], open: &mut dyn FnMut(&[PathBuf]) -> Result<ImageSet, Error>| {
        Some(paths).filter(|paths| !paths.is_empty()).map(open).transpose()
    };
    match paths {
        Paths::Cifar { training, validation } => {
            let set = ImageSet::of_cifar(&training)?;
            Ok((set, apart(&validation, &mut |paths| ImageSet::of_cifar(paths))?))
        }
        Paths::Folders { training, validation } => {
            let mut files = |paths: &[PathBuf]| Ok(ImageSet::Files(folders::files(paths, names)?));
            let set = files(&training)?;
            Ok((set, apart(&validation, &mut files)?))
        }
    }
}

impl ImageSubset {
    fn new(set: Arc<ImageSet>, first: u64, count: u64) -> Self {
        let order = Permutation::new(set.len(), key_of_name(0, "data.images.split"), 0);
        Self { set, order, first, count }
    }

    pub(super) fn len(&self) -> u64 {
        self.count
    }

    /// Returns the file that contains image `index`.
    pub(super) fn path(&self, index: u64) -> Option<PathBuf> {
        self.set.path(self.order.at(self.first + index)).map(Path::to_path_buf)
    }

    pub(super) fn read(&self, index: u64, channels: usize, classes: usize) -> Result<(Picture, u32), Error> {
        self.set.read(self.order.at(self.first + index), channels, classes)
    }
}
