//! The keys and values of one attention layer.

use device::{Category, DType, Device, Request};

use crate::ops::attention::{Heads, Qkv};
use crate::ops::check;
use crate::{Result, Tensor, TensorError};

/// Keys and values of one attention layer, one sequence per slot: an array `[slots, key and value heads,
/// capacity, width]`, where the key heads of a slot precede its value heads. If values are columns of the
/// keys, only keys are stored.
#[derive(Clone, Debug)]
pub struct Cache {
    pub(super) array: Tensor,
    heads: Heads,
    values: CachedValues,
}

/// Storage of a cache's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedValues {
    /// Values are stored beside keys.
    Own,
    /// Values are the last columns of the only key head, as in latent attention.
    LastOfKeys,
}

/// Heads of an attention layer, and how its cache stores values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedHeads {
    /// Numbers and widths of the heads.
    pub heads: Heads,
    /// Storage of the values.
    pub values: CachedValues,
}

impl CachedHeads {
    /// Returns the heads of one of `parts` tensor lanes. With latents, every lane has the one key head.
    #[must_use]
    pub fn divided(self, parts: usize) -> Self {
        let heads = match self.values {
            CachedValues::Own => self.heads.divided(parts),
            CachedValues::LastOfKeys => Heads { query: self.heads.query / parts, ..self.heads },
        };
        CachedHeads { heads, ..self }
    }

    /// Returns the number of values stored per token.
    #[must_use]
    pub fn columns(&self) -> usize {
        match self.values {
            CachedValues::Own => self.heads.key_columns() + self.heads.value_columns(),
            CachedValues::LastOfKeys => self.heads.key_columns(),
        }
    }

    /// Returns the columns of packed rows: queries, and the keys and values that the cache stores.
    fn packed_columns(&self) -> usize {
        self.heads.query_columns() + self.columns()
    }

    fn check(&self, operator: &'static str) -> Result<()> {
        self.heads.check(operator)?;
        let Heads { query, key_value, width, value_width, .. } = self.heads;
        if self.values == CachedValues::Own || key_value == 1 && value_width <= width {
            return Ok(());
        }
        Err(TensorError::Heads { operator, query, key_value, width })
    }
}

impl From<Heads> for CachedHeads {
    fn from(heads: Heads) -> Self {
        CachedHeads { heads, values: CachedValues::Own }
    }
}

impl Cache {
    /// Allocates an empty cache.
    ///
    /// # Errors
    /// Heads that do not divide, a type that operators do not compute with, out of memory.
    pub fn new(
        device: &Device,
        slots: usize,
        heads: impl Into<CachedHeads>,
        capacity: usize,
        dtype: DType,
    ) -> Result<Self> {
        const OPERATOR: &str = "cached_attention.cache";
        let cached = heads.into();
        cached.check(OPERATOR)?;
        let CachedHeads { heads, values } = cached;
        let shape = [slots, heads.key_value, capacity, cached.columns() / heads.key_value];
        let array = Tensor::empty(device, shape, dtype, Request::new(Category::Buffer, OPERATOR))?;
        check::computed(OPERATOR, &[("cache", &array)])?;
        Ok(Cache { array, heads, values })
    }

    /// Returns the number of slots, each for one sequence.
    pub fn slots(&self) -> usize {
        self.array.shape().dims()[0]
    }

    /// Returns the maximum number of tokens of one sequence.
    pub fn capacity(&self) -> usize {
        self.array.shape().dims()[2]
    }

    pub(super) fn values(&self) -> CachedValues {
        self.values
    }

    /// Returns the bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.array.bytes()
    }

    /// Checks packed rows; returns their first two sizes.
    pub(super) fn check(
        &self,
        operator: &'static str,
        qkv: &Qkv<Tensor>,
        heads: Heads,
    ) -> Result<(Tensor, [usize; 2])> {
        let Qkv::Packed(qkv) = qkv else {
            return Err(TensorError::Count { operator, actual: 3, expected: 1 });
        };
        check::rank(operator, "qkv", qkv, 3)?;
        check::dtype(operator, "qkv", qkv, self.array.dtype())?;
        let [rows, time] = [qkv.shape().dims()[0], qkv.shape().dims()[1]];
        let own = CachedHeads { heads: self.heads, values: self.values };
        check::shape(operator, "qkv", qkv, [rows, time, own.packed_columns()])?;
        let columns = CachedHeads { heads, ..own }.columns() / heads.key_value.max(1);
        let shape = [self.slots(), heads.key_value, self.capacity(), columns];
        check::shape(operator, "cache", &self.array, shape)?;
        Ok((qkv.clone(), [rows, time]))
    }
}
