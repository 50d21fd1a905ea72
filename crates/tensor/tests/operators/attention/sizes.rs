//! Sizes of the tested calls.

use super::*;

/// Sizes of one attention call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) batch: usize,
    pub(super) time: usize,
    pub(super) heads: Heads,
}

impl Size {
    pub(super) const fn new([batch, time, width, query, key_value]: [usize; 5]) -> Self {
        Size { batch, time, heads: Heads::grouped(query, key_value, width) }
    }

    pub(super) fn qkv_shape(&self) -> [usize; 3] {
        [self.batch, self.time, self.heads.packed_columns()]
    }

    pub(super) fn output_shape(&self) -> [usize; 3] {
        [self.batch, self.time, self.heads.query_columns()]
    }

    pub(super) fn reference(&self, qkv: &[f64]) -> [Vec<f64>; 2] {
        reference::attention(qkv, self.batch, self.time, self.heads)
    }

    /// Returns the columns of queries, keys and values.
    pub(super) fn columns(&self) -> [usize; 3] {
        self.heads.groups_of_columns()
    }
}

/// Batch, time, head width, query heads, key and value heads: odd sizes, sizes around the ends of a tile, and
/// groups of one, some and all query heads.
const SIZES: [[usize; 5]; 16] = [
    [1, 1, 1, 1, 1],
    [2, 2, 3, 1, 1],
    [1, 5, 4, 2, 2],
    [3, 7, 1, 3, 3],
    [1, 33, 5, 3, 3],
    [2, 63, 8, 1, 1],
    [1, 64, 8, 2, 2],
    [1, 65, 3, 1, 1],
    [1, 70, 16, 2, 2],
    [1, 131, 4, 1, 1],
    [1, 1, 2, 2, 1],
    [2, 5, 3, 4, 2],
    [2, 33, 4, 6, 3],
    [1, 65, 5, 3, 1],
    [2, 70, 8, 6, 2],
    [1, 131, 4, 4, 1],
];
/// Further sizes for a GPU in f32, which use every compiled variant.
const WIDE_SIZES: [[usize; 5]; 9] = [
    [2, 67, 20, 2, 2],
    [1, 130, 33, 2, 2],
    [2, 129, 64, 2, 2],
    [1, 65, 100, 1, 1],
    [1, 97, 128, 2, 2],
    [1, 50, 256, 1, 1],
    [2, 129, 64, 6, 2],
    [1, 97, 128, 4, 1],
    [2, 50, 256, 4, 2],
];
/// Batch, time, head width, query heads, key and value heads for a GPU in half precision: each tile width of
/// the kernels that pad heads, whole and in part.
const PADDED_SIZES: [[usize; 5]; 20] = [
    [2, 7, 8, 2, 2],
    [1, 130, 16, 4, 2],
    [2, 193, 40, 4, 2],
    [1, 129, 48, 2, 2],
    [2, 65, 56, 3, 1],
    [1, 1, 80, 1, 1],
    [3, 7, 80, 3, 3],
    [2, 193, 80, 6, 2],
    [1, 385, 80, 2, 2],
    [20, 64, 80, 27, 27],
    [1, 1088, 80, 4, 1],
    [2, 193, 72, 4, 2],
    [1, 129, 120, 2, 1],
    [1, 200, 192, 2, 2],
    [2, 67, 136, 2, 1],
    [1, 5, 256, 2, 2],
    [2, 193, 256, 4, 2],
    [20, 64, 256, 27, 27],
    [1, 577, 256, 2, 1],
    [1, 129, 224, 2, 2],
];
/// Batch, time, query heads, key and value heads for a GPU in half precision: times around the ends of tiles
/// of 64, 128 and 192, and many short heads, so that one block processes several heads.
const TIMES: [[usize; 4]; 21] = [
    [1, 1, 1, 1],
    [1, 5, 2, 2],
    [3, 7, 3, 3],
    [1, 63, 2, 2],
    [2, 64, 1, 1],
    [1, 65, 1, 1],
    [1, 127, 2, 2],
    [2, 128, 2, 2],
    [1, 129, 1, 1],
    [2, 193, 3, 3],
    [1, 320, 3, 3],
    [1, 385, 2, 2],
    [1, 1024, 1, 1],
    [1, 1088, 1, 1],
    [20, 64, 27, 27],
    [40, 130, 7, 7],
    [3, 7, 4, 2],
    [1, 65, 3, 1],
    [2, 193, 6, 2],
    [1, 1088, 4, 1],
    [20, 130, 28, 4],
];

pub(super) fn sizes(case: &Case) -> Vec<Size> {
    let sizes: Vec<[usize; 5]> = match (case.device.is_cuda_like(), case.dtype) {
        (false, _) => SIZES.to_vec(),
        (true, DType::Bf16 | DType::F16) => {
            let sizes_of_width =
                |width| TIMES.map(|[batch, time, query, key_value]| [batch, time, width, query, key_value]);
            [32, 64, 96, 128].into_iter().flat_map(sizes_of_width).chain(PADDED_SIZES).collect()
        }
        (true, _) => SIZES.into_iter().chain(WIDE_SIZES).collect(),
    };
    sizes.into_iter().map(Size::new).collect()
}
