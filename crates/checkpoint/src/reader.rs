//! Reads checkpoints. A checkpoint is verified as a whole before any of it is used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use device::{DType, Float, bf16, dispatch, f16};
use system::file_error::FileContext;
use tensor::{Shape, Tensor, TensorError};

use crate::corpus_mark::CorpusMark;
use crate::error::{CheckpointError, Result};
use crate::format::{self, LOSSES};
use crate::index::INDEX;
use crate::manifest::{LossScale, Manifest, STATE};
use crate::state_files::{Ranges, StateFiles};
use crate::validations::Validations;

/// A tensor to be filled from a checkpoint's array, or from its elements from `first` on.
#[derive(Clone, Debug)]
pub struct Target {
    /// The array's name.
    pub name: String,
    /// Element type of the array.
    pub dtype: DType,
    /// Shape of the whole array.
    pub shape: Shape,
    /// Index of the first element to read.
    pub first: usize,
    /// The destination, whose number of elements decides how many are read. Elements are converted if its
    /// floating-point type differs.
    pub tensor: Tensor,
}

impl Target {
    /// Returns a target that reads the whole array `name` of type `dtype` into `tensor`.
    pub fn whole(name: String, dtype: DType, tensor: Tensor) -> Self {
        Target { name, dtype, shape: tensor.shape(), first: 0, tensor }
    }

    /// Writes a chunk of the array to the tensor. `at` is the index of its first element, counted from
    /// [`Target::first`].
    ///
    /// # Errors
    /// The chunk exceeds the tensor, or the types do not convert.
    pub fn take(&self, at: usize, piece: &[u8]) -> std::result::Result<(), TensorError> {
        let target = self.tensor.view(at, [piece.len() / self.dtype.bytes()])?;
        if self.dtype == target.dtype() {
            return target.set_bytes(piece);
        }
        let wrong = TensorError::DType {
            operator: "load",
            operand: "target",
            actual: target.dtype(),
            expected: self.dtype,
        };
        let Some(values) = widened(self.dtype, piece) else { return Err(wrong) };
        dispatch!(target.dtype(), T => {
            let mut rounded = vec![<T as Float>::from_f32(0.0); values.len()];
            <T as Float>::round(&values, &mut rounded);
            target.set(&rounded)
        }, _ => Err(wrong))
    }
}

/// Converts elements of type `dtype` to f32; `None` for a type that is not floating-point.
fn widened(dtype: DType, piece: &[u8]) -> Option<Vec<f32>> {
    let words = || piece.as_chunks().0.iter();
    Some(match dtype {
        DType::F32 => piece.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect(),
        DType::Bf16 => words().map(|word| bf16::from_le_bytes(*word).to_f32()).collect(),
        DType::F16 => words().map(|word| f16::from_le_bytes(*word).to_f32()).collect(),
        DType::U32 | DType::E4m3 | DType::E5m2 | DType::U8 => return None,
    })
}

/// Selects the files of a checkpoint that one of several processes verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of this process.
    pub index: usize,
    /// Number of processes.
    pub of: usize,
}

impl Share {
    /// The share of a single process: all files.
    pub const ALL: Share = Share { index: 0, of: 1 };

    fn has(self, file: usize) -> bool {
        file % self.of.max(1) == self.index
    }
}

/// A complete, verified checkpoint. Every byte has been compared with its hash, by this process or by another
/// one that verified its own share.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    state: StateFiles,
}

impl Checkpoint {
    /// Reads and verifies the checkpoint in `path`.
    ///
    /// # Errors
    /// A file, named in the error, is missing, truncated or corrupted.
    pub fn open(path: &Path) -> std::result::Result<Self, CheckpointError> {
        Self::open_share(path, Share::ALL)
    }

