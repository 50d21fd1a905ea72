//! Hashes of tensors, to compare runs bit for bit.
//!
//! A hash is the sum over elements, modulo 2⁶⁴, of a mixture of the element's bits and index. So the hashes
//! of parts of a tensor add up to the hash of the whole, and any single changed bit changes it.

mod cpu;
pub(crate) mod cuda;

pub use cpu::{mixed, sum_of};

use device::{Backend, DType};

use super::check;
use crate::{Result, Tensor};

/// Number of u32 words of a hash.
pub const WORDS: usize = 2;

/// Adds the hash of `tensor` to `sum`, u32 \[[`WORDS`]\], lower word first. Runs on the device without
/// waiting.
///
/// # Errors
/// Another type or shape of `sum`.
pub fn add_to(sum: &Tensor, tensor: &Tensor) -> Result<()> {
    const OPERATOR: &str = "hash.add_to";
    check::dtype(OPERATOR, "sum", sum, DType::U32)?;
    check::shape(OPERATOR, "sum", sum, [WORDS])?;
    match tensor.device().backend() {
        Backend::Meta => Ok(()),
        _ if tensor.elements() == 0 => Ok(()),
        Backend::Cpu => {
            let before = value_of(&sum.to_vec::<u32>()?);
            let after = before.wrapping_add(of_part(tensor, 0)?);
            sum.set(&[after as u32, (after >> 32) as u32])
        }
        Backend::Cuda => cuda::add_to(OPERATOR, sum, tensor),
    }
}

/// Returns the hash of a part of a tensor, whose first element has index `first` in the whole tensor. Waits
/// for the device.
pub fn of_part(tensor: &Tensor, first: usize) -> Result<u64> {
    cpu::of_part(tensor, first)
}

/// Returns the hash in the words that [`add_to`] wrote.
pub fn value_of(words: &[u32]) -> u64 {
    words.iter().rev().fold(0, |value, word| value << 32 | u64::from(*word))
}
