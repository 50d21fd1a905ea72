//! Sums of several tensors, added as a balanced binary tree.

use device::{Backend, DType, Family, Function, StreamKind};

use super::kernels::family;
use super::{add, check, gpu};
use crate::{Result, Tensor};

/// Threads of a block of the kernels.
pub const THREADS: u32 = 512;
/// Loads of 16 bytes that a thread has in flight.
const LOADS: u32 = 16;
/// Most parts of [`any_kernel`], and so most ranks that share a GPU.
pub const MOST_PARTS: usize = 64;
/// Levels of the tree over that many parts, with the parts themselves.
const LEVELS: u32 = MOST_PARTS.ilog2() + 1;

/// `kernels/tree.cu`.
pub(super) static FAMILY: Family = family!(
    "tree",
    constants: &[
        ("THREADS", THREADS), ("LOADS", LOADS), ("MOST_PARTS", MOST_PARTS as u32), ("LEVELS", LEVELS)
    ]
);

/// Returns the kernel that adds `parts` tensors of a type; `None` if there is none.
pub fn kernel(dtype: DType, parts: usize) -> Option<Function> {
    let name = match parts {
        2 => "tree_2",
        4 => "tree_4",
        8 => "tree_8",
        _ => return None,
    };
    check::DTYPES.contains(&dtype).then(|| Function::new(&FAMILY, name).of(dtype))
}

/// Returns the kernel that adds any number of parts of a type, up to [`MOST_PARTS`], at any addresses of
/// their elements; `None` if there is none. Parameters: the addresses of the parts, their number (u32), the
/// destination, and the number of elements (u64).
pub fn any_kernel(dtype: DType) -> Option<Function> {
    check::DTYPES.contains(&dtype).then(|| Function::new(&FAMILY, "tree_any").of(dtype))
}

/// Blocks of a launch of [`any_kernel`] over `elements` elements, at most `most`.
pub fn any_blocks(elements: usize, most: u32) -> u32 {
    elements.div_ceil(THREADS as usize).clamp(1, 8 * most.max(1) as usize) as u32
}

/// Blocks of a launch of [`kernel`] over `vectors` vectors of 16 bytes per part, at most `most`.
pub fn blocks(vectors: usize, parts: usize, most: u32) -> u32 {
    let block = (THREADS * LOADS) as usize / parts.max(1);
    vectors.div_ceil(block).clamp(1, most.max(1) as usize) as u32
}

/// target = the sum of parts, added as a balanced binary tree in their order and rounded to their type at
/// every node, on a chosen stream. Parts have one shape and do not overlap, all f32 or all bf16; the target
/// is one of them, or apart. The parts may be overwritten. Errors: no parts, shapes or types that do not
/// agree.
pub fn into_on(target: &Tensor, parts: &[Tensor], stream: StreamKind) -> Result<()> {
    const OPERATOR: &str = "tree.into";
    let Some(first) = parts.first() else {
        return Err(check::wrong(OPERATOR, "target", target, "parts to be the sum of".to_owned()));
    };
    for part in parts {
        check::computed(OPERATOR, &[("target", target), ("part", part)])?;
        check::shape(OPERATOR, "part", part, target.shape())?;
    }
    if target.device().backend() == Backend::Cuda && on_gpu(target, parts, stream)? {
        return Ok(());
    }
    let mut stride = 1;
    while stride < parts.len() {
        for left in (0..parts.len() - stride).step_by(2 * stride) {
            add::into_on(&parts[left], &parts[left + stride], stream)?;
        }
        stride *= 2;
    }
    if first.region().offset == target.region().offset && first.shares_storage(target) {
        return Ok(());
    }
    target.copy_from_on(first, stream)
}

/// Adds all parts in one pass if a kernel for their number exists and they are aligned for its accesses;
/// returns whether it did.
fn on_gpu(target: &Tensor, parts: &[Tensor], stream: StreamKind) -> Result<bool> {
    let all: Vec<&Tensor> = parts.iter().chain([target]).collect();
    let whole = target.elements().is_multiple_of(gpu::lanes(target.dtype()));
    let function = kernel(target.dtype(), parts.len()).filter(|_| whole && gpu::aligned(&all));
    let Some(function) = function else { return Ok(false) };
    let vectors = target.elements() / gpu::lanes(target.dtype());
    let blocks = blocks(vectors, parts.len(), target.device().description().multiprocessors);
    let mut launch = target.device().kernel(function).on(stream);
    for part in parts {
        launch = launch.read(part.region());
    }
    // The last argument, 0: the result goes to the target only, not into every part.
    launch = launch.write(target.region()).u64(vectors as u64).u32(0);
    launch = launch.cost(gpu::bytes(&all), (target.elements() * (parts.len() - 1)) as u64);
    launch.launch([blocks, 1, 1], THREADS)?;
    Ok(true)
}
