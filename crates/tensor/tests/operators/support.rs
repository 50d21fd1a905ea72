//! Devices, random operands, comparisons, and gradients by finite differences.

use std::sync::OnceLock;

use device::{Category, Description, Device, DeviceOptions, Float, Request, dispatch};
use rayon::prelude::*;
use tensor::ops::{DTYPES, GradientTarget};
use tensor::{DType, Element, Tensor};

/// Lengths of element-wise operands: one element, odd lengths, and several pieces.
pub(crate) const LENGTHS: [usize; 5] = [1, 33, 1000, 40_001, 65_536];
/// Tolerance of f32 results: the Euclidean norm of their difference from f64, relative to the norm of the f64
/// values.
pub(crate) const TOLERANCE: f64 = 1e-5;
/// [`TOLERANCE`] for half types, whose operands are rounded to the type beforehand.
const ROUGH: f64 = 1e-2;
/// Seed of operands on the host. Operands on a GPU have a fresh seed.
const SEED: u64 = 20;

/// A device and a type to run an operator in.
pub(crate) struct Case {
    pub(crate) device: Device,
    pub(crate) dtype: DType,
    seed: u64,
}

/// Returns a case for every device and compute type: the host, and the GPU, if present, with fresh operands.
pub(crate) fn devices() -> Vec<Case> {
    let on = |(device, seed): (Device, u64)| {
        DTYPES.iter().map(move |dtype| Case { device: device.clone(), dtype: *dtype, seed })
    };
    let gpu = gpu().map(|device| (device, fresh_seed()));
    [(cpu(), SEED)].into_iter().chain(gpu).flat_map(on).collect()
}

/// Returns the cases with half types.
pub(crate) fn half_precision() -> impl Iterator<Item = Case> {
    devices().into_iter().filter(|case| case.dtype != DType::F32)
}

/// Returns the first GPU, with free memory filled with NaN; `None`, with a report, if there is none.
pub(crate) fn gpu() -> Option<Device> {
    static AVAILABLE: OnceLock<Result<(), String>> = OnceLock::new();
    let availability =
        AVAILABLE.get_or_init(|| device::cuda::availability().map(drop).map_err(|why| why.to_string()));
    if let Err(why) = availability {
        system::skipped::report(system::skipped::Need::Gpu, why);
    }
    availability
        .is_ok()
        .then(|| poisoned(Device::cuda(0, 0, tensor::ops::FAMILIES, &DeviceOptions::default()).unwrap()))
}

/// Returns a CPU device whose free memory is filled with NaN, so that incompletely written outputs are
/// noticed.
pub(crate) fn cpu() -> Device {
    poisoned(Device::cpu(0, &DeviceOptions::default()).unwrap())
}

/// Returns a device that imitates `description`.
pub(crate) fn meta(description: &Description) -> Device {
    Device::meta(0, description.clone(), &DeviceOptions::default()).unwrap()
}

fn poisoned(device: Device) -> Device {
    let poison = |elements: usize| {
        let request = Request::new(Category::Other, "poison");
        let tensor = Tensor::empty(&device, [elements], DType::U32, request).unwrap();
        // NaN as f32, and as a half type in both halves.
        tensor.set(&vec![u32::MAX; elements]).unwrap();
        tensor
    };
    // The first two fill a segment of the small pool, the third one of the large pool.
    drop([poison(1 << 18), poison(1 << 18), poison(5 << 20)]);
    device
}

