//! A micro-batch as plain host arrays.

use std::sync::Arc;

use crate::Error;

/// The values of a host array, row-major. Clones share large arrays.
#[derive(Clone, Debug, PartialEq)]
pub enum HostData {
    /// Token ids or class indices.
    U32(Vec<u32>),
    /// Real numbers.
    F32(Arc<Vec<f32>>),
    /// Pixel values.
    U8(Arc<Vec<u8>>),
    /// No values: in a plan, an array has only a shape and this type.
    Shape(HostType),
}

impl HostData {
    /// Returns the name of the values' type.
    fn name(&self) -> &'static str {
        match self {
            HostData::U32(_) => "u32",
            HostData::F32(_) => "f32",
            HostData::U8(_) => "u8",
            HostData::Shape(_) => "no",
        }
    }

    /// Returns the type of the values.
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

/// A dense row-major array on the host.
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
    /// Returns the values as token ids.
    ///
    /// # Errors
    /// [`Error::WrongType`] if they are not `u32`.
    pub fn tokens(&self) -> Result<&[u32], Error> {
        match &self.data {
            HostData::U32(values) => Ok(values),
            held => Err(Error::WrongType { held: held.name(), wanted: "u32" }),
        }
    }

    /// Returns the values as real numbers.
    ///
    /// # Errors
    /// [`Error::WrongType`] if they are not `f32`.
    pub fn floats(&self) -> Result<&[f32], Error> {
        match &self.data {
            HostData::F32(values) => Ok(values),
            held => Err(Error::WrongType { held: held.name(), wanted: "f32" }),
        }
    }

    /// Returns the values as pixels.
    ///
    /// # Errors
    /// [`Error::WrongType`] if they are not `u8`.
    pub fn pixels(&self) -> Result<&[u8], Error> {
        match &self.data {
            HostData::U8(values) => Ok(values),
            held => Err(Error::WrongType { held: held.name(), wanted: "u8" }),
        }
    }

    /// Makes this an array of `u32` with these extents and returns its values, which are not cleared. Reuses
    /// the memory if it already holds `u32`. The caller must have checked the product of the extents.
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

    /// Like [`Self::reset_u32`], for `f32`.
    pub(crate) fn reset_f32(&mut self, extents: &[usize]) -> &mut [f32] {
        let values = self.reset_shape(extents);
        if !matches!(self.data, HostData::F32(_)) {
            self.data = HostData::F32(Arc::default());
        }
        match &mut self.data {
            HostData::F32(held) => resized(held, values),
            _ => &mut [],
        }
    }

    /// Like [`Self::reset_u32`], for `u8`.
    pub(crate) fn reset_u8(&mut self, extents: &[usize]) -> &mut [u8] {
        let values = self.reset_shape(extents);
        if !matches!(self.data, HostData::U8(_)) {
            self.data = HostData::U8(Arc::default());
        }
        match &mut self.data {
            HostData::U8(held) => resized(held, values),
            _ => &mut [],
        }
    }

    /// Sets the extents and returns their product.
    fn reset_shape(&mut self, extents: &[usize]) -> usize {
        self.shape.clear();
        self.shape.extend(extents);
        extents.iter().product()
    }
}

/// Returns `count` values, which are not cleared: the values of `held` unless another array shares them.
fn resized<T: Clone + Default>(held: &mut Arc<Vec<T>>, count: usize) -> &mut [T] {
    if Arc::get_mut(held).is_none() {
        *held = Arc::default();
    }
    let values = Arc::make_mut(held);
    values.resize(count, T::default());
    values
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
    /// For each token, the position in its sequence at which its document begins, in the inputs' shape;
    /// `None` if sequences hold one document each.
    pub documents: Option<HostArray>,
    /// 1 for each input that is a token, 0 for padding, in the inputs' shape; `None` if the source does not
    /// mark tokens.
    pub tokens: Option<HostArray>,
    /// The pairs, if the sequences are preference pairs.
    pub pairs: Option<PairArrays>,
}

/// Marks the first `lengths` inputs of each row as tokens and the others as padding; a row has `context`
/// inputs.
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

/// Preference pairs: sequences 2n and 2n + 1 are the chosen and the rejected answer of pair n, after the same
/// prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairArrays {
    /// Position of the first target of each sequence's answer, u32 \[sequences\].
    pub answers: HostArray,
    /// Index of each pair among all pairs of the source.
    pub numbers: Vec<u64>,
}

/// The type of an array's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostType {
    /// Token ids and class indices.
    U32,
    /// Real numbers.
    F32,
    /// Pixel values.
    U8,
}

/// Extents and type of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayShape {
    /// Extents, outermost first. The first is the number of sequences or samples.
    pub extents: Vec<usize>,
    /// Type of the values.
    pub values: HostType,
}

impl ArrayShape {
    /// Returns the shape of an array of token ids or class indices.
    #[must_use]
    pub fn of_u32(extents: impl Into<Vec<usize>>) -> Self {
        Self { extents: extents.into(), values: HostType::U32 }
    }

    /// Returns the shape of an array of real numbers.
    #[must_use]
    pub fn of_f32(extents: impl Into<Vec<usize>>) -> Self {
        Self { extents: extents.into(), values: HostType::F32 }
    }

    /// Returns the shape of an array of pixels.
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

/// Shapes of the arrays in every micro-batch of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Shape of the inputs.
    pub inputs: ArrayShape,
    /// Shape of the targets.
    pub targets: ArrayShape,
}

impl BatchShape {
    /// Returns the shapes of micro-batches with `rows` sequences of `columns` tokens and as many targets.
    #[must_use]
    pub fn of_tokens(rows: usize, columns: usize) -> Self {
        let tokens = ArrayShape::of_u32([rows, columns]);
        BatchShape { inputs: tokens.clone(), targets: tokens }
    }

    /// Returns the total bytes of inputs and targets.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inputs.bytes().saturating_add(self.targets.bytes())
    }
}

/// Returns the number of values in a `rows` × `columns` array. Fails if it is zero or does not fit in memory.
pub(crate) fn checked_shape(rows: usize, columns: usize) -> Result<usize, Error> {
    rows.checked_mul(columns)
        .filter(|values| *values > 0 && *values <= isize::MAX as usize / size_of::<u32>())
        .ok_or(Error::BadShape { rows, columns })
}
