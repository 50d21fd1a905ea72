//! Random operands, comparisons, and gradients by finite differences.

use device::{Category, Device, DeviceOptions, Request};
use tensor::ops::GradientTarget;
use tensor::{Element, Tensor};

/// Where results are compared with f64 code: relative Euclidean norm of the difference.
pub(crate) const TOLERANCE: f64 = 1e-5;

/// A CPU device whose free memory holds NaN, so that an output that is not wholly written is found.
pub(crate) fn cpu() -> Device {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let poison = |elements: usize| {
        let request = Request::new(Category::Other, "poison");
        let tensor = Tensor::empty(&device, [elements], tensor::DType::F32, request).unwrap();
        tensor.set(&vec![f32::NAN; elements]).unwrap();
        tensor
    };
    // Two fill a segment of the small pool, one a segment of the large pool.
    drop([poison(1 << 18), poison(1 << 18), poison(5 << 20)]);
    device
}

/// Standard normal values that are a function of `name` and their index.
pub(crate) fn normal(name: &str, count: usize) -> Vec<f32> {
    let key = philox::key_of_name(20, name);
    let blocks =
        (0..count.div_ceil(4) as u32).flat_map(|i| philox::normals(philox::philox4x32(key, [i, 0, 0, 0])));
    blocks.take(count).collect()
}

/// Indices below `limit`.
pub(crate) fn indices(name: &str, count: usize, limit: usize) -> Vec<u32> {
    let key = philox::key_of_name(21, name);
    (0..count as u32).map(|i| philox::philox4x32(key, [i, 0, 0, 0])[0] % limit as u32).collect()
}

pub(crate) fn tensor<T: Element, const N: usize>(device: &Device, values: &[T], shape: [usize; N]) -> Tensor {
    Tensor::from_host(device, values, shape, Category::Input).unwrap()
}

/// A tensor of [`normal`] values and those values.
pub(crate) fn operand<const N: usize>(device: &Device, name: &str, shape: [usize; N]) -> (Tensor, Vec<f64>) {
    let values = normal(name, shape.iter().product());
    (tensor(device, &values, shape), wide(&values))
}

pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

pub(crate) fn read(tensor: &Tensor) -> Vec<f64> {
    wide(&tensor.to_vec::<f32>().unwrap())
}

pub(crate) fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec::<f32>().unwrap().iter().map(|v| v.to_bits()).collect()
}

/// Asserts that `found` is `expected` within [`TOLERANCE`].
pub(crate) fn close(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let size = norm(&mut expected.iter().copied());
    let error = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    assert!(error <= TOLERANCE * size.max(1e-3), "{what}: off by {error:e} of {size:e}");
}

/// A gradient target of these values; NaN where it is to be overwritten.
pub(crate) fn target<const N: usize>(
    device: &Device,
    name: &str,
    shape: [usize; N],
    accumulate: bool,
) -> GradientTarget {
    let count = shape.iter().product();
    let values = if accumulate { normal(name, count) } else { vec![f32::NAN; count] };
    GradientTarget { tensor: tensor(device, &values, shape), accumulate }
}

/// What was added to a target of [`target`]`(name, …)`.
pub(crate) fn added(target: &GradientTarget, name: &str) -> Vec<f64> {
    let found = read(&target.tensor);
    let before = if target.accumulate { wide(&normal(name, found.len())) } else { vec![0.0; found.len()] };
    found.iter().zip(before).map(|(found, before)| found - before).collect()
}

/// Asserts that `gradient` is that of `function` at `point`, by central differences: along every axis for few
/// elements, else along random directions.
pub(crate) fn is_gradient(what: &str, gradient: &[f64], point: &[f64], function: impl Fn(&[f64]) -> f64) {
    const STEP: f64 = 1e-4;
    assert_eq!(gradient.len(), point.len(), "{what}");
    let count = if point.len() <= 128 { point.len() } else { 12 };
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    for number in 0..count {
        let direction = if count == point.len() {
            (0..count).map(|axis| f64::from(u8::from(axis == number))).collect()
        } else {
            wide(&normal(&format!("direction {number}"), point.len()))
        };
        let at = |step: f64| {
            function(&point.iter().zip(&direction).map(|(p, d)| p + step * d).collect::<Vec<_>>())
        };
        // Fourth order, so that the step may be large enough for rounding not to matter.
        let (near, far) = (at(STEP) - at(-STEP), at(2.0 * STEP) - at(-2.0 * STEP));
        expected.push((8.0 * near - far) / (12.0 * STEP));
        found.push(gradient.iter().zip(&direction).map(|(g, d)| g * d).sum());
    }
    close(what, &found, &expected);
}

/// Σ weights · values: a scalar function of an output whose gradient by the output is `weights`.
pub(crate) fn dot(weights: &[f64], values: &[f64]) -> f64 {
    weights.iter().zip(values).map(|(w, v)| w * v).sum()
}
