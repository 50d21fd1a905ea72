//! Launches of `kernels/affine_scan.cu`.

use device::{Family, Function};

use super::sizes::{Direction, Sizes};
use crate::ops::kernels::family;
use crate::ops::{check, gpu};
use crate::{Result, Tensor};

/// Columns of the narrowest strip of a state.
const STRIP: usize = 16;
/// Rows of the largest map. Two strips of a state must fit into 48 KiB of shared memory.
const WIDEST: usize = 256;

pub(crate) static FAMILY: Family = family!("affine_scan", constants: &[gpu::THREADS_CONSTANT]);

pub(super) fn scan(
    operator: &'static str,
    maps: &Tensor,
    states: &Tensor,
    sizes: Sizes,
    direction: Direction,
) -> Result<()> {
    let Sizes { pieces, states: count, rows, columns } = sizes;
    if rows > WIDEST {
        return Err(check::wrong(operator, "maps", maps, format!("maps of at most {WIDEST} rows")));
    }
    if maps.elements() == 0 || columns == 0 {
        return Ok(());
    }
    let word = |size| gpu::word(operator, size);
    let strip = (gpu::THREADS as usize / rows).max(STRIP);
    let name = if direction == Direction::Forward { "forward" } else { "backward" };
    let launch = states.device().kernel(Function::new(&FAMILY, name)).read(maps).write(states);
    let launch = launch.u32(word(pieces)?).u32(word(count)?).u32(word(rows)?).u32(word(columns)?);
    let launch = launch.u32(word(strip)?).shared(word(8 * rows * strip)?);
    let launch = launch.cost(gpu::bytes(&[maps, states, states]), (2 * rows * states.elements()) as u64);
    Ok(launch.launch([word(columns.div_ceil(strip))?, word(count)?, 1], gpu::THREADS)?)
}
