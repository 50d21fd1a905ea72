//! The kernel families of attention, and the sizes with which they are compiled.

use device::{DType, Family};

use crate::ops::attention::widths::HeadWidths;
use crate::ops::gpu;
use crate::ops::kernels::family;

/// Head widths with a half-precision kernel of exactly that width, for any GPU, by variant. The variants of
/// f16 follow those of bf16.
pub(super) const WIDTHS: [u32; 4] = [32, 64, 96, 128];

/// Variant of the half-precision kernels for heads of up to `width` columns, a multiple of [`WIDTH_STEP`].
#[derive(Clone, Copy)]
pub(super) struct Padded {
    /// Columns of tiles.
    pub(super) width: u32,
    /// Whether the variant supports capped scores, sinks, and queries that are part of a sequence.
    pub(super) general: bool,
}

/// Half-precision kernels take head widths that are multiples of this.
pub(super) const WIDTH_STEP: usize = 8;
/// Variants of [`FAMILY`] that pad heads, narrowest first. They follow the variants of [`WIDTHS`], f16 after
/// bf16.
pub(super) const PADDED: [Padded; 5] = [
    Padded { width: 48, general: false },
    Padded { width: 80, general: false },
    Padded { width: 128, general: false },
    Padded { width: 64, general: true },
    Padded { width: 128, general: true },
];
/// Variants of [`FAMILY_WIDE`], ordered as [`PADDED`].
pub(super) const WIDE: [Padded; 3] = [
    Padded { width: 192, general: false },
    Padded { width: 256, general: false },
    Padded { width: 256, general: true },
];
/// Columns of a tile in the variant of [`FAMILY`] for values and keys of different widths. It is the last
/// variant, f16 after bf16; likewise in [`FAMILY_WIDE`].
pub(super) const VALUES_WIDTH: u32 = 128;
const WIDE_VALUES_WIDTH: u32 = WIDE[WIDE.len() - 1].width;
/// Macro that compiles the variants for values and keys of different widths, all with the general kernel.
const VALUES: Macro = ("VALUES", 1);
/// Macro of the variants that pad heads.
const PADDED_HEADS: (&str, u32) = ("PADDED", 1);

