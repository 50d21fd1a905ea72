//! Detects labelled images, in folders or CIFAR's files.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{RecipeError, Result};

/// Number of bytes at a file's start in which the size of an image is searched.
const START: u64 = 256 << 10;
/// Maximum depth of folders within a class that are searched for an image.
const MOST_DEPTH: usize = 4;
/// Extensions of image files.
const IMAGES: [&str; 3] = ["jpg", "jpeg", "png"];
/// First bytes of a PNG file.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Images with class labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundImages {
    /// Number of classes.
    pub classes: usize,
    /// Shorter side of an image in pixels; for a folder, of its first image, if readable.
    pub side: Option<usize>,
    /// Description of the layout.
    pub summary: String,
}

/// Inspects a folder of images, or CIFAR's files.
///
/// # Errors
/// The folder has no images.
pub fn find_images(directory: &Path, paths: &[String]) -> Result<FoundImages> {
    let Some(first) = paths.first() else { return Err(data::Error::NoPaths.into()) };
    let path = directory.join(first);
    if let Some(cifar) = cifar(&path) {
        return Ok(cifar);
    }
    let refused = |reason: &str| RecipeError::Refused(format!("{first}: {reason}"));
    if !path.is_dir() {
        return Err(refused("it is no folder with a subfolder for each class, and no folder of CIFAR"));
    }
    let is_split = path.join("train").is_dir();
    let classes = subfolders(&if is_split { path.join("train") } else { path });
    let image = classes.iter().find_map(|folder| first_image(folder, MOST_DEPTH));
    let Some(image) = image else {
        return Err(refused("it has no subfolder with JPEG or PNG files, one for each class"));
    };
    let side = side(&image);
    let layout = if is_split { "train and validation folders" } else { "folders" };
    let size = side.map_or_else(String::new, |side| format!(", the first with a side of {side} pixels"));
    Ok(FoundImages {
        classes: classes.len(),
        side,
        summary: format!("{layout} of {} classes with JPEG or PNG files{size}", classes.len()),
    })
}

/// Recognises CIFAR's files by name.
fn cifar(path: &Path) -> Option<FoundImages> {
    let has = |name: &str| path.join(name).is_file();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_10 = has("data_batch_1.bin") || name.starts_with("data_batch_");
    let is_100 = has("train.bin") || name == "train.bin";
    let (classes, set) = match (is_10, is_100) {
        (true, _) => (10, "CIFAR-10"),
        (false, true) => (100, "CIFAR-100"),
        (false, false) => return None,
    };
    let summary = format!("{set}'s binary files: {classes} classes, 32 × 32 pixels");
    Some(FoundImages { classes, side: Some(32), summary })
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|path| path.is_dir()).collect()
}

/// Returns the visible paths in a folder, sorted.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let visible = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let mut paths: Vec<_> = visible.map(|entry| entry.path()).collect();
    paths.sort_unstable();
    paths
}

fn first_image(folder: &Path, depth: usize) -> Option<PathBuf> {
    let entries = entries(folder);
    let is_image = |path: &&PathBuf| {
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        IMAGES.contains(&end.to_ascii_lowercase().as_str()) && path.is_file()
    };
    let inner = || {
        let folders = entries.iter().filter(|path| depth > 0 && path.is_dir());
        folders.into_iter().find_map(|folder| first_image(folder, depth - 1))
    };
    entries.iter().find(is_image).cloned().or_else(inner)
}

/// Returns the shorter side of an image, read from its file header.
fn side(image: &Path) -> Option<usize> {
    let mut start = Vec::new();
    system::input::open(image).ok()?.take(START).read_to_end(&mut start).ok()?;
    let (width, height) = match start.starts_with(PNG) {
        true => (number(&start, 16, 4)?, number(&start, 20, 4)?),
        false => jpeg_size(&start)?,
    };
    Some(width.min(height))
}

/// Returns the width and height of a JPEG file, read from the first frame header.
fn jpeg_size(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut position = 2;
    loop {
        let marker = number(bytes, position, 2)?;
        // Start of frame: all of these markers except tables and restarts.
        if (0xffc0..=0xffcf).contains(&marker) && !matches!(marker, 0xffc4 | 0xffc8 | 0xffcc) {
            return Some((number(bytes, position + 7, 2)?, number(bytes, position + 5, 2)?));
        }
        if marker < 0xff00 {
            return None;
        }
        position += 2 + number(bytes, position + 2, 2)?;
    }
}

/// Reads a big-endian number of `width` bytes at `position`.
fn number(bytes: &[u8], position: usize, width: usize) -> Option<usize> {
    let digits = bytes.get(position..position + width)?;
    Some(digits.iter().fold(0, |number, digit| number << 8 | usize::from(*digit)))
}
