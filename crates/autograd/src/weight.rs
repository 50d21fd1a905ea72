//! Parameters as operands of operators. Their values may be released between uses.

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::rc::{Rc, Weak};

use device::{Category, DType, Device, Request};
use tensor::ops::block_codes::{self, BlockCodes};
use tensor::ops::pointwise::Pointwise;
use tensor::{Shape, Tensor, TensorError, ops};

/// One use of a parameter in a model, numbered in the order of building the layers. A parameter with two uses
/// has two numbers, each with its own gradient until the reduction over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UseId(pub u32);

/// Gathers weights that are released between their uses. Weights gathered together form a unit.
pub trait WeightSource: fmt::Debug {
    /// Fills the handles of unit `unit`. May release the handles of other units.
    ///
    /// # Errors
    /// The values cannot be gathered.
    fn gather(&self, unit: usize) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// The values of a parameter, which may be gathered before a use and released after it. Clones share them.
///
/// Operators request the values whenever they run, in forward and again in backward, and keep no copy.
#[derive(Clone, Debug)]
pub struct WeightHandle(Rc<Storage>);

#[derive(Debug)]
struct Storage {
    device: Device,
    shape: Shape,
    dtype: DType,
    /// The values; `None` while released.
    tensor: RefCell<Option<Tensor>>,
    /// The source that gathers the values, if any, and the weight's unit.
    source: RefCell<Option<(Weak<dyn WeightSource>, usize)>>,
}

impl WeightHandle {
    /// Creates a handle without values.
    pub fn released(device: &Device, shape: Shape, dtype: DType) -> Self {
        Self::with(device.clone(), shape, dtype, None)
    }

    fn with(device: Device, shape: Shape, dtype: DType, tensor: Option<Tensor>) -> Self {
        let tensor = RefCell::new(tensor);
        let source = RefCell::new(None);
        WeightHandle(Rc::new(Storage { device, shape, dtype, tensor, source }))
    }

    /// Makes `source` gather the values, as part of unit `unit`, whenever they are requested.
    pub fn gathered_by(&self, source: Weak<dyn WeightSource>, unit: usize) {
        *self.0.source.borrow_mut() = Some((source, unit));
    }

    /// Returns whether a source gathers the values.
    pub fn is_gathered(&self) -> bool {
        self.0.source.borrow().is_some()
    }

    /// Returns whether the values are currently released.
    pub fn is_released(&self) -> bool {
        self.0.tensor.borrow().is_none()
    }

    /// Gathers the weight's unit, if the weight has a source.
    ///
    /// # Errors
    /// The values cannot be gathered.
    pub fn gather(&self) -> tensor::Result<()> {
        let source = self.0.source.borrow().clone();
        let Some((source, unit)) = source.and_then(|(source, unit)| Some((source.upgrade()?, unit))) else {
            return Ok(());
        };
        let failed = |source| TensorError::Gather { shape: self.0.shape, source };
        source.gather(unit).map_err(failed)
    }

    /// Returns whether `other` is a clone of this handle.
    pub fn is(&self, other: &WeightHandle) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the values, gathering them first if the weight has a source.
    ///
    /// # Errors
    /// The values are released, or cannot be gathered.
    pub fn tensor(&self) -> tensor::Result<Tensor> {
        self.gather()?;
        self.0.tensor.borrow().clone().ok_or(TensorError::Released { shape: self.0.shape })
    }

    /// Sets the values.
    ///
    /// # Errors
    /// The shape or dtype differs.
    pub fn fill(&self, tensor: Tensor) -> tensor::Result<()> {
        let (operator, operand) = ("weight", "values");
        if tensor.shape() != self.0.shape {
            let expected = self.0.shape.to_string();
            return Err(TensorError::Shape { operator, operand, actual: tensor.shape(), expected });
        }
        if tensor.dtype() != self.0.dtype {
            let expected = self.0.dtype;
            return Err(TensorError::DType { operator, operand, actual: tensor.dtype(), expected });
        }
        *self.0.tensor.borrow_mut() = Some(tensor);
        Ok(())
    }

    /// Drops the values until the next [`WeightHandle::fill`].
    pub fn release(&self) {
        *self.0.tensor.borrow_mut() = None;
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.0.shape
    }

    /// Type of the values.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Number of values.
    pub fn elements(&self) -> usize {
        self.0.shape.elements()
    }

