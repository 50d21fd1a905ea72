//! Dense views into reference-counted storages.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use device::cuda::Operand;
use device::{
    Arrival, Buffer, Category, DType, Device, Element, ReadGuard, Region, Request, StreamKind, WriteGuard,
};

use crate::error::{Result, TensorError};
use crate::shape::Shape;

/// A dense row-major array: a view into a storage that other views may share.
///
/// Cloning copies no element. Writing takes `&self`, because a storage may have several views (a gradient
/// inside a bucket); [`Tensor::write`] refuses overlapping uses at run time.
#[derive(Clone)]
pub struct Tensor {
    storage: Rc<Storage>,
    offset: usize,
    shape: Shape,
    dtype: DType,
    maxima: Option<Rc<Tensor>>,
}

struct Storage {
    buffer: Buffer,
    device: Device,
    /// Pending copy by another stream into the storage.
    arriving: RefCell<Option<Arrival>>,
}

impl Storage {
    /// Makes the compute stream wait, once, for a pending copy into the storage.
    fn settle(&self) {
        if let Some(arrival) = self.arriving.take() {
            self.device.await_arrival(&arrival);
        }
    }
}

impl Drop for Storage {
    /// Waits for a pending copy first, because memory is reused in the order of the compute stream.
    fn drop(&mut self) {
        self.settle();
    }
}

impl<'r> Operand<'r> for &'r Tensor {
    fn operand(self) -> Option<Region<'r>> {
        Some(self.region())
    }
}

impl Tensor {
    /// Allocates a tensor with undefined elements.
    pub fn empty(device: &Device, shape: impl Into<Shape>, dtype: DType, request: Request) -> Result<Self> {
        let shape = shape.into();
        let buffer = device.allocate(shape.elements() * dtype.bytes(), request)?;
        let storage = Rc::new(Storage { buffer, device: device.clone(), arriving: RefCell::default() });
        Ok(Tensor { storage, offset: 0, shape, dtype, maxima: None })
    }

    /// Allocates a tensor of zeros.
    pub fn zeros(device: &Device, shape: impl Into<Shape>, dtype: DType, request: Request) -> Result<Self> {
        let tensor = Self::empty(device, shape, dtype, request)?;
        tensor.zero()?;
        Ok(tensor)
    }

    /// Allocates a tensor with the shape and device of this one, with undefined elements.
    pub fn like(&self, dtype: DType, request: Request) -> Result<Self> {
        Self::empty(self.device(), self.shape, dtype, request)
    }

    /// Returns the tensor if no other tensor views its storage, and else a copy.
    pub fn into_unique(self, request: Request) -> Result<Self> {
        if self.is_unique() {
            return Ok(self);
        }
        let copy = self.like(self.dtype, request)?;
        copy.copy_from(&self)?;
        Ok(copy)
    }

    /// Allocates a workspace of `bytes` bytes, a multiple of 4, on devices whose operators need one;
    /// elsewhere it is empty. The operator drops it when it returns.
    pub fn workspace(device: &Device, operator: &'static str, bytes: usize) -> Result<Self> {
        let words = if device.is_cuda_like() { bytes.div_ceil(DType::U32.bytes()) } else { 0 };
        Self::empty(device, [words], DType::U32, Request::new(Category::Workspace, operator))
    }

    /// Allocates a tensor with these elements, in row-major order.
    ///
    /// # Errors
    /// Out of memory, or a number of elements other than the shape's.
    pub fn from_host<T: Element>(
        device: &Device,
        values: &[T],
        shape: impl Into<Shape>,
        category: Category,
    ) -> Result<Self> {
        let tensor = Self::for_host(device, shape, T::DTYPE, category)?;
        tensor.set(values)?;
        Ok(tensor)
    }

    /// Allocates a tensor as [`Tensor::from_host`] does, with undefined elements.
    pub fn for_host(
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
        category: Category,
    ) -> Result<Self> {
        Self::empty(device, shape, dtype, Request::new(category, "from_host"))
    }

    /// Returns a view of shape `shape`, starting `offset` elements after this view's first.
    pub fn view(&self, offset: usize, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if offset + shape.elements() > self.elements() {
            let expected =
                format!("a view inside {} elements, {offset} elements from the start", self.elements());
            return Err(TensorError::Shape { operator: "view", operand: "view", actual: shape, expected });
        }
        let offset = self.offset + offset * self.dtype.bytes();
        Ok(Tensor { storage: Rc::clone(&self.storage), offset, shape, dtype: self.dtype, maxima: None })
    }

    /// Returns a view of the same bytes as elements of another type of equal size.
    ///
    /// # Errors
    /// A type of another size.
    pub fn view_as(&self, dtype: DType) -> Result<Self> {
        if dtype.bytes() != self.dtype.bytes() {
            let expected = format!("a type of {} bytes", dtype.bytes());
            let actual = self.shape;
            return Err(TensorError::Shape { operator: "view_as", operand: "dtype", actual, expected });
        }
        Ok(Tensor { dtype, ..self.view(0, self.shape)? })
    }

