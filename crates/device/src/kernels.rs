//! The kernel families, embedded: the one list of what is compiled at start.

use crate::DType;

/// `kernels/<name>.cu`: kernels of one subject.
#[derive(Debug)]
pub struct Family {
    /// The file's name without its ending.
    pub name: &'static str,
    /// The file's text.
    pub source: &'static str,
    /// The sets of definitions that it is compiled with; most families have one empty set.
    pub variants: &'static [&'static [(&'static str, u32)]],
}

/// `kernels/common.cuh`, which every family may include.
pub(crate) const COMMON: &str = include_str!("../../../kernels/common.cuh");

/// A kernel: which family, compiled how, and its name there.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// The family.
    pub family: &'static Family,
    /// Index into the family's variants.
    pub variant: usize,
    /// The kernel's name.
    pub name: &'static str,
}

impl Function {
    /// A kernel of a family's first variant.
    pub const fn new(family: &'static Family, name: &'static str) -> Self {
        Function { family, variant: 0, name }
    }

    /// The same kernel in another variant.
    pub const fn variant(self, index: usize) -> Self {
        Function { variant: index, ..self }
    }
}

macro_rules! family {
    ($($(#[$doc:meta])* $constant:ident = $name:literal;)*) => {
        $($(#[$doc])* pub static $constant: Family = Family {
            name: $name,
            source: include_str!(concat!("../../../kernels/", $name, ".cu")),
            variants: &[&[]],
        };)*
    };
}

family! {
    /// Fill, scale, add, cast, activations, the gradient of a mean square.
    ELEMENTWISE = "elementwise";
    /// Layer normalisation of rows.
    LAYER_NORM = "layer_norm";
    /// Sums over the rows of a matrix.
    COLUMNS = "columns";
    /// Softmax cross-entropy with its gradient.
    CROSS_ENTROPY = "cross_entropy";
    /// Token and position embedding.
    EMBEDDING = "embedding";
    /// The mean of squared differences.
    MSE = "mse";
    /// AdamW and SGD over all parameters.
    OPTIMIZER = "optimizer";
    /// The norm of all gradients.
    NORM = "norm";
    /// Sums over ranks, of parts that a GPU has or reaches.
    TREE = "tree";
}

/// Threads of a block of [`TREE`]'s kernels,
pub const TREE_THREADS: u32 = 512;
/// and the vectors of 16 bytes that each of them has in flight.
const TREE_LOADS: usize = 16;

/// The kernel of [`TREE`] that adds so many parts of a type, where there is one.
pub fn tree(dtype: DType, parts: usize) -> Option<Function> {
    let name = match (dtype, parts) {
        (DType::F32, 2) => "tree_f32_2",
        (DType::F32, 4) => "tree_f32_4",
        (DType::F32, 8) => "tree_f32_8",
        (DType::Bf16, 2) => "tree_bf16_2",
        (DType::Bf16, 4) => "tree_bf16_4",
        (DType::Bf16, 8) => "tree_bf16_8",
        _ => return None,
    };
    Some(Function::new(&TREE, name))
}

/// Blocks of a kernel of [`TREE`] for parts of so many vectors of 16 bytes: at most `most`, which is what they fill.
pub fn tree_blocks(vectors: usize, parts: usize, most: u32) -> u32 {
    let block = TREE_THREADS as usize * TREE_LOADS / parts.max(1);
    vectors.div_ceil(block).clamp(1, most.max(1) as usize) as u32
}

/// Attention in bf16 on tensor cores of any kind, for heads of each of these widths.
pub static ATTENTION: Family = Family {
    name: "attention",
    source: include_str!("../../../kernels/attention.cu"),
    variants: &[&[("HEAD_DIM", 32)], &[("HEAD_DIM", 64)], &[("HEAD_DIM", 128)]],
};

/// Attention in f32, for head widths up to each of these.
pub static ATTENTION_F32: Family = Family {
    name: "attention_f32",
    source: include_str!("../../../kernels/attention_f32.cu"),
    variants: &[&[("HEAD_DIM", 32)], &[("HEAD_DIM", 64)], &[("HEAD_DIM", 128)], &[("HEAD_DIM", 256)]],
};

/// Forward attention in bf16 with Hopper's own products; empty for other architectures.
pub static ATTENTION_HOPPER_FORWARD: Family = Family {
    name: "attention_hopper_forward",
    source: concat!(
        include_str!("../../../kernels/attention_hopper.cuh"),
        include_str!("../../../kernels/attention_hopper_forward.cu")
    ),
    variants: &[&[("HEAD_DIM", 64), ("CONSUMERS", 2)], &[("HEAD_DIM", 128), ("CONSUMERS", 2)]],
};

/// Backward attention in bf16 with Hopper's own products; empty for other architectures.
pub static ATTENTION_HOPPER_BACKWARD: Family = Family {
    name: "attention_hopper_backward",
    source: concat!(
        include_str!("../../../kernels/attention_hopper.cuh"),
        include_str!("../../../kernels/attention_hopper_backward.cu")
    ),
    variants: &[&[("HEAD_DIM", 64), ("CONSUMERS", 3)], &[("HEAD_DIM", 128), ("CONSUMERS", 2)]],
};

/// Every family.
pub static ALL: &[&Family] = &[
    &ELEMENTWISE,
    &LAYER_NORM,
    &COLUMNS,
    &CROSS_ENTROPY,
    &EMBEDDING,
    &MSE,
    &OPTIMIZER,
    &NORM,
    &TREE,
    &ATTENTION,
    &ATTENTION_F32,
    &ATTENTION_HOPPER_FORWARD,
    &ATTENTION_HOPPER_BACKWARD,
];
