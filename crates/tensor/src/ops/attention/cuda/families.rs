//! The kernel families of attention, and the sizes with which they are compiled.

use device::{DType, Family};

use crate::ops::attention::widths::HeadWidths;
use crate::ops::gpu;
use crate::ops::kernels::family;

/// Head widths of the half-precision kernels for any GPU, by variant; those of f16 follow those of bf16.
pub(super) const WIDTHS: [u32; 4] = [32, 64, 96, 128];
/// Threads of a block of the kernels that sum rows, and of the f32 kernels.
pub(super) const THREADS: u32 = 256;
/// Warps of a block of the half-precision forward kernel, each with 16 positions.
pub(super) const FORWARD_WARPS: u32 = 8;
/// Keys of a tile of the half-precision forward kernel.
pub(super) const FORWARD_KEYS: u32 = 64;
/// Warps of a block of the half-precision backward kernels, each with 16 positions.
pub(super) const BACKWARD_WARPS: u32 = 4;
/// Positions of a tile of the half-precision backward kernels.
pub(super) const BACKWARD_COLUMNS: u32 = 64;

/// Attention in half precision for any GPU with tensor cores; before sm_80, the variants of bf16 are empty.
pub(crate) static FAMILY: Family = family!(
    "attention",
    headers: [
        "attention_forward.cuh",
        "attention_masks.cuh",
        "attention_tiles.cuh",
        "maximum.cuh",
        "philox.cuh"
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
    ],
);

/// Macro of the variants in f16.
const IN_F16: (&str, u32) = ("HALF_IS_F16", 1);
/// Macro of the variants for capped scores and pieces of sequences, which follow the others.
const GENERAL: (&str, u32) = ("GENERAL", 1);

/// Variant of the f32 kernels.
#[derive(Clone, Copy)]
pub(super) struct F32Variant {
    /// Widest head.
    pub(super) width: u32,
    /// Positions of a tile. Four tiles fit in the shared memory of every GPU from sm_80 on.
    pub(super) tile: u32,
}

/// Variants of the f32 kernels, narrowest first.
pub(super) const F32: [F32Variant; 4] = [
    F32Variant { width: 32, tile: 64 },
    F32Variant { width: 64, tile: 64 },
    F32Variant { width: 128, tile: 32 },
    F32Variant { width: 256, tile: 16 },
];

impl F32Variant {
    const fn macros(&self) -> [(&'static str, u32); 2] {
        [("HEAD_DIM", self.width), ("TILE", self.tile)]
    }

    const fn general_macros(&self) -> [(&'static str, u32); 3] {
        let [width, tile] = self.macros();
        [width, tile, GENERAL]
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
    ],
);

/// Positions that one consumer of a Hopper kernel owns.
pub(super) const CONSUMER_ROWS: u32 = 64;
/// Keys of a tile of the Hopper forward kernel.
pub(super) const KEYS: u32 = 128;
/// Tiles of queries that the Hopper forward kernel holds.
pub(super) const QUERY_TILES: u32 = 2;
/// Positions of a tile of the Hopper backward kernels.
pub(super) const COLUMNS: u32 = 64;

/// Variant of the Hopper forward kernel.
#[derive(Clone, Copy)]
pub(super) struct HopperForward {
    pub(super) width: u32,
    pub(super) consumers: u32,
    /// Tiles of keys or values in the ring.
    pub(super) slots: u32,
}

/// Variants of the Hopper forward kernel.
pub(super) const HOPPER_FORWARD: [HopperForward; 2] = [
    HopperForward { width: 64, consumers: 2, slots: 8 },
    HopperForward { width: 128, consumers: 2, slots: 5 },
];

impl HopperForward {
    const fn macros(&self) -> [(&'static str, u32); 3] {
        [("HEAD_DIM", self.width), ("CONSUMERS", self.consumers), ("SLOTS", self.slots)]
    }

    const fn macros_in_f16(&self) -> [(&'static str, u32); 4] {
        let [width, consumers, slots] = self.macros();
        [width, consumers, slots, IN_F16]
    }
}

/// Forward attention in half precision with Hopper's warp-group matmuls; empty for other architectures.
pub(crate) static FAMILY_HOPPER_FORWARD: Family = family!(
    "attention_hopper_forward",
    headers: ["attention_hopper.cuh", "maximum.cuh"],
    constants: &[
        ("CONSUMER_ROWS", CONSUMER_ROWS),
        ("KEYS", KEYS),
        ("QUERY_TILES", QUERY_TILES),
        gpu::CELLS_CONSTANT,
    ],
    variants: &[
        &HOPPER_FORWARD[0].macros(),
        &HOPPER_FORWARD[1].macros(),
        &HOPPER_FORWARD[0].macros_in_f16(),
        &HOPPER_FORWARD[1].macros_in_f16(),
    ],
);

/// Variant of the Hopper backward kernels.
#[derive(Clone, Copy)]
pub(super) struct HopperBackward {
    pub(super) width: u32,
    pub(super) consumers: u32,
    /// Copies of a block's own rows.
    pub(super) own_tiles: u32,
    /// Tiles in the ring.
    pub(super) stages: u32,
}

/// Variants of the Hopper backward kernels, for the widths of [`HOPPER_FORWARD`].
pub(super) const HOPPER_BACKWARD: [HopperBackward; 2] = [
    HopperBackward { width: 64, consumers: 3, own_tiles: 2, stages: 6 },
    HopperBackward { width: 128, consumers: 2, own_tiles: 1, stages: 4 },
];

impl HopperBackward {
    const fn macros(&self) -> [(&'static str, u32); 4] {
        [
            ("HEAD_DIM", self.width),
            ("CONSUMERS", self.consumers),
            ("OWN_TILES", self.own_tiles),
            ("STAGES", self.stages),
        ]
    }

    const fn macros_in_f16(&self) -> [(&'static str, u32); 5] {
        let [width, consumers, own_tiles, stages] = self.macros();
        [width, consumers, own_tiles, stages, IN_F16]
    }
}

/// Backward attention in half precision with Hopper's warp-group matmuls; empty for other architectures.
pub(crate) static FAMILY_HOPPER_BACKWARD: Family = family!(
    "attention_hopper_backward",
    headers: ["attention_hopper.cuh", "maximum.cuh"],
    constants: &[("CONSUMER_ROWS", CONSUMER_ROWS), ("COLUMNS", COLUMNS), gpu::CELLS_CONSTANT],
    variants: &[
        &HOPPER_BACKWARD[0].macros(),
        &HOPPER_BACKWARD[1].macros(),
        &HOPPER_BACKWARD[0].macros_in_f16(),
        &HOPPER_BACKWARD[1].macros_in_f16(),
    ],
);

/// Returns the head widths that have kernels in a type.
pub(crate) fn widths(dtype: DType) -> HeadWidths {
    match dtype {
        DType::F32 => HeadWidths::UpTo(F32[F32.len() - 1].width as usize),
        DType::Bf16 | DType::F16 => HeadWidths::OneOf(&WIDTHS),
        _ => HeadWidths::OneOf(&[]),
    }
}
