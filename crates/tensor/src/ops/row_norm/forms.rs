//! Variants of the kernels of `kernels/held_rows.cuh`.

use device::DType;

use crate::ops::gpu;

/// A variant of the kernels: how many vectors of a row a group of threads holds in registers.
pub(super) struct Form {
    vectors: usize,
    pub(super) rows_per_block: usize,
    pub(super) forward: &'static str,
    pub(super) backward: &'static str,
}

macro_rules! form {
    ($location:literal, $group:literal, $held:literal) => {
        Form {
            vectors: $group * $held,
            rows_per_block: gpu::THREADS as usize / $group,
            forward: concat!("forward_", $location, $held),
            backward: concat!("backward_", $location, $held),
        }
    };
}

/// The variants, narrowest first.
static FORMS: [Form; 7] = [
    form!("warp", 32, 1),
    form!("warp", 32, 2),
    form!("warp", 32, 4),
    form!("warp", 32, 8),
    form!("block", 256, 2),
    form!("block", 256, 4),
    form!("block", 256, 8),
];
/// The widest variant, for f32 only.
static WIDEST: Form = form!("block", 256, 16);
/// The variant for rows of any width and alignment.
static ANY: Form =
    Form { vectors: usize::MAX, rows_per_block: 1, forward: "forward_any", backward: "backward_any" };

/// Returns the variant for rows of `width` elements of `dtype`. With `block_per_row`, only variants that
/// compute a row with a whole block are considered.
pub(super) fn form(width: usize, dtype: DType, aligned: bool, block_per_row: bool) -> &'static Form {
    let lanes = gpu::lanes(dtype);
    if !aligned || !width.is_multiple_of(lanes) {
        return &ANY;
    }
    let widest = (dtype == DType::F32).then_some(&WIDEST);
    let fits = |form: &&Form| width / lanes <= form.vectors && (!block_per_row || form.rows_per_block == 1);
    FORMS.iter().chain(widest).find(fits).unwrap_or(&ANY)
}
