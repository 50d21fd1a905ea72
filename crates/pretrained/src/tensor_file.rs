//! A safetensors file: its header, checked against the file's length, and access to ranges of its tensors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::{DType, Float, bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use system::file_error::FileContext;
use system::stand_in;

use crate::error::{PretrainedError, Result};

/// Maximum size of a header in bytes, the same as in other readers of the format.
const MOST_HEADER: u64 = 100_000_000;
/// Bytes of the length field at the start of the file.
const LENGTH: u64 = 8;

/// A tensor stored in a file.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    file: Arc<PathBuf>,
    dtype: DType,
    /// The type as the file names it.
    stored: Dtype,
    shape: Vec<usize>,
    /// File offset of its first element in bytes.
    start: u64,
}

impl StoredTensor {
    /// Returns the type of the elements: f32, f16 or bf16, or u32 for a 64-bit count.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the tensor's shape.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn path(&self) -> &Path {
        &self.file
    }

    /// The type as the file names it.
    pub(crate) fn stored(&self) -> Dtype {
        self.stored
    }

    /// Number of bytes in the file.
    pub(crate) fn bytes(&self) -> usize {
        let size = if self.stored == Dtype::I64 { size_of::<i64>() } else { self.dtype.bytes() };
        size * self.shape.iter().product::<usize>()
    }

    /// Reads all bytes as they are stored.
    pub(crate) fn read_stored(&self) -> Result<Vec<u8>> {
        let file = system::input::open(&self.file).context(&self.file, "open it")?;
        let mut bytes = vec![0; self.bytes()];
        file.read_exact_at(&mut bytes, self.start).context(&self.file, "read it")?;
        Ok(bytes)
    }

    /// Reads a range of elements into `values`, converted to f32.
    pub(crate) fn read(&self, file: &File, elements: Range<usize>, values: &mut [f32]) -> Result<()> {
        let mut bytes = vec![0; self.dtype.bytes() * elements.len()];
        let start = self.start + (self.dtype.bytes() * elements.start) as u64;
        file.read_exact_at(&mut bytes, start).context(&self.file, "read it")?;
        match self.dtype {
            DType::Bf16 => widen(&bytes, values, |word| bf16::from_le_bytes(word).to_f32()),
            DType::F16 => widen(&bytes, values, |word| Float::to_f32(f16::from_le_bytes(word))),
            // Headers with other types were refused, and counts are no parameters.
            _ => widen(&bytes, values, f32::from_le_bytes),
        }
        Ok(())
    }

    /// Reads a count stored as a 64-bit integer.
    ///
    /// # Errors
    /// The count is negative or does not fit in 32 bits.
    pub(crate) fn read_count(&self, file: &File) -> Result<u32> {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, self.start).context(&self.file, "read it")?;
        let count = i64::from_le_bytes(bytes);
        let refused = |_| PretrainedError::refused(&self.file, format!("a count is {count}"));
        u32::try_from(count).map_err(refused)
    }
}

fn widen<const N: usize>(bytes: &[u8], values: &mut [f32], of: impl Fn([u8; N]) -> f32) {
    values.iter_mut().zip(bytes.as_chunks().0).for_each(|(value, word)| *value = of(*word));
}

/// Reads the header of the file at `path` and adds its tensors to `tensors`.
///
/// # Errors
/// The header does not match the file's length, a type is unsupported, or another file has the same tensor
/// name.
pub(crate) fn add_tensors(path: PathBuf, tensors: &mut BTreeMap<String, StoredTensor>) -> Result<()> {
    let (header, data) = read_header(&path)?;
    let path = Arc::new(path);
    for (name, info) in header.tensors() {
        let dtype = dtype(info.dtype).ok_or_else(|| {
            let what = format!("{name} is of type {}: F32, F16, BF16 and counts in I64 are read", info.dtype);
            PretrainedError::refused(&path, what)
        })?;
        let start = data + info.data_offsets.0 as u64;
        let shape = info.shape.clone();
        let stored = StoredTensor { file: Arc::clone(&path), dtype, stored: info.dtype, shape, start };
        if let Some(other) = tensors.insert(name.clone(), stored) {
            let what = format!("{name} is also in {}", other.file.display());
            return Err(PretrainedError::refused(&path, what));
        }
    }
    Ok(())
}

/// Returns the header, and the file offset in bytes at which the tensors begin.
fn read_header(path: &Path) -> Result<(Metadata, u64)> {
    let refused = |what: String| PretrainedError::refused(path, what);
    let mut file = system::input::open(path).context(path, "open it")?;
    let bytes = file.metadata().context(path, "read its header")?.len();
    if bytes < LENGTH {
        return Err(refused(format!(
            "it has {bytes} bytes, and the length of its header alone takes {LENGTH}"
        )));
    }
    let mut length = [0; LENGTH as usize];
    file.read_exact(&mut length).context(path, "read its header")?;
    let length = u64::from_le_bytes(length);
    if length > MOST_HEADER.min(bytes - LENGTH) {
        let mut first = [0; 16];
        let read = file.read_at(&mut first, 0).context(path, "read its header")?;
        if let Some(sentence) = stand_in::page(&first[..read]) {
            return Err(refused(sentence.to_owned()));
        }
        return Err(refused(format!("its header would have {length} bytes, and the file has {bytes}")));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).context(path, "read its header")?;
    let header: Metadata =
        serde_json::from_slice(&text).map_err(|error| refused(format!("its header is wrong: {error}")))?;
    let described = LENGTH + length + header.data_len() as u64;
    if described != bytes {
        return Err(refused(format!("it has {bytes} bytes, and its header describes {described}")));
    }
    Ok((header, LENGTH + length))
}

fn dtype(stored: Dtype) -> Option<DType> {
    match stored {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::Bf16),
        Dtype::I64 => Some(DType::U32),
        _ => None,
    }
}
