//! The keys and values of one attention layer.

use device::{Category, DType, Device, Request};

use crate::ops::attention::{Heads, Qkv};
use crate::ops::check;
use crate::{Result, Tensor, TensorError};

/// Keys and values of one attention layer: an array `[slots, key and value heads, capacity, head width and
/// value width]`, in which the key heads of a slot come before its value heads. A slot holds one sequence.
#[derive(Clone, Debug)]
pub struct Cache {
    pub(super) array: Tensor,
    heads: Heads,
}

impl Cache {
    /// Allocates a cache without contents.
    ///
    /// # Errors
    /// Heads that do not divide, a type that operators do not compute with, out of memory.
    pub fn new(device: &Device, slots: usize, heads: Heads, capacity: usize, dtype: DType) -> Result<Self> {
        const OPERATOR: &str = "cached_attention.cache";
        heads.check(OPERATOR)?;
        let shape = [slots, heads.key_value, capacity, heads.width + heads.value_width];
        let array = Tensor::empty(device, shape, dtype, Request::new(Category::Buffer, OPERATOR))?;
        check::computed(OPERATOR, &[("cache", &array)])?;
        Ok(Cache { array, heads })
    }

    /// Sequences that it holds at once.
    pub fn slots(&self) -> usize {
        self.array.shape().dims()[0]
    }

    /// Tokens of one sequence that it holds.
    pub fn capacity(&self) -> usize {
        self.array.shape().dims()[2]
    }

    /// Bytes of its keys and values.
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
        check::shape(operator, "qkv", qkv, [rows, time, self.heads.packed_columns()])?;
        let shape = [self.slots(), heads.key_value, self.capacity(), heads.width + heads.value_width];
        check::shape(operator, "cache", &self.array, shape)?;
        Ok((qkv.clone(), [rows, time]))
    }
}
