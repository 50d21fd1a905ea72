//! Matrices stored as codes of 4 or 8 bits and decoded where they are used, as QLoRA's frozen weights
//! (Dettmers and others, *QLoRA: Efficient Finetuning of Quantized LLMs*, 2023).
//!
//! Each block of [`BLOCK`] elements has a scale. Each element is the code whose value is nearest to element /
//! scale. Scales are 8-bit codes in turn: their differences from the mean of their group of [`GROUP`], which
//! has a scale in f32. Codes, scales and groups are one array of bytes, the *record* ([`BlockCodes`]).
//!
//! Decoding multiplies the value of the code by the scale and rounds once to the result's type.

mod alphabet;
mod cpu;
pub(super) mod cuda;
mod encoder;
mod layout;
mod scale_code;

use device::{Backend, Category, DType, Device, Request, dispatch};

use super::check;
use crate::{Result, Tensor};

pub use alphabet::Alphabet;
pub use encoder::Encoder;
pub use layout::{BLOCK, BlockCodes, GROUP};

/// Decodes the matrix in `record` to `dtype`.
///
/// # Errors
/// A record of another length or type, a type that operators do not compute with, out of memory.
pub fn decode(record: &Tensor, codes: &BlockCodes, dtype: DType) -> Result<Tensor> {
    const OPERATOR: &str = "block_codes.decode";
    check::dtype(OPERATOR, "record", record, DType::U8)?;
    check::shape(OPERATOR, "record", record, [codes.bytes()])?;
    let matrix = allocate(record.device(), codes, dtype)?;
    check::computed(OPERATOR, &[("matrix", &matrix)])?;
    match record.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => dispatch!(
            dtype,
            T => cpu::decode::<T>(&record.read()?, codes, &mut matrix.write()?),
            _ => return Err(check::unsupported(OPERATOR, "matrix", &matrix)),
        ),
        Backend::Cuda => cuda::decode(OPERATOR, record, codes, &matrix)?,
    }
    Ok(matrix)
}

/// Allocates the result of [`decode`], with undefined elements.
pub fn allocate(device: &Device, codes: &BlockCodes, dtype: DType) -> Result<Tensor> {
    let request = Request::new(Category::Workspace, "block_codes.decode");
    Tensor::empty(device, codes.shape(), dtype, request)
}
