//! Reads CIFAR's binary files: records of one or two labels and 32 × 32 pixels, channel by channel.

use std::path::{Path, PathBuf};

use super::picture::{Picture, invalid};
use crate::Error;
use crate::data_file::DataFile;

/// Height and width of an image.
const SIDE: usize = 32;
/// Number of pixel values of an image.
const PIXELS: usize = 3 * SIDE * SIDE;

#[derive(Debug)]
pub(super) struct CifarFile {
    file: DataFile,
    /// Number of label bytes before the pixels; the last is the class. 1 in CIFAR-10, 2 in CIFAR-100.
    labels: usize,
    pub(super) records: u64,
}

/// Returns the training and test files of a CIFAR folder; `None` if the folder is not one.
pub(super) fn in_folder(folder: &Path) -> Option<(Vec<PathBuf>, Vec<PathBuf>)> {
    let named = |name: &str| Some(folder.join(name)).filter(|path| path.is_file());
    let batches: Vec<PathBuf> =
        (1..).map_while(|number| named(&format!("data_batch_{number}.bin"))).collect();
    match batches.is_empty() {
        false => Some((batches, named("test_batch.bin").into_iter().collect())),
        true => Some((vec![named("train.bin")?], named("test.bin").into_iter().collect())),
    }
}

impl CifarFile {
    /// Opens a file. Its size determines the format.
    ///
    /// # Errors
    /// The file cannot be read, or its size fits neither format.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let file = DataFile::open(path)?;
        let fits = |labels: usize| file.len() > 0 && file.len().is_multiple_of((labels + PIXELS) as u64);
        // Files of both sizes have more than 9 million records; their names tell.
        let is_100 =
            matches!(path.file_name().and_then(|name| name.to_str()), Some("train.bin" | "test.bin"));
        let order = if is_100 { [2, 1] } else { [1, 2] };
        let Some(labels) = order.into_iter().find(|labels| fits(*labels)) else {
            let reason = format!(
                "its {} bytes are no multiple of {} (CIFAR-10) or {} (CIFAR-100)",
                file.len(),
                PIXELS + 1,
                PIXELS + 2
            );
            return Err(Error::BadImages { path: path.to_path_buf(), reason });
        };
        let records = file.len() / (labels + PIXELS) as u64;
        Ok(Self { file, labels, records })
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns size and modification time, which reveal a change.
    pub(super) fn mark(&self) -> (u64, i64) {
        (self.file.len(), self.file.modified())
    }

    /// Reads an image and its class.
    ///
    /// # Errors
    /// The file has changed or cannot be read, or the class is not below `classes`.
    pub(super) fn read(&self, record: u64, classes: usize) -> Result<(Picture, u32), Error> {
        let mut bytes = vec![0; self.labels + PIXELS];
        self.file.read_at(record * bytes.len() as u64, &mut bytes)?;
        let (labels, planes) = bytes.split_at(self.labels);
        let class = u32::from(labels.last().copied().unwrap_or(0));
        if class as usize >= classes {
            let name = format!("{}, record {record}", self.path().display());
            return Err(invalid(&name, format!("its class is {class}, and the model has {classes}")));
        }
        let plane = SIDE * SIDE;
        let pixels = (0..PIXELS).map(|at| planes[at % 3 * plane + at / 3]).collect();
        Ok((Picture { width: SIDE, height: SIDE, channels: 3, pixels }, class))
    }
}
