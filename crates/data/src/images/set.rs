//! A numbered set of images.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::cifar::CifarFile;
use super::folders::ImageFile;
use super::picture::Picture;
use crate::Error;

/// A numbered set of images with classes.
#[derive(Debug)]
pub(super) enum ImageSet {
    /// Records of CIFAR files, in file order.
    Cifar(Vec<CifarFile>),
    Files(Vec<ImageFile>),
}

impl ImageSet {
    /// Opens CIFAR files.
    ///
    /// # Errors
    /// A file does not have CIFAR's format, or cannot be read.
    pub(super) fn of_cifar(paths: &[PathBuf]) -> Result<Self, Error> {
        Ok(Self::Cifar(paths.iter().map(|path| CifarFile::open(path)).collect::<Result<_, _>>()?))
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Cifar(files) => files.iter().map(|file| file.records).sum(),
            Self::Files(files) => files.len() as u64,
        }
    }

    /// Returns the file that contains image `index`.
    pub(super) fn path(&self, index: u64) -> Option<&Path> {
        match self {
            Self::Cifar(files) => position(files, index).map(|(file, _)| file.path()),
            Self::Files(files) => files.get(index as usize).map(|file| &*file.path),
        }
    }

    /// Reads image `index` with `channels` values per pixel, and its class.
    ///
    /// # Errors
    /// The file cannot be read, the image cannot be decoded, or its class is not below `classes`.
    pub(super) fn read(&self, index: u64, channels: usize, classes: usize) -> Result<(Picture, u32), Error> {
        let read = match self {
            Self::Cifar(files) => position(files, index).map(|(file, record)| {
                let (picture, class) = file.read(record, classes)?;
                Ok((picture.with_channels(channels), class))
            }),
            Self::Files(files) => files.get(index as usize).map(|file| file.read(channels)),
        };
        read.unwrap_or(Err(Error::NoSuchImage { index, count: self.len() }))
    }

    /// Feeds the names, classes and sizes of the images to a hash.
    pub(super) fn hash(&self, hash: &mut Sha256) {
        match self {
            Self::Cifar(files) => files.iter().for_each(|file| hash.update(format!("{:?};", file.mark()))),
            Self::Files(files) => files.iter().for_each(|file| {
                let name = file.path.file_name().unwrap_or_default();
                hash.update(name.as_encoded_bytes());
                hash.update(format!("/{};", file.class()));
            }),
        }
    }
}

/// Returns the file that contains image `index`, and the index of its record there.
fn position(files: &[CifarFile], index: u64) -> Option<(&CifarFile, u64)> {
    let mut record = index;
    for file in files {
        match record.checked_sub(file.records) {
            None => return Some((file, record)),
            Some(rest) => record = rest,
        }
    }
    None
}