    /// Bytes of the values.
    pub fn bytes(&self) -> usize {
        self.elements() * self.0.dtype.bytes()
    }
}

impl From<Tensor> for WeightHandle {
    fn from(tensor: Tensor) -> Self {
        let device = tensor.device().clone();
        let shape = tensor.shape();
        let dtype = tensor.dtype();
        WeightHandle::with(device, shape, dtype, Some(tensor))
    }
}

/// A parameter at one of its uses. A frozen weight has no gradient.
#[derive(Clone, Debug)]
pub struct Weight {
    handle: WeightHandle,
    use_id: Option<UseId>,
    /// Number of local row shards, whose gradients are summed in a fixed tree; 0 if rows are not sharded.
    row_shards: usize,
    /// Number of local shards that use the weight and whose gradients are summed; 0 if it is not shared.
    copies: usize,
    /// A number that is added to the values when operators read them.
    offset: Option<f32>,
    /// Decoder of the handle's codes, if it holds codes instead of values.
    codes: Option<Rc<BlockCodes>>,
}

impl Weight {
    /// Creates the parameter at the use `use_id`.
    pub fn new(handle: impl Into<WeightHandle>, use_id: UseId) -> Self {
        Weight { use_id: Some(use_id), ..Weight::frozen(handle) }
    }

    /// Creates a frozen weight.
    pub fn frozen(handle: impl Into<WeightHandle>) -> Self {
        Weight { handle: handle.into(), use_id: None, row_shards: 0, copies: 0, offset: None, codes: None }
    }

    /// Marks the handle as holding a record of `codes` instead of values.
    #[must_use]
    pub fn in_codes(self, codes: Option<Rc<BlockCodes>>) -> Self {
        Weight { codes, ..self }
    }

    /// Adds `offset` to the values that operators read. The gradient is unchanged.
    #[must_use]
    pub fn plus(self, offset: f32) -> Self {
        Weight { offset: Some(offset), ..self }
    }

    /// Marks the weight of an operator on rows sharded along [`collective::Axis::Tensor`]; `shards` equal
    /// runs are local. The gradient is summed over all runs.
    #[must_use]
    pub fn over_rows(self, shards: usize) -> Self {
        Weight { row_shards: shards, ..self }
    }

    /// Returns whether the weight is used on sharded rows.
    pub fn is_over_rows(&self) -> bool {
        self.row_shards > 0
    }

    /// Number of local runs of rows over which the gradient is summed; 0 if rows are not sharded.
    pub(crate) fn row_shards(&self) -> usize {
        self.row_shards
    }

    /// Marks the weight of an operator that each of the `shards` local shards calls separately
    /// ([`Placement::Copied`](crate::Placement::Copied)). The gradient is summed over all shards.
    #[must_use]
    pub fn copied(self, shards: usize) -> Self {
        Weight { copies: shards, ..self }
    }

    /// Number of local shards that use the weight separately; 0 if it is not shared.
    pub(crate) fn copies(&self) -> usize {
        self.copies
    }

    /// Returns the values in their stored dtype; for a weight in codes, the record of codes.
    ///
    /// # Errors
    /// The values are released.
    pub fn stored(&self) -> tensor::Result<Tensor> {
        self.handle.tensor()
    }

    /// Returns the values in `dtype`, plus the offset. The stored tensor is returned if it has that dtype and
    /// there is no offset; otherwise a copy, decoded if the weight is in codes. Operators request a copy in
    /// their operands' dtype in forward and again in backward, so that it lives for one call only. Copies
    /// kept for backward would all exist at once.
    ///
    /// # Errors
    /// Both are half types, memory is exhausted, or the values are released.
    pub fn values(&self, dtype: DType) -> tensor::Result<Tensor> {
        let values = self.without_offset(dtype)?;
        match self.offset {
            Some(offset) => ops::pointwise::forward(&values, Pointwise::Shift(offset)),
            None => Ok(values),
        }
    }

    /// [`Weight::values`] for a call that does not read the values: codes are not decoded.
    pub fn unread_values(&self, dtype: DType) -> tensor::Result<Tensor> {
        match &self.codes {
            Some(codes) => block_codes::allocate(self.device(), codes, dtype),
            None => self.values(dtype),
        }
    }

    fn without_offset(&self, dtype: DType) -> tensor::Result<Tensor> {
        let stored = self.stored()?;
        if let Some(codes) = &self.codes {
            return block_codes::decode(&stored, codes, dtype);
        }
        if stored.dtype() == dtype {
            return Ok(stored);
        }
        let copy = stored.like(dtype, Request::new(Category::Workspace, "autocast"))?;
        ops::cast::into(&stored, &copy)?;
        Ok(copy)
    }

    /// The handle of the values.
    pub fn handle(&self) -> &WeightHandle {
        &self.handle
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.handle.device()
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.codes.as_ref().map_or_else(|| self.handle.shape(), |codes| codes.shape())
    }

    /// Identifier of the use; `None` for a frozen weight.
    pub fn use_id(&self) -> Option<UseId> {
        self.use_id
    }

    /// Returns whether backward computes the weight's gradient.
    pub fn is_trained(&self) -> bool {
        self.use_id.is_some()
    }
}