/// Returns a seed from the clock, or PLIMSOLL_TEST_SEED to repeat a run.
fn fresh_seed() -> u64 {
    static FRESH: OnceLock<u64> = OnceLock::new();
    *FRESH.get_or_init(|| {
        let configured = std::env::var("PLIMSOLL_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let clock = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
        let seed = configured.unwrap_or_else(clock);
        eprintln!("operands on the GPU from PLIMSOLL_TEST_SEED={seed}");
        seed
    })
}

/// Returns the number of repetitions of a test: `usual`, or PLIMSOLL_TEST_REPEATS under a slow tool.
pub(crate) fn repeats(usual: usize) -> usize {
    let configured =
        std::env::var("PLIMSOLL_TEST_REPEATS").ok().and_then(|configured| configured.parse().ok());
    configured.unwrap_or(usual).max(1)
}

impl Case {
    /// Creates a case whose operands have the host's seed.
    pub(crate) fn new(device: Device, dtype: DType) -> Self {
        Case { device, dtype, seed: SEED }
    }

    /// Returns the name of device and type for messages.
    pub(crate) fn name(&self) -> String {
        format!("{:?} {}", self.device.backend(), self.dtype)
    }

    /// Rounds to the nearest value of the case's type.
    pub(crate) fn round(&self, value: f32) -> f32 {
        dispatch!(self.dtype, T => T::from_f32(value).to_f32(), _ => value)
    }

    /// Returns a tensor of the case's type from values that the type represents exactly.
    pub(crate) fn tensor<const N: usize>(&self, values: &[f32], shape: [usize; N]) -> Tensor {
        typed(&self.device, self.dtype, values, shape)
    }

    /// Returns standard normal values, rounded to the case's type; zeros on Meta, which stores no values.
    pub(crate) fn normal(&self, name: &str, count: usize) -> Vec<f32> {
        if self.device.is_meta() {
            return vec![0.0; count];
        }
        seeded(self.seed, name, count).into_iter().map(|value| self.round(value)).collect()
    }

    /// Returns a tensor of [`Case::normal`] values, and those values in f64.
    pub(crate) fn operand<const N: usize>(&self, name: &str, shape: [usize; N]) -> (Tensor, Vec<f64>) {
        let values = self.normal(name, shape.iter().product());
        (self.tensor(&values, shape), wide(&values))
    }

    /// Returns random indices below `limit`.
    pub(crate) fn indices(&self, name: &str, count: usize, limit: usize) -> Vec<u32> {
        seeded_indices(self.seed, name, count, limit)
    }

    /// Returns an f32 gradient target, filled with NaN if it is to be overwritten.
    pub(crate) fn target<const N: usize>(
        &self,
        name: &str,
        shape: [usize; N],
        accumulate: bool,
    ) -> GradientTarget {
        let count = shape.iter().product();
        let values = if accumulate { seeded(self.seed, name, count) } else { vec![f32::NAN; count] };
        GradientTarget { tensor: tensor(&self.device, &values, shape), accumulate }
    }

    /// Returns a gradient target of normal values in `dtype`.
    pub(crate) fn target_in<const N: usize>(
        &self,
        dtype: DType,
        name: &str,
        shape: [usize; N],
        accumulate: bool,
    ) -> GradientTarget {
        let values = seeded(self.seed, name, shape.iter().product());
        GradientTarget { tensor: typed(&self.device, dtype, &values, shape), accumulate }
    }

    /// Returns two gradient targets with the same values (NaN if they are to be overwritten): in f32, and in
    /// the case's type.
    pub(crate) fn targets<const N: usize>(
        &self,
        name: &str,
        shape: [usize; N],
        accumulate: bool,
    ) -> [GradientTarget; 2] {
        let count = shape.iter().product();
        let values = if accumulate { self.normal(name, count) } else { vec![f32::NAN; count] };
        [DType::F32, self.dtype].map(|dtype| {
            let tensor = typed(&self.device, dtype, &values, shape);
            GradientTarget { tensor, accumulate }
        })
    }

    /// Asserts that the second of [`Case::targets`] equals the first, rounded.
    pub(crate) fn is_rounded(&self, what: &str, [single, own]: &[GradientTarget; 2]) {
        let values = single.tensor.to_vec::<f32>().unwrap();
        let rounded: Vec<f64> = values.into_iter().map(|value| f64::from(self.round(value))).collect();
        assert_eq!(read(&own.tensor), rounded, "{what}, {}", self.name());
    }

    /// Returns this case in f32.
    pub(crate) fn single(&self) -> Case {
        Case { device: self.device.clone(), dtype: DType::F32, seed: self.seed }
    }

    /// Returns what was added to the initial values of a target of [`Case::target`]`(name, …)`.
    pub(crate) fn added(&self, target: &GradientTarget, name: &str) -> Vec<f64> {
        let after = read(&target.tensor);
        let count = after.len();
        let before = if target.accumulate { wide(&seeded(self.seed, name, count)) } else { vec![0.0; count] };
        after.iter().zip(before).map(|(after, before)| after - before).collect()
    }

    fn tolerance(&self) -> f64 {
        if self.dtype == DType::F32 { TOLERANCE } else { ROUGH }
    }

    /// Asserts that `actual` equals `expected` within the tolerance of the case's type.
    pub(crate) fn close(&self, what: &str, actual: &[f64], expected: &[f64]) {
        close_within((self.tolerance(), 0.0), &format!("{what}, {}", self.name()), actual, expected);
    }

    /// Asserts that `gradient` is the gradient of `function` at `point`, by central differences. The
    /// tolerance of the case's type is relative to the norm of the gradient or, if larger, to `terms`: the
    /// norm of terms that may cancel.
    pub(crate) fn is_gradient_of_terms(
        &self,
        what: &str,
        terms: f64,
        gradient: &[f64],
        point: &[f64],
        function: impl Fn(&[f64]) -> f64 + Sync,
    ) {
        let what = format!("{what}, {}", self.name());
        is_gradient_within((self.tolerance(), terms), &what, gradient, point, function);
    }
}

/// Returns a tensor of `values`, rounded to the floating-point type `dtype`.
pub(crate) fn typed<const N: usize>(
    device: &Device,
    dtype: DType,
    values: &[f32],
    shape: [usize; N],
) -> Tensor {
    dispatch!(
        dtype,
        T => tensor(device, &values.iter().map(|value| T::from_f32(*value)).collect::<Vec<T>>(), shape),
        _ => panic!("{dtype} is not floating-point"),
    )
}

/// Returns standard normal values that depend only on `name` and the index.
pub(crate) fn normal(name: &str, count: usize) -> Vec<f32> {
    seeded(SEED, name, count)
}

fn seeded(seed: u64, name: &str, count: usize) -> Vec<f32> {
    let key = philox::key_of_name(seed, name);
    let blocks =
        (0..count.div_ceil(4) as u32).flat_map(|i| philox::normals(philox::philox4x32(key, [i, 0, 0, 0])));
    blocks.take(count).collect()
}

fn seeded_indices(seed: u64, name: &str, count: usize, limit: usize) -> Vec<u32> {
    let key = philox::key_of_name(seed.wrapping_add(1), name);
    (0..count as u32).map(|i| philox::philox4x32(key, [i, 0, 0, 0])[0] % limit as u32).collect()
}

pub(crate) fn tensor<T: Element, const N: usize>(device: &Device, values: &[T], shape: [usize; N]) -> Tensor {
    Tensor::from_host(device, values, shape, Category::Input).unwrap()
}

/// Returns an f32 tensor of [`normal`] values, and those values in f64.
pub(crate) fn operand<const N: usize>(device: &Device, name: &str, shape: [usize; N]) -> (Tensor, Vec<f64>) {
    let values = normal(name, shape.iter().product());
    (tensor(device, &values, shape), wide(&values))
}

pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Returns the values of a floating-point tensor.
pub(crate) fn read(tensor: &Tensor) -> Vec<f64> {
    dispatch!(
        tensor.dtype(),
        T => tensor.to_vec::<T>().unwrap().into_iter().map(f64::from).collect(),
        _ => panic!("{} is not floating-point", tensor.dtype()),
    )
}

/// Returns the bits of each value of a floating-point tensor.
pub(crate) fn bits(tensor: &Tensor) -> Vec<u32> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    dispatch!(
        tensor.dtype(),
        T => tensor.to_vec::<T>().unwrap().iter().map(|value| word(bytemuck::bytes_of(value))).collect(),
        _ => panic!("{} is not floating-point", tensor.dtype()),
    )
}

