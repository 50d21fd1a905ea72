//! Sums of several tensors in the order of a binary tree.

mod order;
mod spaced;

use device::cuda::Launch;
use device::{Backend, DType, Family, Function, StreamKind};

use super::kernels::family;
use super::{add, check, gpu};
use crate::{Result, Tensor};
use order::{JOIN_BITS, PARTS_PER_WORD};
pub use order::{SumTree, joins, subtrees};
pub(super) use spaced::FAMILY as SPACED_FAMILY;

/// Threads of a block of the kernels.
pub const THREADS: u32 = 512;
/// 16-byte loads that a thread has in flight.
const LOADS: u32 = 16;
/// Maximum number of tensors that a kernel adds, and so of ranks that share a GPU.
pub const MOST_PARTS: usize = 64;
/// Maximum number of partial sums that a kernel for any order holds at once.
const MOST_DEPTH: usize = 8;
/// Number of words that encode the order for that kernel.
const WORDS: usize = MOST_PARTS / PARTS_PER_WORD;

pub(super) static FAMILY: Family = family!("tree", headers: ["tree.cuh"], constants: &[
    ("THREADS", THREADS),
    ("LOADS", LOADS),
    ("MOST_PARTS", MOST_PARTS as u32),
    ("MOST_DEPTH", MOST_DEPTH as u32),
    ("JOIN_BITS", JOIN_BITS as u32),
]);

/// A kernel that adds tensors in the order of a tree.
#[derive(Clone, Debug)]
pub struct TreeKernel {
    function: Function,
    parts: usize,
    order: Order,
}

#[derive(Clone, Debug)]
enum Order {
    /// A balanced tree, compiled into the kernel.
    Balanced,
    /// Any tree, passed to the kernel as an argument; adds vectors, or single elements.
    Any { joins: [u64; WORDS], by_element: bool },
}

impl TreeKernel {
    /// Returns the kernel that adds tensors of a type in this order, by 16-byte vectors and with addresses
    /// aligned to 16 bytes; `None` if there is none.
    #[must_use]
    pub fn find(dtype: DType, tree: &SumTree) -> Option<Self> {
        let parts = tree.parts();
        let is_balanced = tree.is_balanced();
        let name = match parts {
            2 if is_balanced => "tree_2",
            4 if is_balanced => "tree_4",
            8 if is_balanced => "tree_8",
            _ => return Self::any(dtype, tree, false),
        };
        let function = Function::new(&FAMILY, name).with_dtype(dtype);
        check::DTYPES.contains(&dtype).then_some(TreeKernel { function, parts, order: Order::Balanced })
    }

    /// Returns the kernel that adds tensors of a type in this order element by element, without alignment;
    /// `None` if there is none.
    #[must_use]
    pub fn by_element(dtype: DType, tree: &SumTree) -> Option<Self> {
        Self::any(dtype, tree, true)
    }

    fn any(dtype: DType, tree: &SumTree, by_element: bool) -> Option<Self> {
        let parts = tree.parts();
        let fits = (1..=MOST_PARTS).contains(&parts) && tree.depth() <= MOST_DEPTH;
        let order = Order::Any { joins: tree.packed(), by_element };
        let function = Function::new(&FAMILY, "tree_any").with_dtype(dtype);
        (fits && check::DTYPES.contains(&dtype)).then_some(TreeKernel { function, parts, order })
    }

    /// Returns the kernel. Its parameters are the tensors to be summed, then the ones of
    /// [`TreeKernel::finish`].
    #[must_use]
    pub fn function(&self) -> Function {
        self.function
    }

    /// Adds the kernel's parameters after the tensors to be summed. `own` adds the destination. `count` is
    /// the number of 16-byte vectors, or of elements. If `targets` is not 0, the sum overwrites the tensors
    /// whose bits it has instead of the destination; for a balanced tree these are all of them.
    pub fn finish<'a>(
        &self,
        launch: Launch<'a>,
        own: impl FnOnce(Launch<'a>) -> Launch<'a>,
        count: u64,
        targets: u64,
    ) -> Launch<'a> {
        match self.order {
            Order::Balanced => own(launch).u64(count).u32(u32::from(targets != 0)),
            Order::Any { joins, by_element } => {
                let (vectors, elements) = if by_element { (0, count) } else { (count, 0) };
                let launch = own(launch.structure(self.parts, MOST_PARTS));
                let launch = launch.u64(vectors).u64(elements).u64(targets).u32(self.parts as u32);
                joins.into_iter().fold(launch, Launch::u64).structure(WORDS, WORDS)
            }
        }
    }
}

/// Returns the blocks of a launch of [`TreeKernel::by_element`] over `elements` elements, at most 8 · `most`.
pub fn element_blocks(elements: usize, most: u32) -> u32 {
    elements.div_ceil(THREADS as usize).clamp(1, 8 * most.max(1) as usize) as u32
}

/// Returns the blocks of a launch of a [`TreeKernel`] over `vectors` 16-byte vectors per part, at most
/// `most`.
pub fn blocks(vectors: usize, parts: usize, most: u32) -> u32 {
    let block = (THREADS * LOADS) as usize / parts.max(1);
    vectors.div_ceil(block).clamp(1, most.max(1) as usize) as u32
}

/// Computes target = the sum of `parts` on the stream `stream`, in the order of `tree`, rounded to their type
/// at every node. Parts have one shape, are all f32 or all bf16, and do not overlap. The target is one of
/// them or separate. Parts may be overwritten.
///
/// # Errors
/// No parts, another number than the tree's, shapes or types that do not agree.
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

/// Adds all parts in one launch, if a kernel for their order and addresses exists. Returns whether it did.
fn on_gpu(target: &Tensor, parts: &[Tensor], tree: &SumTree, stream: StreamKind) -> Result<bool> {
    let all: Vec<&Tensor> = parts.iter().chain([target]).collect();
    let dtype = target.dtype();
    let elements = target.elements();
    let by_vector = elements.is_multiple_of(gpu::lanes(dtype)) && gpu::aligned(&all);
    let kernel = if by_vector { TreeKernel::find(dtype, tree) } else { TreeKernel::by_element(dtype, tree) };
    if parts.len() < 2 {
        return Ok(false);
    }
    let Some(kernel) = kernel else { return spaced::add(target, parts, tree, stream) };
    let most = target.device().description().multiprocessors;
    let (count, blocks) = match by_vector {
        true => (elements / gpu::lanes(dtype), blocks(elements / gpu::lanes(dtype), parts.len(), most)),
        false => (elements, element_blocks(elements, most)),
    };
    let mut launch = target.device().kernel(kernel.function()).on(stream);
    for part in parts {
        launch = launch.read(part);
    }
    // The result goes to the target only, not into every part.
    let launch = kernel.finish(launch, |launch| launch.write(target), count as u64, 0);
    let launch = launch.cost(gpu::bytes(&all), (elements * (parts.len() - 1)) as u64);
    launch.launch([blocks, 1, 1], THREADS)?;
    Ok(true)
}
