//! A micro-batch as plain host arrays.

use crate::Error;

/// The values of a host array, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum HostData {
    /// Token numbers, class numbers.
    U32(Vec<u32>),
    /// Real numbers, as of measurements.
    F32(Vec<f32>),
    /// Values of pixels.
    U8(Vec<u8>),
    /// None: a plan knows the array by its shape alone.
    Shape(HostType),
}

impl HostData {
    /// Name of the values' type.
    fn name(&self) -> &'static str {
        match self {
            HostData::U32(_) => "u32",
            HostData::F32(_) => "f32",
            HostData::U8(_) => "u8",
            HostData::Shape(_) => "no",
        }
    }

    /// Type of the values.
    #[must_use]
    pub fn values(&self) -> HostType {
        match self {
            HostData::U32(_) => HostType::U32,
            HostData::F32(_) => HostType::F32,
            HostData::U8(_) => HostType::U8,
            HostData::Shape(values) => *values,
        }
    }
}

/// A dense array on the host, with as many values as the product of `shape`, the last axis fastest.
#[derive(Clone, Debug, PartialEq)]
pub struct HostArray {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// The values.
    pub data: HostData,
}

impl Default for HostArray {
    fn default() -> Self {
        Self { shape: vec![0], data: HostData::U32(Vec::new()) }
    }
}

impl HostArray {
    /// The values as token numbers.
    ///
    /// # Errors
    /// [`Error::WrongType`] if they are not `u32`.
    pub fn tokens(&self) -> Result<&[u32], Error> {
        match &self.data {
            HostData::U32(values) => Ok(values),
            held => Err(Error::WrongType { held: held.name(), wanted: "u32" }),
        }
    }

    /// The values as measurements.
    ///
    /// # Errors
    /// [`Error::WrongType`] if they are not `f32`.
    pub fn floats(&self) -> Result<&[f32], Error> {
        match &self.data {
            HostData::F32(values) => Ok(values),
            held => Err(Error::WrongType { held: held.name(), wanted: "f32" }),
        }
    }

    /// The values as pixels.
    ///
    /// # Errors
    /// [`Error::WrongType`] if they are not `u8`.
    pub fn pixels(&self) -> Result<&[u8], Error> {
        match &self.data {
            HostData::U8(values) => Ok(values),
            held => Err(Error::WrongType { held: held.name(), wanted: "u8" }),
        }
    }

    /// Makes this an array of `u32` with these extents, keeping the memory if it is one already, and returns
    /// its values (not cleared). The product must have been checked.
    pub(crate) fn reset_u32(&mut self, extents: &[usize]) -> &mut [u32] {
        let values = self.reset_shape(extents);
        if !matches!(self.data, HostData::U32(_)) {
            self.data = HostData::U32(Vec::new());
        }
        match &mut self.data {
            HostData::U32(held) => {
                held.resize(values, 0);
                held
            }
            _ => &mut [],
        }
    }

    /// [`Self::reset_u32`] for `f32`.
    pub(crate) fn reset_f32(&mut self, extents: &[usize]) -> &mut [f32] {
        let values = self.reset_shape(extents);
        if !matches!(self.data, HostData::F32(_)) {
            self.data = HostData::F32(Vec::new());
        }
        match &mut self.data {
            HostData::F32(held) => {
                held.resize(values, 0.0);
                held
            }
            _ => &mut [],
        }
    }

    /// [`Self::reset_u32`] for `u8`.
    pub(crate) fn reset_u8(&mut self, extents: &[usize]) -> &mut [u8] {
        let values = self.reset_shape(extents);
        if !matches!(self.data, HostData::U8(_)) {
            self.data = HostData::U8(Vec::new());
        }
        match &mut self.data {
            HostData::U8(held) => {
                held.resize(values, 0);
                held
            }
            _ => &mut [],
        }
    }

    /// Makes this a copy of `other`, keeping the memory if it has the same type.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        match &other.data {
            HostData::U32(values) => self.reset_u32(&other.shape).copy_from_slice(values),
            HostData::F32(values) => self.reset_f32(&other.shape).copy_from_slice(values),
            HostData::U8(values) => self.reset_u8(&other.shape).copy_from_slice(values),
            HostData::Shape(_) => self.clone_from(other),
        }
    }

    /// Sets the extents and returns their product.
    fn reset_shape(&mut self, extents: &[usize]) -> usize {
        self.shape.clear();
        self.shape.extend(extents);
        extents.iter().product()
    }
}

