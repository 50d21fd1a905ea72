//! Mean squared error.

use device::parallel::{CHUNK, for_pieces, map, simd};
use device::{Backend, Category, DType, Family, Function, Request};

use super::elementwise::{self, Each};
use super::kernels::family;
use super::math::sum2_f64;
use super::{check, gpu, rows};
use crate::{Result, Tensor};

/// Elements per partial sum on a GPU.
const GPU_CHUNK: u32 = 8192;

pub(super) static FAMILY: Family = family!(
    "mse",
    headers: ["elementwise.cuh"],
    constants: &[gpu::THREADS_CONSTANT, elementwise::UNROLL_CONSTANT, ("CHUNK", GPU_CHUNK)],
);

/// Returns the number of partial sums of `elements` elements on a GPU.
fn chunks(elements: usize) -> usize {
    elements.div_ceil(GPU_CHUNK as usize)
}

/// Computes scale · mean of (prediction − target)², a scalar f32. The operands have one shape and are both
/// f32 or both bf16.
///
/// # Errors
/// Shapes or types that do not agree, no element, out of memory.
pub fn forward(prediction: &Tensor, target: &Tensor, scale: f32) -> Result<Tensor> {
    const OPERATOR: &str = "mse.forward";
    check_operands(OPERATOR, prediction, target)?;
    let device = prediction.device();
    let count = prediction.elements();
    let loss = Tensor::empty(device, [], DType::F32, Request::new(Category::Activation, OPERATOR))?;
    // One f64 per partial sum.
    let workspace = Tensor::workspace(device, OPERATOR, 8 * chunks(count))?;
    match device.backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let total = total_on_host(&prediction.values()?, &target.values()?);
            loss.set(&[(f64::from(scale) * total / count as f64) as f32])?;
        }
        Backend::Cuda => forward_on_gpu(OPERATOR, [prediction, target], &workspace, scale, &loss)?,
    }
    Ok(loss)
}

/// Computes the gradient of [`forward`]'s result with respect to `prediction`: 2 · scale · (prediction −
/// target) / elements.
pub fn backward(prediction: &Tensor, target: &Tensor, scale: f32) -> Result<Tensor> {
    backward_scaled(prediction, target, scale, None)
}

/// Computes [`backward`] times `factor`, a scalar f32 on the device, rounded once.
pub fn backward_scaled(
    prediction: &Tensor,
    target: &Tensor,
    scale: f32,
    factor: Option<&Tensor>,
) -> Result<Tensor> {
    const OPERATOR: &str = "mse.backward";
    let dtype = check_operands(OPERATOR, prediction, target)?;
    if let Some(factor) = factor {
        check::f32s(OPERATOR, &[("factor", factor)])?;
        check::elements(OPERATOR, "factor", factor, 1)?;
    }
    let gradient = prediction.like(dtype, Request::new(Category::ActivationGradient, OPERATOR))?;
    let number = (2.0 * f64::from(scale) / prediction.elements() as f64) as f32;
    match prediction.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let mut number = number;
            if let Some(factor) = factor {
                number *= factor.values()?[0];
            }
            let prediction = prediction.values()?;
            let target = target.values()?;
            differences_on_host(&prediction, &target, number, &mut gradient.values_mut()?);
        }
        Backend::Cuda => {
            let name = if factor.is_some() { "backward_scaled" } else { "backward" };
            let kernel = Function::new(&FAMILY, name).with_dtype(dtype);
            let read: Vec<&Tensor> = [prediction, target].into_iter().chain(factor).collect();
            Each { kernel, read: &read, write: &gradient, updates: false, number: Some(number) }.launch()?;
        }
    }
    Ok(gradient)
}

fn total_on_host(a: &[f32], b: &[f32]) -> f64 {
    let partial = map(a.len().div_ceil(CHUNK), |index| {
        let a = rows::piece(a, index, CHUNK);
        let b = rows::piece(b, index, CHUNK);
        simd(
            #[inline(always)]
            || sum2_f64(a, b, |a, b| (a - b) * (a - b)),
        )
    });
    partial.iter().sum()
}

fn differences_on_host(a: &[f32], b: &[f32], factor: f32, out: &mut [f32]) {
    for_pieces(out, CHUNK, |index, out| {
        let a = rows::piece(a, index, CHUNK);
        let b = rows::piece(b, index, CHUNK);
        simd(|| {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = factor * (a - b);
            }
        });
    });
}

/// Launches the kernels of `kernels/mse.cu`.
fn forward_on_gpu(
    operator: &'static str,
    operands: [&Tensor; 2],
    workspace: &Tensor,
    scale: f32,
    loss: &Tensor,
) -> Result<()> {
    let device = loss.device();
    let count = operands[0].elements();
    let chunks = gpu::word(operator, chunks(count))?;
    let kernel = Function::new(&FAMILY, "chunks").with_dtype(operands[0].dtype());
    let launch = device.kernel(kernel).read(operands[0]).read(operands[1]).write(workspace).u64(count as u64);
    launch.cost(gpu::bytes(&operands), 3 * count as u64).launch([chunks, 1, 1], gpu::THREADS)?;
    let launch = device.kernel(Function::new(&FAMILY, "mean")).read(workspace).write(loss);
    let launch = launch.u32(chunks).u64(count as u64).f32(scale);
    Ok(launch.cost(workspace.bytes() as u64, u64::from(chunks)).launch([1, 1, 1], gpu::THREADS)?)
}

fn check_operands(operator: &'static str, prediction: &Tensor, target: &Tensor) -> Result<DType> {
    let dtype = check::computed(operator, &[("prediction", prediction), ("target", target)])?;
    check::shape(operator, "target", target, prediction.shape())?;
    check::not_empty(operator, "prediction", prediction)?;
    Ok(dtype)
}
