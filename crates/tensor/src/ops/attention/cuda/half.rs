//! Choice of the half-precision kernels for any GPU, and the shapes of their launches.

use device::{DType, Family, Schedule};

use crate::ops::attention::heads::Heads;

use super::families::{
    BACKWARD_COLUMNS, BACKWARD_WARPS, FAMILY, FAMILY_WIDE, FORWARD_KEYS, FORWARD_WARPS, LARGE, PADDED,
    Padded, SMALL, VALUES_WIDTH, WIDE, WIDTH_STEP, WIDTHS, WideTiles,
};
use super::needs::Needs;

/// Half-precision kernels for any GPU.
#[derive(Clone, Copy)]
pub(super) struct Half {
    pub(super) family: &'static Family,
    pub(super) variant: usize,
    /// Whether the kernels take the head width, and sinks, as arguments.
    pub(super) padded: bool,
    /// Columns of a head in tiles.
    pub(super) columns: u32,
    /// Sizes of the tiles of [`FAMILY_WIDE`].
    wide: Option<WideTiles>,
}

/// Rows and threads of a thread block, and its bytes of shared memory.
pub(super) struct Block {
    pub(super) rows: u32,
    pub(super) threads: u32,
    pub(super) shared: u32,
}

/// Threads that a multiprocessor holds of kernels that use 255 registers.
const THREADS_OF_MOST_REGISTERS: u32 = 256;

impl Block {
    pub(super) fn schedule(&self) -> Schedule {
        Schedule::Blocks { resident: (THREADS_OF_MOST_REGISTERS / self.threads).max(1) }
    }
}

/// Returns the offset of a dtype's kernel variants: `count` for f16, whose variants follow `count` bf16
/// variants, else 0.
fn in_f16(dtype: DType, count: usize) -> usize {
    if dtype == DType::F16 { count } else { 0 }
}

impl Half {
    /// Returns the kernels for a type and heads, or `None` if none is compiled.
    pub(super) fn choose(dtype: DType, heads: Heads, needs: Needs) -> Option<Self> {
        let Needs { general, sinks, large, .. } = needs;
        let width = heads.width;
        if !heads.are_equally_wide() {
            return Half::choose_for_values(dtype, heads, large);
        }
        if let Some(index) = WIDTHS.iter().position(|one| *one as usize == width && !sinks) {
            let variant = index + in_f16(dtype, WIDTHS.len()) + if general { 2 * WIDTHS.len() } else { 0 };
            return Some(Half {
                family: &FAMILY,
                variant,
                padded: false,
                columns: WIDTHS[index],
                wide: None,
            });
        }
        if !width.is_multiple_of(WIDTH_STEP) {
            return None;
        }
        let fits = |one: &Padded| one.general == (general || sinks) && width <= one.width as usize;
        if let Some(index) = PADDED.iter().position(fits) {
            let variant = 4 * WIDTHS.len() + index + in_f16(dtype, PADDED.len());
            let columns = PADDED[index].width;
            return Some(Half { family: &FAMILY, variant, padded: true, columns, wide: None });
        }
        let index = WIDE.iter().position(fits)?;
        let variant = index + in_f16(dtype, WIDE.len());
        let columns = WIDE[index].width;
        let wide = Some(if large { LARGE } else { SMALL });
        Some(Half { family: &FAMILY_WIDE, variant, padded: true, columns, wide })
    }

    /// Returns the kernels for values and keys of different widths, or `None` if none is compiled.
    fn choose_for_values(dtype: DType, heads: Heads, large: bool) -> Option<Self> {
        let widths = [heads.width, heads.value_width];
        let widest = heads.width.max(heads.value_width);
        if widths.iter().any(|width| !width.is_multiple_of(WIDTH_STEP)) {
            return None;
        }
        if widest <= VALUES_WIDTH as usize {
            let variant = 4 * WIDTHS.len() + 2 * PADDED.len() + in_f16(dtype, 1);
            return Some(Half { family: &FAMILY, variant, padded: true, columns: VALUES_WIDTH, wide: None });
        }
        let columns = WIDE[WIDE.len() - 1].width;
        let variant = 2 * WIDE.len() + in_f16(dtype, 1);
        let wide = Some(if large { LARGE } else { SMALL });
        let fits = widest <= columns as usize;
        fits.then_some(Half { family: &FAMILY_WIDE, variant, padded: true, columns, wide })
    }

    pub(super) fn forward(&self) -> Block {
        let (warps, keys) = match self.wide {
            Some(tiles) => (tiles.forward_warps, tiles.forward_keys),
            None => (FORWARD_WARPS, FORWARD_KEYS),
        };
        let rows = 16 * warps;
        Block { rows, threads: 32 * warps, shared: (rows + 4 * keys) * self.columns * 2 }
    }

    pub(super) fn backward(&self) -> Block {
        let Some(WideTiles { backward_warps, backward_rows: rows, stages, .. }) = self.wide else {
            let rows = 16 * BACKWARD_WARPS;
            let shared = (2 * rows + 4 * BACKWARD_COLUMNS) * self.columns * 2 + 1536;
            return Block { rows, threads: 32 * BACKWARD_WARPS, shared };
        };
        let operands = 2 * (1 + stages) * rows * self.columns * 2;
        let shared = operands + 2 * rows * rows * 2 + stages * 3 * rows * 4;
        Block { rows, threads: 32 * backward_warps, shared }
    }
}