    /// Reads the checkpoint in `path`. Verifies the sizes of all files, and the hashes of this process's
    /// share. Processes with all shares verify every byte once.
    pub fn open_share(path: &Path, share: Share) -> std::result::Result<Self, CheckpointError> {
        let manifest = Manifest::read(path)?;
        check_files(path, &manifest, share)?;
        let name =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("step-"));
        if let Some(step) = name.and_then(|digits| digits.parse::<u64>().ok()).filter(|s| *s != manifest.step)
        {
            let what = format!("it holds step {}, and its name says {step}", manifest.step);
            return Err(CheckpointError::damaged(path, what));
        }
        let state = StateFiles::open(path, &manifest)?;
        Ok(Checkpoint { path: path.to_owned(), manifest, state })
    }

    /// Returns the checkpoint's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the checkpoint's unique identifier.
    pub fn id(&self) -> &str {
        self.manifest.id()
    }

    /// Returns the number of steps completed when the checkpoint was taken.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// Returns the number of updates the optimizer made, at most one per step.
    pub fn updates(&self) -> u32 {
        u32::try_from(self.manifest.updates()).unwrap_or(u32::MAX)
    }

    /// Returns the loss scale; `None` if the run has none.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.manifest.loss_scale
    }

    /// Returns the version of Plimsoll that wrote the checkpoint.
    pub fn version(&self) -> &str {
        &self.manifest.version
    }

    /// Returns the versions of the libraries used for computing; `None` in checkpoints of versions that did
    /// not record them.
    pub fn libraries(&self) -> Option<&str> {
        self.manifest.libraries.as_deref()
    }

    /// Returns the settings that affect results, by key, each value as TOML.
    pub fn configuration(&self) -> &BTreeMap<String, String> {
        &self.manifest.configuration
    }

    /// Returns the corpus; `None` for synthetic data and in checkpoints of earlier versions.
    pub fn corpus(&self) -> Option<&CorpusMark> {
        self.manifest.corpus.as_ref()
    }

    /// Returns the SHA-256 of the whole corpus in hexadecimal, recorded only by earlier versions.
    pub fn corpus_sha256(&self) -> Option<&str> {
        self.manifest.corpus_sha256.as_deref()
    }

    /// Returns the identifier of the frozen parameters' weights if the checkpoint omits them; otherwise
    /// `None`.
    pub fn base(&self) -> Option<&str> {
        self.manifest.base.as_deref()
    }

    /// Returns the SHA-256 of the reference model's scores; `None` if the loss has no reference model, and in
    /// checkpoints of versions that did not record it.
    pub fn reference_sha256(&self) -> Option<&str> {
        self.manifest.reference_sha256.as_deref()
    }

    /// Returns the steps whose samples the run skipped, as indices in data order, ascending.
    pub fn left_out(&self) -> &[u64] {
        &self.manifest.left_out
    }

    /// Returns whether there is an array called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.state.has(name)
    }

    /// Returns the names of all arrays, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.state.names()
    }

    /// Returns the element type and shape of an array.
    ///
    /// # Errors
    /// There is no array of this name.
    pub fn layout(&self, name: &str) -> std::result::Result<(DType, &[usize]), CheckpointError> {
        self.state.array(name).map(|array| (array.dtype, &array.shape[..]))
    }

    /// Returns the bytes of all elements of an array.
    ///
    /// # Errors
    /// There is no array of this name, or its file cannot be read.
    pub fn bytes(&self, name: &str) -> std::result::Result<Vec<u8>, CheckpointError> {
        let array = self.state.array(name)?;
        let mut bytes = Vec::new();
        Ranges::new(&self.state).read(array, 0..array.elements(), |_, piece| {
            bytes.extend_from_slice(piece);
            Ok::<_, CheckpointError>(())
        })?;
        Ok(bytes)
    }

    /// Returns the gradient norms of the last steps, `None` for spikes and non-finite norms; empty if nothing
    /// depended on them.
    pub fn gradient_norms(&self) -> &[Option<f32>] {
        &self.manifest.gradient_norms
    }

    /// Returns the validations of the run up to the checkpoint.
    pub fn validations(&self) -> Validations {
        self.manifest.validations()
    }

    /// Returns the loss of every step before the checkpoint.
    ///
    /// # Errors
    /// The file cannot be read, or has another number of losses.
    pub fn losses(&self) -> std::result::Result<Vec<f32>, CheckpointError> {
        let dtype = self.state.array(LOSSES)?.dtype;
        let bytes = self.bytes(LOSSES)?;
        let losses: Vec<_> = bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        if dtype != DType::F32 || losses.len() as u64 != self.step() {
            let what = format!("it has {} losses of {} steps", losses.len(), self.step());
            return Err(CheckpointError::damaged(self.state.list(), what));
        }
        Ok(losses)
    }

    /// Reads arrays into the tensors of `targets`, in chunks, and reads no other bytes. Elements of other
    /// floating-point types are converted.
    ///
    /// # Errors
    /// An array is missing or has another type or shape, which is found before its tensor is written; or the
    /// file cannot be read.
    pub fn load<E: From<CheckpointError> + From<TensorError>>(
        &self,
        targets: impl Iterator<Item = Target>,
    ) -> std::result::Result<(), E> {
        let mut ranges = Ranges::new(&self.state);
        for target in targets {
            let Target { name, dtype, shape, first, tensor } = &target;
            let array = self.state.array(name)?;
            let widens = *dtype == DType::F32 && array.dtype.is_float();
            if !(widens || array.dtype == *dtype) || array.shape != shape.dims() {
                let there = array.dtype;
                let there_shape = &array.shape;
                let what =
                    format!("{name} is {there} {there_shape:?} there and {dtype} {shape} in this model");
                return Err(CheckpointError::damaged(self.state.list(), what).into());
            }
            let elements = *first..first + tensor.elements();
            let stored = Target { dtype: array.dtype, ..target.clone() };
            ranges.read(array, elements, |at, piece| stored.take(at, piece).map_err(E::from))?;
        }
        Ok(())
    }
}

/// Checks the files of a checkpoint against its manifest: the sizes of all, the hashes of this process's
/// share. Every process verifies the index, because each reads it.
fn check_files(path: &Path, manifest: &Manifest, share: Share) -> Result<()> {
    if manifest.is_single() {
        return check_file(&path.join(STATE), manifest, share.has(0));
    }
    for (number, name) in manifest.files().enumerate() {
        check_file(&path.join(name), manifest, name == INDEX || share.has(number))?;
    }
    Ok(())
}

/// Checks a file against the manifest: first its size, then its hash if `is_hashed`.
fn check_file(path: &Path, manifest: &Manifest, is_hashed: bool) -> Result<()> {
    let metadata = std::fs::metadata(path).context(path, "open it")?;
    manifest.check_size(path, metadata.len())?;
    if is_hashed { manifest.check_file(path, &format::digest_of(path)?) } else { Ok(()) }
}
