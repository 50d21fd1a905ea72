//! What AdamW and SGD share on a GPU: the table of `kernels/optimizer.cu`.

use device::Family;

use super::kernels::family;
use super::table::{Table, halves};
use super::{check, gpu};
use crate::{DType, Result, Tensor};

/// Elements of one block of the kernels.
const CHUNK: u32 = 4096;

/// `kernels/optimizer.cu`.
pub(super) static FAMILY: Family =
    family!("optimizer", constants: &[gpu::THREADS_CONSTANT, ("CHUNK", CHUNK)]);

/// Bits of a parameter's flags.
const DECAY: u32 = 1;
const ALIGNED: u32 = 2;

/// A parameter as the kernels see it.
#[derive(Clone, Copy)]
pub(super) struct Parameter<'a> {
    pub(super) weight: &'a Tensor,
    pub(super) gradient: &'a Tensor,
    pub(super) first: Option<&'a Tensor>,
    pub(super) second: Option<&'a Tensor>,
    pub(super) compute: Option<&'a Tensor>,
    pub(super) decay: bool,
}

impl Parameter<'_> {
    fn words(&self) -> [u32; 14] {
        let tensors = [Some(self.weight), Some(self.gradient), self.first, self.second, self.compute];
        let present: Vec<&Tensor> = tensors.into_iter().flatten().collect();
        let mut words = [0; 14];
        for (index, tensor) in tensors.into_iter().enumerate() {
            let [low, high] = halves(tensor.map_or(0, gpu::address));
            (words[2 * index], words[2 * index + 1]) = (low, high);
        }
        let [low, high] = halves(self.weight.elements() as u64);
        (words[10], words[11]) = (low, high);
        let aligned = if gpu::aligned(&present) { ALIGNED } else { 0 };
        words[12] = aligned | if self.decay { DECAY } else { 0 };
        words
    }

    /// Bytes that a step must move, and operations of about as many as its formula has.
    fn cost(&self) -> u64 {
        let updated = [Some(self.weight), self.first, self.second].into_iter().flatten();
        let updated: u64 = updated.map(|tensor| 2 * tensor.bytes() as u64).sum();
        updated + self.gradient.bytes() as u64 + self.compute.map_or(0, |tensor| tensor.bytes() as u64)
    }
}

/// All parameters of a launch.
pub(super) struct Listed<'a> {
    pub(super) table: &'a Tensor,
    pub(super) count: u32,
    pub(super) blocks: u32,
    pub(super) bytes: u64,
}

/// Brings `parameters` into the table.
pub(super) fn list<'a>(
    operator: &'static str,
    table: &'a Table,
    parameters: &[Parameter<'_>],
) -> Result<Listed<'a>> {
    let mut words: Vec<u32> = parameters.iter().flat_map(Parameter::words).collect();
    let mut blocks = 0;
    for parameter in parameters {
        words.push(gpu::word(operator, blocks)?);
        blocks += parameter.weight.elements().div_ceil(CHUNK as usize);
    }
    let blocks = gpu::word(operator, blocks)?;
    words.push(blocks);
    let bytes = parameters.iter().map(Parameter::cost).sum();
    let count = gpu::word(operator, parameters.len())?;
    Ok(Listed { table: table.holding(words)?, count, blocks, bytes })
}

/// Refuses a copy that is not bf16 or has another number of elements than its weight.
pub(super) fn check_compute(operator: &'static str, compute: Option<&Tensor>, elements: usize) -> Result<()> {
    let Some(compute) = compute else { return Ok(()) };
    check::dtype(operator, "compute", compute, DType::Bf16)?;
    check::elements(operator, "compute", compute, elements)
}
