//! The kernel families of attention on Hopper, and the sizes with which they are compiled.

use device::{DType, Family};

use super::families::{Macro, appended, in_f16};
use crate::ops::gpu;
use crate::ops::kernels::family;

/// Number of causal bf16 variants before the first f16 variant. Sizes beyond it were added after both.
const FIRST: usize = 2;
/// Macro of the variants for windows. They follow the causal variants: bf16, then f16.
const WINDOWED: Macro = ("WINDOWED", 1);
/// Macro of the variants for queries that are part of a sequence. They follow the windowed variants: bf16,
/// then f16.
const PIECE: Macro = ("PIECE", 1);
/// Macro of the variants with dropout, the last ones: bf16, then f16.
const DROPPED: Macro = ("DROPPED", 1);
/// Number of sizes, from the first on, that have a variant with dropout.
const DROPPED_WIDTHS: usize = 3;

/// The (query, key) pairs that a variant of the Hopper kernels computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pairs {
    /// Each query attends to keys up to its own position.
    #[default]
    Causal,
    /// Every query with the keys in its window.
    Windowed,
    /// Queries of a piece of a sequence. Each attends to keys up to its own position.
    OfPiece,
    /// Like `Causal`, with dropout of attention weights.
    Dropped,
}

/// Returns the index of the variant for `dtype`, the sizes at `index` of `count`, and `pairs`.
pub(super) fn variant(index: usize, dtype: DType, count: usize, pairs: Pairs) -> usize {
    let (first, group) = match pairs {
        Pairs::Causal if index < FIRST => (0, FIRST),
        Pairs::Causal => (FIRST, count - FIRST),
        Pairs::Windowed => (2 * count, count),
        Pairs::OfPiece => (4 * count, count),
        Pairs::Dropped => (6 * count, DROPPED_WIDTHS),
    };
    first + index + if dtype == DType::F16 { group } else { 0 }
}

/// Returns `macros` and [`DROPPED`], for the variant with dropout.
const fn dropped<const N: usize, const M: usize>(macros: &[Macro; N]) -> [Macro; M] {
    appended(macros, DROPPED)
}

/// Returns `macros` and [`PIECE`], for the variant for a piece of a sequence.
const fn of_piece<const N: usize, const M: usize>(macros: &[Macro; N]) -> [Macro; M] {
    appended(macros, PIECE)
}

/// Returns `macros` and [`WINDOWED`], for the variant with a window.
const fn windowed<const N: usize, const M: usize>(macros: &[Macro; N]) -> [Macro; M] {
    appended(macros, WINDOWED)
}

/// Positions that one consumer of a Hopper kernel owns.
pub(super) const CONSUMER_ROWS: u32 = 64;
/// Positions of a tile of the Hopper backward kernels.
pub(super) const COLUMNS: u32 = 64;

#[derive(Clone, Copy)]
pub(super) struct HopperForward {
    pub(super) width: u32,
    pub(super) consumers: u32,
    /// Number of tiles of keys or values in the shared-memory ring.
    pub(super) slots: u32,
    pub(super) keys: u32,
    pub(super) query_tiles: u32,
}

/// Variants of the Hopper forward kernel.
pub(super) const HOPPER_FORWARD: [HopperForward; 4] = [
    HopperForward { width: 64, consumers: 2, slots: 8, keys: 128, query_tiles: 2 },
    HopperForward { width: 128, consumers: 2, slots: 5, keys: 128, query_tiles: 2 },
    HopperForward { width: 80, consumers: 2, slots: 5, keys: 128, query_tiles: 2 },
    HopperForward { width: 256, consumers: 2, slots: 5, keys: 64, query_tiles: 1 },
];

/// Returns the bytes of one row of a tile. Tiles consist of panels of 64 columns.
pub(super) fn hopper_row_bytes(width: u32) -> u32 {
    2 * width.next_multiple_of(64)
}

impl HopperForward {
    const fn macros(&self) -> [Macro; 5] {
        [
            ("HEAD_DIM", self.width),
            ("CONSUMERS", self.consumers),
            ("SLOTS", self.slots),
            ("KEYS", self.keys),
            ("QUERY_TILES", self.query_tiles),
        ]
    }
}

