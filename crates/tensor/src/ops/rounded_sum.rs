//! Sums of several tensors in a fixed binary tree, plus a bias, rounded once.

use device::parallel::{for_pieces, simd};
use device::{Backend, DType, Family, Float, Function, Request, StreamKind, dispatch};

use super::kernels::family;
use super::{check, gpu, rows};
use crate::{Result, Tensor};

pub(super) static FAMILY: Family = family!("rounded_sum", constants: &[gpu::THREADS_CONSTANT]);

const OPERATOR: &str = "rounded_sum";
/// Number of tensors that one kernel adds: a power of two, so that they form a complete subtree.
pub const PARTS: usize = 8;
/// Elements that the host adds before the next ones, so that they stay in the L1 cache.
const SPAN: usize = 512;
/// Elements that a thread of the kernel adds at once if addresses are aligned.
const VECTOR: usize = 4;

/// Returns the sum of one or more `parts [.., width]`, f32, plus `bias [width]` of type `dtype`, if present,
/// rounded to `dtype`. Neighbours are added in pairs, then their sums in pairs, level by level. With `dtype`
/// f32, one part and no bias, the part itself is returned.
///
/// # Errors
/// No part, shapes or types that do not agree, out of memory.
pub fn forward(parts: &[Tensor], bias: Option<&Tensor>, dtype: DType, request: Request) -> Result<Tensor> {
    let (first, others) = check::first(OPERATOR, "parts", parts)?;
    if dtype == DType::F32 && bias.is_none() && others.is_empty() {
        check::f32s(OPERATOR, &[("parts", first)])?;
        return Ok(first.clone());
    }
    if parts.len() > PARTS {
        let subtree = |parts: &[Tensor]| forward(parts, None, DType::F32, request);
        let subtrees = parts.chunks(PARTS).map(subtree).collect::<Result<Vec<_>>>()?;
        return forward(&subtrees, bias, dtype, request);
    }
    let output = first.like(dtype, request)?;
    into_on(parts, bias, &output, StreamKind::Compute)?;
    Ok(output)
}

/// Computes [`forward`] for up to eight parts into `output`, rounded to its type, on the stream `stream`.
///
/// # Errors
/// No part or more than eight, shapes or types that do not agree.
pub fn into_on(parts: &[Tensor], bias: Option<&Tensor>, output: &Tensor, stream: StreamKind) -> Result<()> {
    let (first, _) = check::first(OPERATOR, "parts", parts)?;
    check::count(OPERATOR, parts.len().max(PARTS), PARTS)?;
    for part in parts {
        check::f32s(OPERATOR, &[("parts", part)])?;
        check::shape(OPERATOR, "parts", part, output.shape())?;
    }
    if let Some(bias) = bias {
        check::dtype(OPERATOR, "bias", bias, output.dtype())?;
        check::shape(OPERATOR, "bias", bias, [first.shape().columns()])?;
    }
    match first.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let width = first.shape().columns();
            let parts = parts.iter().map(Tensor::values).collect::<Result<Vec<_>>>()?;
            let parts: Vec<&[f32]> = parts.iter().map(|part| &**part).collect();
            let bias = bias.map(Tensor::values).transpose()?;
            dispatch!(
                output.dtype(),
                T => on_host::<T>(&parts, bias.as_deref(), &mut output.write()?, width),
                _ => return Err(check::unsupported(OPERATOR, "output", output)),
            );
        }
        Backend::Cuda => on_gpu(parts, bias, output, stream)?,
    }
    Ok(())
}

fn on_gpu(parts: &[Tensor], bias: Option<&Tensor>, output: &Tensor, stream: StreamKind) -> Result<()> {
    let width = output.shape().columns();
    let elements = output.elements();
    let arrays: Vec<&Tensor> = parts.iter().chain(bias).chain([output]).collect();
    let vector = width.is_multiple_of(VECTOR) && gpu::aligned(&arrays);
    let kernel =
        output.device().kernel(Function::new(&FAMILY, "rounded_sum").with_dtype(output.dtype())).on(stream);
    let launch = (0..PARTS).fold(kernel, |launch, part| launch.read(parts.get(part)));
    let launch = launch.u32(gpu::word(OPERATOR, parts.len())?).read(bias);
    let each = if vector { VECTOR } else { 1 };
    let blocks = elements.div_ceil(gpu::THREADS as usize * each);
    launch
        .write(output)
        .u64(elements as u64)
        .u32(gpu::word(OPERATOR, width)?)
        .u32(u32::from(vector))
        .cost(gpu::bytes(&arrays), (elements * parts.len()) as u64)
        .launch([gpu::word(OPERATOR, blocks)?, 1, 1], gpu::THREADS)?;
    Ok(())
}

fn on_host<T: Float>(parts: &[&[f32]], bias: Option<&[f32]>, out: &mut [T], width: usize) {
    let per_task = rows::per_task(width) * width;
    for_pieces(out, per_task, |index, out| {
        let parts: Vec<&[f32]> = parts.iter().map(|part| rows::piece(part, index, per_task)).collect();
        simd(|| {
            let mut sums = [[0.0; SPAN]; PARTS];
            for (piece, out) in out.chunks_mut(SPAN).enumerate() {
                let sum = tree(&parts, piece * SPAN, out.len(), &mut sums);
                match bias {
                    Some(bias) => {
                        let bias = bias.iter().cycle().skip(piece * SPAN % width);
                        let pairs = out.iter_mut().zip(sum).zip(bias);
                        pairs.for_each(|((out, sum), bias)| *out = T::from_f32(sum + bias));
                    }
                    None => out.iter_mut().zip(sum).for_each(|(out, sum)| *out = T::from_f32(*sum)),
                }
            }
        });
    });
}

/// Returns the sum of `count` elements of all parts from `first` on, computed in `sums`.
fn tree<'a>(parts: &[&[f32]], first: usize, count: usize, sums: &'a mut [[f32; SPAN]; PARTS]) -> &'a [f32] {
    for (sum, part) in sums.iter_mut().zip(parts) {
        sum[..count].copy_from_slice(&part[first..first + count]);
    }
    let mut length = parts.len();
    while length > 1 {
        for pair in 0..length / 2 {
            let (left, right) = sums.split_at_mut(2 * pair + 1);
            left[2 * pair][..count].iter_mut().zip(&right[0]).for_each(|(sum, other)| *sum += other);
            sums.swap(pair, 2 * pair);
        }
        if length % 2 == 1 {
            sums.swap(length / 2, length - 1);
        }
        length = length.div_ceil(2);
    }
    &sums[0][..count]
}
