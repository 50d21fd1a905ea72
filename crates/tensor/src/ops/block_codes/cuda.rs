//! Launches of `kernels/block_codes.cu`.

use device::{Family, Function};

use super::alphabet::Alphabet;
use super::layout::{BLOCK, BlockCodes, GROUP, GROUP_BYTES, RowsPart};
use crate::ops::gpu;
use crate::ops::kernels::family;
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family = family!(
    "block_codes",
    constants: &[gpu::THREADS_CONSTANT, ("BLOCK", BLOCK as u32), ("GROUP", GROUP as u32)],
);

/// Decodes a whole record, one thread block per group.
pub(super) fn decode(
    operator: &'static str,
    record: &Tensor,
    codes: &BlockCodes,
    matrix: &Tensor,
) -> Result<()> {
    let name = match codes.alphabet() {
        Alphabet::Nf4 => "decode_nf4",
        Alphabet::Int4 => "decode_int4",
        Alphabet::E4m3 => "decode_e4m3",
    };
    let kernel = Function::new(&FAMILY, name).with_dtype(matrix.dtype());
    for RowsPart { elements, first_group } in codes.runs() {
        let count = elements.len();
        let groups = elements.len().div_ceil(BLOCK * GROUP);
        let section = |first: usize, bytes: usize| record.view(first, [bytes]);
        let own = section(codes.code_bytes(elements.start), codes.code_bytes(count))?;
        let scales = section(codes.scales() + elements.start / BLOCK, count / BLOCK)?;
        let of_groups = section(codes.groups() + first_group * GROUP_BYTES, groups * GROUP_BYTES)?;
        let values = matrix.view(elements.start, [count])?;
        let launch = record.device().kernel(kernel).read(&own).read(&scales);
        let launch = launch.read(&of_groups).write(&values).u64(count as u64);
        let bytes = gpu::bytes(&[&own, &scales, &of_groups, &values]);
        let blocks = [gpu::word(operator, groups)?, 1, 1];
        launch.cost(bytes, count as u64).launch(blocks, gpu::THREADS)?;
    }
    Ok(())
}