/// Inputs and targets of one micro-batch, the first axis of both being its sequences or samples.
///
/// | examples | inputs | targets |
/// | --- | --- | --- |
/// | tokens | u32 \[sequences, context\] | u32 of the same shape |
/// | numbers | f32 \[samples, inputs\] | f32 \[samples, outputs\] |
/// | images | u8 \[images, height, width, channels\] | u32 \[images\], the classes |
///
/// Make one with `default()` and pass it to [`Source::train`](crate::Source::train) repeatedly: the vectors
/// keep their memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// Inputs of the model.
    pub inputs: HostArray,
    /// Targets.
    pub targets: HostArray,
    /// The position in its sequence at which each token's document begins, in the inputs' shape, if sequences
    /// contain several documents.
    pub documents: Option<HostArray>,
    /// Marks of the inputs, in their shape, if the source has them: 1 for a token, 0 for padding.
    pub tokens: Option<HostArray>,
    /// The pairs, if sequences are pairs of answers.
    pub pairs: Option<PairArrays>,
}

/// Marks the first tokens of each row of `context` inputs, of which there are as many as `lengths` says.
pub(crate) fn mark_tokens(
    tokens: &mut Option<HostArray>,
    [rows, context]: [usize; 2],
    lengths: impl Iterator<Item = usize>,
) {
    let marks = tokens.get_or_insert_default().reset_u32(&[rows, context]);
    for (marks, length) in marks.chunks_exact_mut(context).zip(lengths) {
        let (real, padding) = marks.split_at_mut(length.min(context));
        real.fill(1);
        padding.fill(0);
    }
}

/// Pairs of answers: sequences 2n and 2n + 1 are pair n's chosen and rejected answer after the same prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairArrays {
    /// The position of the first target of each sequence's answer, u32 \[sequences\].
    pub answers: HostArray,
    /// The number of each pair among all of the source.
    pub numbers: Vec<u64>,
}

/// The type of the values of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostType {
    /// Token and class numbers.
    U32,
    /// Measurements.
    F32,
    /// Values of pixels.
    U8,
}

/// Extents and type of an array of every micro-batch of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayShape {
    /// Extents, outermost first: sequences or samples, then those of one.
    pub extents: Vec<usize>,
    /// Type of the values.
    pub values: HostType,
}

impl ArrayShape {
    /// An array of token or class numbers.
    #[must_use]
    pub fn of_u32(extents: impl Into<Vec<usize>>) -> Self {
        Self { extents: extents.into(), values: HostType::U32 }
    }

    /// An array of measurements.
    #[must_use]
    pub fn of_f32(extents: impl Into<Vec<usize>>) -> Self {
        Self { extents: extents.into(), values: HostType::F32 }
    }

    /// An array of pixels.
    #[must_use]
    pub fn of_u8(extents: impl Into<Vec<usize>>) -> Self {
        Self { extents: extents.into(), values: HostType::U8 }
    }

    /// Returns an array of this shape without values.
    #[must_use]
    pub fn without_values(&self) -> HostArray {
        HostArray { shape: self.extents.clone(), data: HostData::Shape(self.values) }
    }

    fn bytes(&self) -> u64 {
        let each = match self.values {
            HostType::U32 | HostType::F32 => 4,
            HostType::U8 => 1,
        };
        self.extents.iter().fold(each, |bytes, extent| bytes.saturating_mul(*extent as u64))
    }
}

/// Shapes of the arrays of every micro-batch of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Shape of the inputs.
    pub inputs: ArrayShape,
    /// Shape of the targets.
    pub targets: ArrayShape,
}

impl BatchShape {
    /// Shapes of micro-batches of `rows` sequences of `columns` tokens, each with its target.
    #[must_use]
    pub fn of_tokens(rows: usize, columns: usize) -> Self {
        let tokens = ArrayShape::of_u32([rows, columns]);
        BatchShape { inputs: tokens.clone(), targets: tokens }
    }

    /// Bytes of both arrays.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inputs.bytes().saturating_add(self.targets.bytes())
    }
}

/// Returns the number of values in a `rows` × `columns` array, if it fits in memory.
pub(crate) fn checked_shape(rows: usize, columns: usize) -> Result<usize, Error> {
    rows.checked_mul(columns)
        .filter(|values| *values > 0 && *values <= isize::MAX as usize / size_of::<u32>())
        .ok_or(Error::BadShape { rows, columns })
}