/// Forward attention in half precision with Hopper's warp-group matmuls; empty for other architectures.
pub(crate) static FAMILY_HOPPER_FORWARD: Family = family!(
    "attention_hopper_forward",
    headers: ["attention_hopper.cuh", "hopper.cuh", "maximum.cuh", "philox.cuh"],
    constants: &[("CONSUMER_ROWS", CONSUMER_ROWS), gpu::CELLS_CONSTANT],
    variants: &[
        &HOPPER_FORWARD[0].macros(),
        &HOPPER_FORWARD[1].macros(),
        &in_f16::<_, 6>(&HOPPER_FORWARD[0].macros()),
        &in_f16::<_, 6>(&HOPPER_FORWARD[1].macros()),
        &HOPPER_FORWARD[2].macros(),
        &HOPPER_FORWARD[3].macros(),
        &in_f16::<_, 6>(&HOPPER_FORWARD[2].macros()),
        &in_f16::<_, 6>(&HOPPER_FORWARD[3].macros()),
        &windowed::<_, 6>(&HOPPER_FORWARD[0].macros()),
        &windowed::<_, 6>(&HOPPER_FORWARD[1].macros()),
        &windowed::<_, 6>(&HOPPER_FORWARD[2].macros()),
        &windowed::<_, 6>(&HOPPER_FORWARD[3].macros()),
        &windowed::<_, 7>(&in_f16::<_, 6>(&HOPPER_FORWARD[0].macros())),
        &windowed::<_, 7>(&in_f16::<_, 6>(&HOPPER_FORWARD[1].macros())),
        &windowed::<_, 7>(&in_f16::<_, 6>(&HOPPER_FORWARD[2].macros())),
        &windowed::<_, 7>(&in_f16::<_, 6>(&HOPPER_FORWARD[3].macros())),
        &of_piece::<_, 6>(&HOPPER_FORWARD[0].macros()),
        &of_piece::<_, 6>(&HOPPER_FORWARD[1].macros()),
        &of_piece::<_, 6>(&HOPPER_FORWARD[2].macros()),
        &of_piece::<_, 6>(&HOPPER_FORWARD[3].macros()),
        &of_piece::<_, 7>(&in_f16::<_, 6>(&HOPPER_FORWARD[0].macros())),
        &of_piece::<_, 7>(&in_f16::<_, 6>(&HOPPER_FORWARD[1].macros())),
        &of_piece::<_, 7>(&in_f16::<_, 6>(&HOPPER_FORWARD[2].macros())),
        &of_piece::<_, 7>(&in_f16::<_, 6>(&HOPPER_FORWARD[3].macros())),
        &dropped::<_, 6>(&HOPPER_FORWARD[0].macros()),
        &dropped::<_, 6>(&HOPPER_FORWARD[1].macros()),
        &dropped::<_, 6>(&HOPPER_FORWARD[2].macros()),
        &dropped::<_, 7>(&in_f16::<_, 6>(&HOPPER_FORWARD[0].macros())),
        &dropped::<_, 7>(&in_f16::<_, 6>(&HOPPER_FORWARD[1].macros())),
        &dropped::<_, 7>(&in_f16::<_, 6>(&HOPPER_FORWARD[2].macros())),
    ],
);

/// Variant of the Hopper backward kernels.
#[derive(Clone, Copy)]
pub(super) struct HopperBackward {
    pub(super) width: u32,
    pub(super) consumers: u32,
    /// Number of copies of a block's own rows in shared memory.
    pub(super) own_tiles: u32,
    /// Number of tiles in the shared-memory ring.
    pub(super) stages: u32,
}

/// Variants of the Hopper backward kernels.
pub(super) const HOPPER_BACKWARD: [HopperBackward; 3] = [
    HopperBackward { width: 64, consumers: 3, own_tiles: 2, stages: 6 },
    HopperBackward { width: 128, consumers: 2, own_tiles: 1, stages: 4 },
    HopperBackward { width: 80, consumers: 2, own_tiles: 1, stages: 4 },
];

impl HopperBackward {
    const fn macros(&self) -> [Macro; 4] {
        [
            ("HEAD_DIM", self.width),
            ("CONSUMERS", self.consumers),
            ("OWN_TILES", self.own_tiles),
            ("STAGES", self.stages),
        ]
    }
}

/// Sizes of the Hopper backward kernels for wide heads, where both consumers of a block share its rows.
pub(super) const HOPPER_WIDE: HopperBackward =
    HopperBackward { width: 256, consumers: 2, own_tiles: 1, stages: 2 };

/// Bytes of shared memory through which consumers of [`HOPPER_WIDE`] exchange values.
const EXCHANGE_BYTES: u32 = 16_384;

/// Backward attention in half precision for wide heads with Hopper's warp-group matmuls; empty for other
/// architectures.
pub(crate) static FAMILY_HOPPER_WIDE: Family = family!(
    "attention_hopper_wide",
    headers: [
        "attention_hopper.cuh",
        "hopper.cuh",
        "attention_hopper_columns.cuh",
        "maximum.cuh",
        "philox.cuh"
    ],
    constants: &[
        ("CONSUMER_ROWS", CONSUMER_ROWS),
        ("COLUMNS", COLUMNS),
        ("EXCHANGE_BYTES", EXCHANGE_BYTES),
        ("SHARED_ROWS", 1),
        gpu::CELLS_CONSTANT,
    ],
    variants: &[
        &HOPPER_WIDE.macros(),
        &in_f16::<_, 5>(&HOPPER_WIDE.macros()),
        &windowed::<_, 5>(&HOPPER_WIDE.macros()),
        &windowed::<_, 6>(&in_f16::<_, 5>(&HOPPER_WIDE.macros())),
        &of_piece::<_, 5>(&HOPPER_WIDE.macros()),
        &of_piece::<_, 6>(&in_f16::<_, 5>(&HOPPER_WIDE.macros())),
    ],
);

