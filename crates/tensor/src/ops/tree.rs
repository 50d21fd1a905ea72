//! Sums of several tensors, added as a binary tree.

mod order;

use device::cuda::Launch;
use device::{Backend, DType, Family, Function, StreamKind};

use super::kernels::family;
use super::{add, check, gpu};
use crate::{Result, Tensor};
pub use order::{SumTree, joins, subtrees};

/// Threads of a block of the kernels.
pub const THREADS: u32 = 512;
/// Loads of 16 bytes that a thread has in flight.
const LOADS: u32 = 16;
/// Most parts that a kernel adds.
pub const MOST_PARTS: usize = 16;
/// Most sums that wait for their right sibling in that kernel.
const MOST_DEPTH: usize = 8;
/// Bits of a part's number of joins in that kernel's word for the order.
const JOIN_BITS: usize = u64::BITS as usize / MOST_PARTS;

/// `kernels/tree.cu`.
pub(super) static FAMILY: Family = family!("tree", constants: &[
    ("THREADS", THREADS),
    ("LOADS", LOADS),
    ("MOST_PARTS", MOST_PARTS as u32),
    ("MOST_DEPTH", MOST_DEPTH as u32),
    ("JOIN_BITS", JOIN_BITS as u32),
]);

/// A kernel that adds parts in the order of a tree.
#[derive(Clone, Debug)]
pub struct TreeKernel {
    function: Function,
    parts: usize,
    /// The order of the kernel that adds in any; `None` for a kernel of one order.
    order: Option<u64>,
}

impl TreeKernel {
    /// Returns the kernel that adds parts of a type in this order; `None` if there is none.
    #[must_use]
    pub fn of(dtype: DType, tree: &SumTree) -> Option<Self> {
        let parts = tree.parts();
        let (name, order) = match parts {
            2 if tree.is_balanced() => ("tree_2", None),
            4 if tree.is_balanced() => ("tree_4", None),
            8 if tree.is_balanced() => ("tree_8", None),
            1..=MOST_PARTS if tree.depth() <= MOST_DEPTH => ("tree_any", Some(packed(tree))),
            _ => return None,
        };
        let function = Function::new(&FAMILY, name).of(dtype);
        check::DTYPES.contains(&dtype).then_some(TreeKernel { function, parts, order })
    }

    /// The kernel. Its parameters are each part's values, which `launch` adds, and those of
    /// [`TreeKernel::finish`].
    #[must_use]
    pub fn function(&self) -> Function {
        self.function
    }

    /// Adds the parameters after the parts: `own` adds the destination of the sum; `vectors` is the number of
    /// 16-byte vectors. If `targets` is not 0, the sum is written over the parts whose bits it has, which are
    /// all for a balanced tree, instead of to the destination.
    pub fn finish<'a>(
        &self,
        launch: Launch<'a>,
        own: impl FnOnce(Launch<'a>) -> Launch<'a>,
        vectors: u64,
        targets: u32,
    ) -> Launch<'a> {
        match self.order {
            None => own(launch).u64(vectors).u32(u32::from(targets != 0)),
            Some(order) => {
                let launch = (self.parts..MOST_PARTS).fold(launch, |launch, _| launch.null());
                own(launch).u64(vectors).u32(targets).u32(self.parts as u32).u64(order)
            }
        }
    }
}

/// Returns the joins of each part, in [`JOIN_BITS`] bits each.
fn packed(tree: &SumTree) -> u64 {
    let joins = tree.joins().iter().enumerate();
    joins.fold(0, |order, (part, joins)| order | u64::from(*joins) << (JOIN_BITS * part))
}

/// Blocks of a launch of a [`TreeKernel`] over `vectors` vectors of 16 bytes per part, at most `most`.
pub fn blocks(vectors: usize, parts: usize, most: u32) -> u32 {
    let block = (THREADS * LOADS) as usize / parts.max(1);
    vectors.div_ceil(block).clamp(1, most.max(1) as usize) as u32
}

/// target = the sum of parts, added in the order of `tree` and rounded to their type at every node, on a
/// chosen stream. Parts have one shape and do not overlap, all f32 or all bf16; the target is one of them, or
/// apart. The parts may be overwritten. Errors: no parts, another number than the tree's, shapes or types
/// that do not agree.
pub fn into_on(target: &Tensor, parts: &[Tensor], tree: &SumTree, stream: StreamKind) -> Result<()> {
    const OPERATOR: &str = "tree.into";
    let Some(first) = parts.first().filter(|_| parts.len() == tree.parts()) else {
        let expected = format!("{} parts to be the sum of, and not {}", tree.parts(), parts.len());
        return Err(check::wrong(OPERATOR, "target", target, expected));
    };
    for part in parts {
        check::computed(OPERATOR, &[("target", target), ("part", part)])?;
        check::shape(OPERATOR, "part", part, target.shape())?;
    }
    if target.device().backend() == Backend::Cuda && on_gpu(target, parts, tree, stream)? {
        return Ok(());
    }
    for (left, right) in tree.additions() {
        add::into_on(&parts[left], &parts[right], stream)?;
    }
    if first.region().offset == target.region().offset && first.shares_storage(target) {
        return Ok(());
    }
    target.copy_from_on(first, stream)
}

/// Adds all parts in one pass if a kernel for their order exists and they are aligned for its accesses;
/// returns whether it did.
fn on_gpu(target: &Tensor, parts: &[Tensor], tree: &SumTree, stream: StreamKind) -> Result<bool> {
    let all: Vec<&Tensor> = parts.iter().chain([target]).collect();
    let whole = target.elements().is_multiple_of(gpu::lanes(target.dtype()));
    let kernel = TreeKernel::of(target.dtype(), tree);
    let Some(kernel) = kernel.filter(|_| parts.len() > 1 && whole && gpu::aligned(&all)) else {
        return Ok(false);
    };
    let vectors = target.elements() / gpu::lanes(target.dtype());
    let blocks = blocks(vectors, parts.len(), target.device().description().multiprocessors);
    let mut launch = target.device().kernel(kernel.function()).on(stream);
    for part in parts {
        launch = launch.read(part.region());
    }
    // The result goes to the target only, not into every part.
    let launch = kernel.finish(launch, |launch| launch.write(target.region()), vectors as u64, 0);
    let launch = launch.cost(gpu::bytes(&all), (target.elements() * (parts.len() - 1)) as u64);
    launch.launch([blocks, 1, 1], THREADS)?;
    Ok(true)
}
