//! Records of weights in codes, which are made from values while weights are loaded.
//!
//! The one idea: **values pass through a small buffer of the host**. A matrix is read in pieces, each of which
//! is encoded before the next is read; then its record goes to the device. No more of a model's values exists
//! at a time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use checkpoint::Target;
use device::{Category, DType, Device, DeviceOptions, Request};
use nn::{BlockCodes, Drawing, Parameters};
use tensor::Tensor;
use tensor::ops::block_codes::{BLOCK, Encoder};

use crate::error::Result;
use crate::start::Weights;

/// Most elements of a piece, if a block of every column has fewer.
const PIECE: usize = 1 << 22;

/// The part of a record that a rank holds, and how it is made.
#[derive(Clone, Debug)]
pub(crate) struct RecordTarget {
    /// The part, which a checkpoint of such a run has under the parameter's name.
    pub(crate) target: Target,
    /// Whether all data-parallel ranks hold the whole record.
    pub(crate) is_whole: bool,
    pub(crate) codes: BlockCodes,
    pub(crate) drawing: Drawing,
}

impl RecordTarget {
    /// Encodes the values of `weights`, or without them the initial ones. Calls `on_piece` after each piece.
    ///
    /// # Errors
    /// Values that cannot be read.
    pub(crate) fn encode(&self, weights: Option<&dyn Weights>, on_piece: &mut dyn FnMut()) -> Result<()> {
        let Target { name, first, tensor, .. } = &self.target;
        let weights = weights.filter(|weights| weights.has(name));
        let record = encode(&self.codes, on_piece, &mut |first, piece| match weights {
            Some(weights) => weights.load(&mut std::iter::once(values(name, &self.codes, first, piece))),
            None => Ok(self.drawing.fill(first, piece)?),
        })?;
        Ok(tensor.set_bytes(&record[*first..first + tensor.bytes()])?)
    }
}

/// The target of some values of a matrix.
fn values(name: &str, codes: &BlockCodes, first: usize, tensor: &Tensor) -> Target {
    let (name, tensor) = (name.to_owned(), tensor.clone());
    Target { name, dtype: DType::F32, shape: codes.shape(), first, tensor }
}

/// Returns the record of a matrix whose values `fill` writes to tensors of a host, each from an element on.
fn encode(
    codes: &BlockCodes,
    on_piece: &mut dyn FnMut(),
    fill: &mut dyn FnMut(usize, &Tensor) -> Result<()>,
) -> Result<Vec<u8>> {
    let host = Device::cpu(0, &DeviceOptions::default())?;
    // Folders with transposed matrices are read by whole rows.
    let rows = BLOCK * codes.shape().columns().max(1);
    let piece = (PIECE / rows).max(1) * rows;
    let request = Request::new(Category::Parameter, "encode");
    let buffer = Tensor::empty(&host, [piece.min(codes.elements())], DType::F32, request)?;
    let mut encoder = Encoder::new(codes);
    for first in (0..codes.elements()).step_by(piece) {
        let values = buffer.view(0, [piece.min(codes.elements() - first)])?;
        fill(first, &values)?;
        encoder.push(&values.read()?);
        on_piece();
    }
    Ok(encoder.finish())
}

/// Weights of which some are in codes, as values: those that the codes stand for.
#[derive(Debug)]
pub struct Decoded {
    weights: Arc<dyn Weights>,
    codes: BTreeMap<String, BlockCodes>,
    /// The matrix that was read last, and its record.
    last: Mutex<(String, Arc<Vec<u8>>)>,
}

impl Decoded {
    /// Returns `weights` as a model with `parameters` computes with them.
    #[must_use]
    pub fn new(weights: Arc<dyn Weights>, parameters: &Parameters) -> Self {
        let coded = parameters.list().iter();
        let coded = coded.filter_map(|one| Some((one.name.clone(), one.codes.as_deref()?.clone())));
        Decoded { weights, codes: coded.collect(), last: Mutex::default() }
    }

    fn record(&self, name: &str, codes: &BlockCodes) -> Result<Arc<Vec<u8>>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != name {
            let record = match self.weights.has_record(name) {
                true => read(&*self.weights, name, codes)?,
                false => encode(codes, &mut || (), &mut |first, piece| {
                    self.weights.load(&mut std::iter::once(values(name, codes, first, piece)))
                })?,
            };
            *last = (name.to_owned(), Arc::new(record));
        }
        Ok(Arc::clone(&last.1))
    }

    fn fill(&self, target: &Target, codes: &BlockCodes) -> Result<()> {
        let Target { name, first, tensor, .. } = target;
        let range = *first..first + tensor.elements();
        let blocks = range.start / BLOCK * BLOCK..range.end.next_multiple_of(BLOCK);
        let decoded = codes.decode_on_host(&*self.record(name, codes)?, blocks.clone());
        let own = &decoded[range.start - blocks.start..range.end - blocks.start];
        let bytes: Vec<u8> = own.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(Target { dtype: DType::F32, ..target.clone() }.take(0, &bytes)?)
    }
}

/// Reads a record.
fn read(weights: &dyn Weights, name: &str, codes: &BlockCodes) -> Result<Vec<u8>> {
    let host = Device::cpu(0, &DeviceOptions::default())?;
    let request = Request::new(Category::Parameter, "record");
    let tensor = Tensor::empty(&host, [codes.bytes()], DType::U8, request)?;
    weights.load(&mut std::iter::once(Target::whole(name.to_owned(), DType::U8, tensor.clone())))?;
    Ok(tensor.to_vec()?)
}

impl Weights for Decoded {
    fn id(&self) -> &str {
        self.weights.id()
    }

    fn path(&self) -> &Path {
        self.weights.path()
    }

    fn has(&self, name: &str) -> bool {
        self.weights.has(name)
    }

    fn has_record(&self, name: &str) -> bool {
        !self.codes.contains_key(name) && self.weights.has_record(name)
    }

    fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<()> {
        for target in targets {
            match self.codes.get(&target.name) {
                Some(codes) => self.fill(&target, codes)?,
                None => self.weights.load(&mut std::iter::once(target))?,
            }
        }
        Ok(())
    }
}