/// The backward kernels for one head width.
#[derive(Clone, Copy)]
pub(super) struct HopperKernels {
    pub(super) family: &'static Family,
    pub(super) variant: usize,
    pub(super) sizes: HopperBackward,
    /// Tiles of [`CONSUMER_ROWS`] rows that a block owns.
    pub(super) tiles: u32,
    pub(super) shared: u32,
}

pub(super) fn backward(width: usize, dtype: DType, pairs: Pairs) -> Option<HopperKernels> {
    let has = |sizes: &HopperBackward| sizes.width as usize == width;
    let (family, variant, sizes, tiles, exchange) = match HOPPER_BACKWARD.iter().position(has) {
        Some(index) => {
            let sizes = HOPPER_BACKWARD[index];
            let variant = variant(index, dtype, HOPPER_BACKWARD.len(), pairs);
            (&FAMILY_HOPPER_BACKWARD, variant, sizes, sizes.consumers, 0)
        }
        None if has(&HOPPER_WIDE) && pairs != Pairs::Dropped => {
            let variant = 2 * pairs as usize + usize::from(dtype == DType::F16);
            (&FAMILY_HOPPER_WIDE, variant, HOPPER_WIDE, 1, EXCHANGE_BYTES)
        }
        None => return None,
    };
    let rows = CONSUMER_ROWS * tiles;
    let bytes = hopper_row_bytes(sizes.width);
    let own = 2 * rows * bytes + (8 * rows).next_multiple_of(1024);
    let shared = sizes.own_tiles * own + sizes.stages * (2 * COLUMNS * bytes + 1024) + exchange + 2048;
    Some(HopperKernels { family, variant, sizes, tiles, shared })
}

/// Backward attention in half precision with Hopper's warp-group matmuls; empty for other architectures.
pub(crate) static FAMILY_HOPPER_BACKWARD: Family = family!(
    "attention_hopper_backward",
    headers: [
        "attention_hopper.cuh",
        "hopper.cuh",
        "attention_hopper_columns.cuh",
        "maximum.cuh",
        "philox.cuh"
    ],
    constants: &[("CONSUMER_ROWS", CONSUMER_ROWS), ("COLUMNS", COLUMNS), gpu::CELLS_CONSTANT],
    variants: &[
        &HOPPER_BACKWARD[0].macros(),
        &HOPPER_BACKWARD[1].macros(),
        &in_f16::<_, 5>(&HOPPER_BACKWARD[0].macros()),
        &in_f16::<_, 5>(&HOPPER_BACKWARD[1].macros()),
        &HOPPER_BACKWARD[2].macros(),
        &in_f16::<_, 5>(&HOPPER_BACKWARD[2].macros()),
        &windowed::<_, 5>(&HOPPER_BACKWARD[0].macros()),
        &windowed::<_, 5>(&HOPPER_BACKWARD[1].macros()),
        &windowed::<_, 5>(&HOPPER_BACKWARD[2].macros()),
        &windowed::<_, 6>(&in_f16::<_, 5>(&HOPPER_BACKWARD[0].macros())),
        &windowed::<_, 6>(&in_f16::<_, 5>(&HOPPER_BACKWARD[1].macros())),
        &windowed::<_, 6>(&in_f16::<_, 5>(&HOPPER_BACKWARD[2].macros())),
        &of_piece::<_, 5>(&HOPPER_BACKWARD[0].macros()),
        &of_piece::<_, 5>(&HOPPER_BACKWARD[1].macros()),
        &of_piece::<_, 5>(&HOPPER_BACKWARD[2].macros()),
        &of_piece::<_, 6>(&in_f16::<_, 5>(&HOPPER_BACKWARD[0].macros())),
        &of_piece::<_, 6>(&in_f16::<_, 5>(&HOPPER_BACKWARD[1].macros())),
        &of_piece::<_, 6>(&in_f16::<_, 5>(&HOPPER_BACKWARD[2].macros())),
        &dropped::<_, 5>(&HOPPER_BACKWARD[0].macros()),
        &dropped::<_, 5>(&HOPPER_BACKWARD[1].macros()),
        &dropped::<_, 5>(&HOPPER_BACKWARD[2].macros()),
        &dropped::<_, 6>(&in_f16::<_, 5>(&HOPPER_BACKWARD[0].macros())),
        &dropped::<_, 6>(&in_f16::<_, 5>(&HOPPER_BACKWARD[1].macros())),
        &dropped::<_, 6>(&in_f16::<_, 5>(&HOPPER_BACKWARD[2].macros())),
    ],
);
