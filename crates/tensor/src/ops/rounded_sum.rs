//! The end of a sum of partial results: a bias, and one rounding.

use device::parallel::{for_pieces, simd};
use device::{Backend, Category, DType, Family, Float, Function, Request, dispatch};

use super::kernels::family;
use super::{check, gpu, rows};
use crate::{Result, Tensor};

/// `kernels/rounded_sum.cu`.
pub(super) static FAMILY: Family = family!("rounded_sum", constants: &[gpu::THREADS_CONSTANT]);

/// Returns `sum [.., width]`, f32, plus `bias [width]` of type `dtype` where there is one, rounded to
/// `dtype`. A sum in f32 without a bias is the result itself.
///
/// # Errors
/// Shapes or types that do not agree, out of memory.
pub fn forward(sum: Tensor, bias: Option<&Tensor>, dtype: DType) -> Result<Tensor> {
    const OPERATOR: &str = "rounded_sum";
    check::f32s(OPERATOR, &[("sum", &sum)])?;
    let width = sum.shape().columns();
    if let Some(bias) = bias {
        check::dtype(OPERATOR, "bias", bias, dtype)?;
        check::shape(OPERATOR, "bias", bias, [width])?;
    }
    if dtype == DType::F32 && bias.is_none() {
        return Ok(sum);
    }
    let request = Request::new(Category::Activation, OPERATOR);
    let output = Tensor::empty(sum.device(), sum.shape(), dtype, request)?;
    match sum.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let bias = bias.map(Tensor::values).transpose()?;
            dispatch!(
                dtype,
                T => on_host::<T>(&sum.values()?, bias.as_deref(), &mut output.write()?, width),
                _ => return Err(check::unsupported(OPERATOR, "output", &output)),
            );
        }
        Backend::Cuda => {
            let launch = sum.device().kernel(Function::new(&FAMILY, "rounded_sum").of(dtype));
            let launch = launch.read(sum.region());
            let launch = match bias {
                Some(bias) => launch.read(bias.region()),
                None => launch.null(),
            };
            let (rows, columns) = (sum.shape().rows(), gpu::word(OPERATOR, width)?);
            let launch = launch.write(output.region()).u32(gpu::word(OPERATOR, rows)?).u32(columns);
            let launch = launch.cost(gpu::bytes(&[&sum, &output]), sum.elements() as u64);
            let blocks = gpu::word(OPERATOR, rows)?;
            launch.launch([blocks, 1, 1], gpu::THREADS)?;
        }
    }
    Ok(output)
}

fn on_host<T: Float>(sum: &[f32], bias: Option<&[f32]>, out: &mut [T], width: usize) {
    let per_task = rows::per_task(width) * width;
    for_pieces(out, per_task, |index, out| {
        let sum = rows::piece(sum, index, per_task);
        simd(|| {
            for (out, sum) in out.chunks_exact_mut(width).zip(sum.chunks_exact(width)) {
                match bias {
                    Some(bias) => {
                        let pairs = out.iter_mut().zip(sum).zip(bias);
                        pairs.for_each(|((out, sum), bias)| *out = T::from_f32(sum + bias));
                    }
                    None => out.iter_mut().zip(sum).for_each(|(out, sum)| *out = T::from_f32(*sum)),
                }
            }
        });
    });
}