/// Asserts that `actual` equals `expected` within [`TOLERANCE`].
pub(crate) fn close(what: &str, actual: &[f64], expected: &[f64]) {
    close_within((TOLERANCE, 0.0), what, actual, expected);
}

/// Asserts closeness of sums relative to `added`, the sum of absolute terms, because terms that cancel keep
/// their rounding errors.
pub(crate) fn close_sums(what: &str, actual: &[f64], expected: &[f64], added: &[f64]) {
    let size = added.iter().map(|v| v * v).sum::<f64>().sqrt();
    close_within((TOLERANCE, size), what, actual, expected);
}

/// Asserts that the norm of the difference is at most `tolerance` times the norm of the expected values, or
/// times `least` if that is larger.
fn close_within((tolerance, least): (f64, f64), what: &str, actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let size = norm(&mut expected.iter().copied());
    let error = norm(&mut actual.iter().zip(expected).map(|(a, b)| a - b));
    assert!(error <= tolerance * size.max(least).max(1e-3), "{what}: off by {error:e} of {size:e}");
}

/// Compares partial derivatives for few elements, else derivatives along random directions.
fn is_gradient_within(
    tolerance: (f64, f64),
    what: &str,
    gradient: &[f64],
    point: &[f64],
    function: impl Fn(&[f64]) -> f64 + Sync,
) {
    const STEP: f64 = 1e-4;
    assert_eq!(gradient.len(), point.len(), "{what}");
    let count = if point.len() <= 128 { point.len() } else { 12 };
    let along = |number: usize| {
        let direction: Vec<f64> = if count == point.len() {
            (0..count).map(|axis| f64::from(u8::from(axis == number))).collect()
        } else {
            wide(&normal(&format!("direction {number}"), point.len()))
        };
        let at = |step: f64| {
            function(&point.iter().zip(&direction).map(|(p, d)| p + step * d).collect::<Vec<_>>())
        };
        // Fourth order, so that the step is large enough for rounding not to matter.
        let near = at(STEP) - at(-STEP);
        let far = at(2.0 * STEP) - at(-2.0 * STEP);
        (dot(gradient, &direction), (8.0 * near - far) / (12.0 * STEP))
    };
    let (actual, expected): (Vec<f64>, Vec<f64>) = (0..count).into_par_iter().map(along).unzip();
    close_within(tolerance, what, &actual, &expected);
}

/// Returns Σ weights · values: a scalar function whose gradient with respect to `values` is `weights`.
pub(crate) fn dot(weights: &[f64], values: &[f64]) -> f64 {
    weights.iter().zip(values).map(|(w, v)| w * v).sum()
}