impl Padded {
    const fn macros(&self) -> [(&'static str, u32); 2] {
        [("HEAD_DIM", self.width), PADDED_HEADS]
    }
}
/// Threads of a block of the f32 kernels and of kernels that sum rows.
pub(super) const THREADS: u32 = 256;
/// Warps of a block of the half-precision forward kernel, each with 16 positions.
pub(super) const FORWARD_WARPS: u32 = 8;
/// Keys of a tile of the half-precision forward kernel.
pub(super) const FORWARD_KEYS: u32 = 64;
/// Warps of a block of the half-precision backward kernels, each with 16 positions.
pub(super) const BACKWARD_WARPS: u32 = 4;
/// Positions of a tile of the half-precision backward kernels.
pub(super) const BACKWARD_COLUMNS: u32 = 64;

/// Sums of gradients of keys and values by parts of their query heads.
pub(crate) static FAMILY_PARTS: Family = family!(
    "attention_parts",
    headers: ["maximum.cuh"],
    constants: &[gpu::THREADS_CONSTANT, gpu::CELLS_CONSTANT],
);

/// Attention in half precision for any GPU with tensor cores. Before sm_80 the variants of bf16 are empty.
pub(crate) static FAMILY: Family = family!(
    "attention",
    headers: [
        "attention_backward.cuh",
        "attention_forward.cuh",
        "attention_masks.cuh",
        "attention_tiles.cuh",
        "maximum.cuh",
        "philox.cuh",
        "tensor_cores.cuh"
    ],
    constants: &[
        ("ROW_THREADS", THREADS),
        ("FORWARD_WARPS", FORWARD_WARPS),
        ("FORWARD_KEYS", FORWARD_KEYS),
        ("BACKWARD_WARPS", BACKWARD_WARPS),
        ("BACKWARD_COLUMNS", BACKWARD_COLUMNS),
        gpu::CELLS_CONSTANT,
    ],
    variants: &[
        &[("HEAD_DIM", WIDTHS[0])],
        &[("HEAD_DIM", WIDTHS[1])],
        &[("HEAD_DIM", WIDTHS[2])],
        &[("HEAD_DIM", WIDTHS[3])],
        &[("HEAD_DIM", WIDTHS[0]), IN_F16],
        &[("HEAD_DIM", WIDTHS[1]), IN_F16],
        &[("HEAD_DIM", WIDTHS[2]), IN_F16],
        &[("HEAD_DIM", WIDTHS[3]), IN_F16],
        &[("HEAD_DIM", WIDTHS[0]), GENERAL],
        &[("HEAD_DIM", WIDTHS[1]), GENERAL],
        &[("HEAD_DIM", WIDTHS[2]), GENERAL],
        &[("HEAD_DIM", WIDTHS[3]), GENERAL],
        &[("HEAD_DIM", WIDTHS[0]), IN_F16, GENERAL],
        &[("HEAD_DIM", WIDTHS[1]), IN_F16, GENERAL],
        &[("HEAD_DIM", WIDTHS[2]), IN_F16, GENERAL],
        &[("HEAD_DIM", WIDTHS[3]), IN_F16, GENERAL],
        &PADDED[0].macros(),
        &PADDED[1].macros(),
        &PADDED[2].macros(),
        &general(&PADDED[3].macros()),
        &general(&PADDED[4].macros()),
        &in_f16::<_, 3>(&PADDED[0].macros()),
        &in_f16::<_, 3>(&PADDED[1].macros()),
        &in_f16::<_, 3>(&PADDED[2].macros()),
        &in_f16::<_, 4>(&general(&PADDED[3].macros())),
        &in_f16::<_, 4>(&general(&PADDED[4].macros())),
        &values(VALUES_WIDTH),
        &in_f16::<_, 5>(&values(VALUES_WIDTH)),
    ],
);

/// Sizes of the tiles of [`FAMILY_WIDE`].
#[derive(Clone, Copy)]
pub(super) struct WideTiles {
    pub(super) forward_warps: u32,
    pub(super) forward_keys: u32,
    pub(super) backward_warps: u32,
    /// Positions of a tile of the backward kernels.
    pub(super) backward_rows: u32,
    /// Tiles that the backward kernels hold at once.
    pub(super) stages: u32,
}

/// Tiles for GPUs whose blocks have 227 KiB of shared memory: compute capabilities 9.0 to 11.0.
pub(super) const LARGE: WideTiles =
    WideTiles { forward_warps: 8, forward_keys: 64, backward_warps: 8, backward_rows: 64, stages: 2 };
/// Tiles for other GPUs of capability 8.0 or newer, whose blocks have at least 99 KiB of shared memory.
pub(super) const SMALL: WideTiles =
    WideTiles { forward_warps: 4, forward_keys: 32, backward_warps: 4, backward_rows: 32, stages: 1 };

/// Attention in half precision for heads wider than 128, for sm_80 and newer; empty before.
pub(crate) static FAMILY_WIDE: Family = family!(
    "attention_wide",
    headers: [
        "attention_backward.cuh",
        "attention_forward.cuh",
        "attention_masks.cuh",
        "attention_tiles.cuh",
        "maximum.cuh",
        "philox.cuh",
        "tensor_cores.cuh"
    ],
    constants: &[
        ("ROW_THREADS", THREADS),
        ("LARGE_FORWARD_WARPS", LARGE.forward_warps),
        ("LARGE_FORWARD_KEYS", LARGE.forward_keys),
        ("LARGE_BACKWARD_WARPS", LARGE.backward_warps),
        ("LARGE_BACKWARD_ROWS", LARGE.backward_rows),
        ("LARGE_STAGES", LARGE.stages),
        ("SMALL_FORWARD_WARPS", SMALL.forward_warps),
        ("SMALL_FORWARD_KEYS", SMALL.forward_keys),
        ("SMALL_BACKWARD_WARPS", SMALL.backward_warps),
        ("SMALL_BACKWARD_ROWS", SMALL.backward_rows),
        ("SMALL_STAGES", SMALL.stages),
        gpu::CELLS_CONSTANT,
    ],
    variants: &[
        &WIDE[0].macros(),
        &WIDE[1].macros(),
        &general(&WIDE[2].macros()),
        &in_f16::<_, 3>(&WIDE[0].macros()),
        &in_f16::<_, 3>(&WIDE[1].macros()),
        &in_f16::<_, 4>(&general(&WIDE[2].macros())),
        &values(WIDE_VALUES_WIDTH),
        &in_f16::<_, 5>(&values(WIDE_VALUES_WIDTH)),
    ],
);

/// Macro that selects f16 instead of bf16.
const IN_F16: (&str, u32) = ("HALF_IS_F16", 1);
/// Macro of the variants for capped scores, sinks, and queries that are part of a sequence. They follow the
/// variants without it.
const GENERAL: (&str, u32) = ("GENERAL", 1);

pub(super) type Macro = (&'static str, u32);

const fn general(macros: &[Macro; 2]) -> [Macro; 3] {
    let [first, second] = *macros;
    [first, second, GENERAL]
}

/// Returns the macros of the variant for values and keys of different widths, with tiles of `width` columns.
const fn values(width: u32) -> [Macro; 4] {
    [("HEAD_DIM", width), PADDED_HEADS, GENERAL, VALUES]
}

/// Returns `macros` and [`IN_F16`], for the variant in f16.
pub(super) const fn in_f16<const N: usize, const M: usize>(macros: &[Macro; N]) -> [Macro; M] {
    appended(macros, IN_F16)
}

pub(super) const fn appended<const N: usize, const M: usize>(macros: &[Macro; N], last: Macro) -> [Macro; M] {
    assert!(M == N + 1);
    let mut all = [last; M];
    let mut index = 0;
    while index < N {
        all[index] = macros[index];
        index += 1;
    }
    all
}

/// Variant of the f32 kernels.
#[derive(Clone, Copy)]
pub(super) struct F32Variant {
    /// Width of the widest head that the kernels compute.
    pub(super) width: u32,
    /// Positions of a tile. Four tiles fit in the shared memory of every GPU from sm_80 on.
    pub(super) tile: u32,
    /// Blocks that a multiprocessor holds, by their registers and shared memory on Hopper: forward, gradients
    /// of queries, gradients of keys and values.
    pub(super) resident: [u32; 3],
}

/// Variants of the f32 kernels, narrowest first.
pub(super) const F32: [F32Variant; 4] = [
    F32Variant { width: 32, tile: 64, resident: [3, 2, 2] },
    F32Variant { width: 64, tile: 64, resident: [2, 2, 2] },
    F32Variant { width: 128, tile: 32, resident: [4, 3, 2] },
    F32Variant { width: 256, tile: 16, resident: [3, 3, 3] },
];

impl F32Variant {
    const fn macros(&self) -> [(&'static str, u32); 2] {
        [("HEAD_DIM", self.width), ("TILE", self.tile)]
    }

    const fn general_macros(&self) -> [(&'static str, u32); 3] {
        let [width, tile] = self.macros();
        [width, tile, GENERAL]
    }

    const fn values_macros(&self) -> [Macro; 4] {
        appended(&self.general_macros(), VALUES)
    }
}

/// Attention in f32.
pub(crate) static FAMILY_F32: Family = family!(
    "attention_f32",
    headers: ["attention_masks.cuh", "philox.cuh"],
    constants: &[("THREADS", THREADS)],
    variants: &[
        &F32[0].macros(),
        &F32[1].macros(),
        &F32[2].macros(),
        &F32[3].macros(),
        &F32[0].general_macros(),
        &F32[1].general_macros(),
        &F32[2].general_macros(),
        &F32[3].general_macros(),
        &F32[0].values_macros(),
        &F32[1].values_macros(),
        &F32[2].values_macros(),
        &F32[3].values_macros(),
    ],
);

pub(crate) fn widths(dtype: DType) -> HeadWidths {
    match dtype {
        DType::F32 => HeadWidths { step: 1, widest: F32[F32.len() - 1].width as usize },
        DType::Bf16 | DType::F16 => {
            HeadWidths { step: WIDTH_STEP, widest: WIDE[WIDE.len() - 1].width as usize }
        }
        _ => HeadWidths { step: 1, widest: 0 },
    }
}
