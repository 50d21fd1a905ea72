//! Quantized weights, which are encoded while weights are loaded.
//!
//! The one idea: **values pass through a small host buffer**. A matrix is read in chunks, and each chunk is
//! encoded before the next is read. Then the encoded bytes, called a record, are copied to the device. No
//! more of a model's values exists at a time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use checkpoint::Target;
use device::{Category, DType, Device, DeviceOptions, Request};
use nn::{CodedValues, ParameterId, Parameters};
use tensor::Tensor;
use tensor::ops::block_codes::{BLOCK, Encoder};

use crate::error::Result;
use crate::setup::start::Weights;

/// Maximum elements per chunk, unless one block of every column has more.
const PIECE: usize = 1 << 22;

/// The bytes of a quantized matrix that a rank holds, and the values to encode them from.
#[derive(Clone, Debug)]
pub(crate) struct RecordTarget {
    /// The destination of the bytes, named as in checkpoints after the parameter.
    pub(crate) target: Target,
    /// Offset of the rank's first byte in the record.
    pub(crate) first: usize,
    /// Whether all data-parallel ranks hold the whole record.
    pub(crate) is_whole: bool,
    pub(crate) values: CodedValues,
}

impl RecordTarget {
    /// Encodes the values of `weights`, or the randomly drawn ones if it is `None` or lacks them. Calls
    /// `on_piece` after each chunk.
    ///
    /// # Errors
    /// Values cannot be read.
    pub(crate) fn encode(&self, weights: Option<&dyn Weights>, on_piece: &mut dyn FnMut()) -> Result<()> {
        let Target { name, tensor, .. } = &self.target;
        let weights = weights.filter(|weights| weights.has(name));
        let record = encode(&self.values, weights, on_piece)?;
        Ok(tensor.set_bytes(&record[self.first..self.first + tensor.bytes()])?)
    }
}

/// Returns the encoded bytes of a matrix shard, from the values of `weights` or else the randomly drawn ones.
fn encode(
    values: &CodedValues,
    weights: Option<&dyn Weights>,
    on_piece: &mut dyn FnMut(),
) -> Result<Vec<u8>> {
    let codes = &values.codes;
    let host = Device::cpu(0, &DeviceOptions::default())?;
    // Folders with transposed matrices are read by whole rows.
    let rows = BLOCK * codes.shape().columns().max(1);
    let piece = ((PIECE / rows).max(1) * rows).min(codes.elements());
    let request = Request::new(Category::Parameter, "encode");
    let buffer = Tensor::empty(&host, [piece], DType::F32, request)?;
    let mut encoder = Encoder::new(codes);
    for first in (0..codes.elements()).step_by(piece.max(1)) {
        let piece = buffer.view(0, [piece.min(codes.elements() - first)])?;
        match weights {
            Some(weights) => read(values, weights, first, &piece)?,
            None => values.draw(first, &piece)?,
        }
        encoder.push(&piece.read()?);
        on_piece();
    }
    Ok(encoder.finish())
}

/// Reads values of a shard, from element `first` on, into `piece`.
fn read(values: &CodedValues, weights: &dyn Weights, first: usize, piece: &Tensor) -> Result<()> {
    for run in values.runs(first..first + piece.elements()) {
        let tensor = piece.view(run.local - first, [run.elements])?;
        let name = values.name.clone();
        let shape = values.whole();
        let target = Target { name, dtype: DType::F32, shape, first: run.whole, tensor };
        weights.load(&mut std::iter::once(target))?;
    }
    Ok(())
}

/// Weights whose quantized arrays are decoded to values on reading.
#[derive(Debug)]
pub struct Decoded {
    weights: Arc<dyn Weights>,
    /// The quantized shards of each matrix.
    matrices: BTreeMap<String, Vec<CodedValues>>,
    /// Name and decoded values of the matrix read last.
    last: Mutex<(String, Arc<Vec<f32>>)>,
}

impl Decoded {
    /// Wraps `weights` for a model with `parameters`, which include all shards.
    #[must_use]
    pub fn new(weights: Arc<dyn Weights>, parameters: &Parameters) -> Self {
        let mut matrices = BTreeMap::<_, Vec<_>>::new();
        let all = (0..parameters.list().len()).map(ParameterId);
        for values in all.filter_map(|number| parameters.coded_values(number)) {
            matrices.entry(values.name.clone()).or_default().push(values);
        }
        Decoded { weights, matrices, last: Mutex::default() }
    }

    /// Returns the decoded values of a whole matrix.
    fn matrix(&self, name: &str, parts: &[CodedValues]) -> Result<Arc<Vec<f32>>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != name {
            let elements = parts.first().map_or(0, |part| part.whole().elements());
            let mut whole = vec![0.0; elements];
            for (number, part) in parts.iter().enumerate() {
                let record = match self.weights.has_record(name) {
                    true => self.stored(part, number, parts.len())?,
                    false => encode(part, Some(&*self.weights), &mut || ())?,
                };
                let values = part.codes.decode_on_host(&record);
                for run in part.runs(0..values.len()) {
                    let own = &values[run.local..run.local + run.elements];
                    whole[run.whole..run.whole + run.elements].copy_from_slice(own);
                }
            }
            *last = (name.to_owned(), Arc::new(whole));
        }
        Ok(Arc::clone(&last.1))
    }

    /// Reads the encoded bytes of shard `number` of `parts`.
    fn stored(&self, part: &CodedValues, number: usize, parts: usize) -> Result<Vec<u8>> {
        let host = Device::cpu(0, &DeviceOptions::default())?;
        let bytes = part.codes.bytes();
        let request = Request::new(Category::Parameter, "record");
        let tensor = Tensor::empty(&host, [bytes], DType::U8, request)?;
        let name = part.name.clone();
        let shape = [parts * bytes].into();
        let target = Target { name, dtype: DType::U8, shape, first: number * bytes, tensor: tensor.clone() };
        self.weights.load(&mut std::iter::once(target))?;
        Ok(tensor.to_vec()?)
    }
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
        !self.matrices.contains_key(name) && self.weights.has_record(name)
    }

    fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<()> {
        for target in targets {
            let Some(parts) = self.matrices.get(&target.name) else {
                self.weights.load(&mut std::iter::once(target))?;
                continue;
            };
            let values = self.matrix(&target.name, parts)?;
            let own = &values[target.first..target.first + target.tensor.elements()];
            let bytes: Vec<u8> = own.iter().flat_map(|value| value.to_le_bytes()).collect();
            Target { dtype: DType::F32, ..target }.take(0, &bytes)?;
        }
        Ok(())
    }
}