    /// Returns a view of the same elements in another shape.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() != self.elements() {
            let expected = format!("{} elements", self.elements());
            return Err(TensorError::Shape {
                operator: "reshape",
                operand: "shape",
                actual: shape,
                expected,
            });
        }
        self.view(0, shape)
    }

    /// Returns the tensor's device.
    pub fn device(&self) -> &Device {
        &self.storage.device
    }

    /// Returns the tensor's shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the tensor's element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Returns the bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    /// Returns whether no other tensor views the storage, so that an operator may write its result there.
    pub fn is_unique(&self) -> bool {
        Rc::strong_count(&self.storage) == 1
    }

    /// Attaches the largest magnitude measured by the tensor's producer, as u32 words whose maximum has the
    /// magnitude's bits. Views do not carry it.
    #[must_use]
    pub fn with_maxima(self, maxima: Option<Tensor>) -> Self {
        Tensor { maxima: maxima.map(Rc::new), ..self }
    }

    /// Returns the words attached by [`Tensor::with_maxima`].
    pub fn maxima(&self) -> Option<&Tensor> {
        self.maxima.as_deref()
    }

    /// Returns whether both view one storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        Rc::ptr_eq(&self.storage, &other.storage)
    }

    /// Records that another stream fills the storage, until `arrival`. The first access to its bytes, by this
    /// or another view, makes the compute stream wait for the arrival.
    pub fn arrives(&self, arrival: &Arrival) {
        self.storage.settle();
        *self.storage.arriving.borrow_mut() = Some(arrival.clone());
    }

    /// Returns whether the storage has not been accessed since [`Tensor::arrives`].
    pub fn is_arriving(&self) -> bool {
        self.storage.arriving.borrow().is_some()
    }

    /// Returns the tensor's memory on the device, for the compute stream or a stream that has waited for it.
    pub fn region(&self) -> Region<'_> {
        self.storage.settle();
        self.storage.buffer.region(self.offset, self.bytes())
    }

    /// Locks the elements for reading, on a CPU device.
    ///
    /// # Errors
    /// Another type, a device that is not the CPU, or elements being written.
    pub fn read<T: Element>(&self) -> Result<ReadGuard<'_, T>> {
        self.check_type::<T>("read")?;
        self.storage.settle();
        self.device().settle()?;
        Ok(self.storage.buffer.read(self.offset, self.elements())?)
    }

    /// Locks the elements for writing, on a CPU device.
    ///
    /// # Errors
    /// As for [`Tensor::read`], or elements being read.
    pub fn write<T: Element>(&self) -> Result<WriteGuard<'_, T>> {
        self.check_type::<T>("write")?;
        self.storage.settle();
        self.device().settle()?;
        Ok(self.storage.buffer.write(self.offset, self.elements())?)
    }

    /// Copies all elements to the host; zeros on Meta. Waits for the device.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_type::<T>("to_vec")?;
        let mut values = vec![T::zeroed(); self.elements()];
        self.device().copy_to_host(self.region(), &mut values)?;
        Ok(values)
    }

    /// Overwrites all elements from the host.
    pub fn set<T: Element>(&self, values: &[T]) -> Result<()> {
        self.set_on(values, StreamKind::Compute)
    }

    /// Overwrites all elements from the host, on the stream `stream`.
    pub fn set_on<T: Element>(&self, values: &[T], stream: StreamKind) -> Result<()> {
        self.check_type::<T>("set")?;
        Ok(self.device().copy_from_host_on(values, self.region(), stream)?)
    }

    /// Copies the bytes of all elements, of any type, to the host; zeros on Meta. Waits for the device.
    pub fn read_bytes(&self, bytes: &mut [u8]) -> Result<()> {
        Ok(self.device().copy_bytes_to_host(self.region(), bytes)?)
    }

    /// Overwrites all elements, of any type, with `bytes`.
    pub fn set_bytes(&self, bytes: &[u8]) -> Result<()> {
        Ok(self.device().copy_bytes_from_host(bytes, self.region())?)
    }

    /// Overwrites all elements with `source`, of the same type and number of elements.
    pub fn copy_from(&self, source: &Tensor) -> Result<()> {
        self.copy_from_on(source, StreamKind::Compute)
    }

    /// Computes [`Tensor::copy_from`] on the stream `stream`.
    pub fn copy_from_on(&self, source: &Tensor, stream: StreamKind) -> Result<()> {
        if source.dtype != self.dtype {
            return Err(self.wrong_type("copy_from", source.dtype));
        }
        Ok(self.device().copy_on(source.region(), self.region(), stream)?)
    }

    /// Overwrites all elements with `source`, a tensor of the same type and number of elements in a host pool
    /// of this tensor's device.
    pub fn copy_from_pool(&self, source: &Tensor, stream: StreamKind) -> Result<()> {
        if source.dtype != self.dtype {
            return Err(self.wrong_type("copy_from_pool", source.dtype));
        }
        Ok(self.device().copy_from_pool(source.region(), self.region(), stream)?)
    }

    /// Copies all elements to `target`, a tensor of the same type and number of elements in a host pool of
    /// this tensor's device.
    pub fn copy_to_pool(&self, target: &Tensor, stream: StreamKind) -> Result<()> {
        if target.dtype != self.dtype {
            return Err(self.wrong_type("copy_to_pool", target.dtype));
        }
        Ok(self.device().copy_to_pool(self.region(), target.region(), stream)?)
    }

    /// Sets all elements to zero.
    pub fn zero(&self) -> Result<()> {
        Ok(self.device().zero(self.region())?)
    }

    fn check_type<T: Element>(&self, operator: &'static str) -> Result<()> {
        if T::DTYPE == self.dtype { Ok(()) } else { Err(self.wrong_type(operator, T::DTYPE)) }
    }

    fn wrong_type(&self, operator: &'static str, expected: DType) -> TensorError {
        TensorError::DType { operator, operand: "tensor", actual: self.dtype, expected }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}{}, {:?})", self.dtype, self.shape, self.storage.device)
    }
}
