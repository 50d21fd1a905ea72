//! Helpers for tests of all transports.
#![allow(dead_code)] // each test program uses only some of them
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a failure")]

pub(crate) mod groups;
pub(crate) mod mpi;
pub(crate) mod nccl;
#[path = "../../../../tests/common/ports.rs"]
pub(crate) mod ports;
pub(crate) mod shared;
pub(crate) mod shared_gpu;
pub(crate) mod tcp;

use std::cell::Cell;

use collective::threads::{Options, run};
use collective::{CollectiveError, Communicator};
use device::Backend;
use device::{Buffer, Category, DType, Description, Device, DeviceOptions, Element, Request, StreamKind};
use half::{bf16, f16};

pub(crate) const STREAM: StreamKind = StreamKind::Reduce;
pub(crate) const SUMMABLE: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// An error of a test's rank.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Device(#[from] device::DeviceError),
    #[error("{0}")]
    Other(String),
}

pub(crate) type Outcome<T> = Result<T, Failed>;

/// The body of one rank, with its checks.
pub(crate) type Check = fn(&mut Communicator, &Device) -> Outcome<()>;

/// Runs a body as every rank of every world that fits one process: a single rank, threads of 1 to 5 ranks,
/// and threads connected over TCP.
pub(crate) fn everywhere(name: &str, body: Check) {
    body(&mut Communicator::solo(), &cpu(0)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for world_size in 1..=5 {
        let outcome = run(world_size, Options::default(), move |mut communicator| {
            let device = cpu(communicator.rank());
            body(&mut communicator, &device)
        });
        outcome.unwrap_or_else(|error| panic!("{name}, {world_size} ranks: {error}"));
    }
    tcp::everywhere(name, body);
}

pub(crate) fn cpu(rank: usize) -> Device {
    Device::cpu(rank, &DeviceOptions::default()).unwrap()
}

pub(crate) fn meta(rank: usize) -> Device {
    Device::meta(rank, Description::host(), &DeviceOptions::default()).unwrap()
}

pub(crate) fn buffer(device: &Device, bytes: usize) -> Buffer {
    device.allocate(bytes, Request::new(Category::Communication, "test").on(STREAM)).unwrap()
}

/// Creates a buffer with these values, ready for every stream.
pub(crate) fn filled<T: Element>(device: &Device, values: &[T]) -> Buffer {
    let buffer = buffer(device, size_of_val(values));
    device.copy_from_host(values, buffer.region(0, size_of_val(values))).unwrap();
    device.synchronize().unwrap();
    buffer
}

/// Returns `count` values starting at byte `offset`, after all streams have finished their work.
pub(crate) fn values<T: Element>(
    device: &Device,
    buffer: &Buffer,
    offset: usize,
    count: usize,
) -> Outcome<Vec<T>> {
    let mut values = vec![T::zeroed(); count];
    device.synchronize()?;
    device.copy_to_host(buffer.region(offset, size_of_val(&*values)), &mut values)?;
    Ok(values)
}

/// Returns a value that differs by rank and index, and whose sums are rounded.
pub(crate) fn value(rank: usize, index: usize) -> f32 {
    let mixed =
        (rank as u32 + 1).wrapping_mul(2_654_435_761).wrapping_add((index as u32).wrapping_mul(40_503));
    (mixed % 10_007) as f32 / 97.0 - 50.0
}

/// An element type that can be summed.
pub(crate) trait Number: Element + PartialEq + std::fmt::Debug {
    /// The largest relative error of one rounding.
    const ROUNDING: f64;
    fn rounded(value: f32) -> Self;
    fn plus(self, other: Self) -> Self;
    fn wide(self) -> f64;
}

impl Number for f32 {
    const ROUNDING: f64 = 1.0 / (1 << 24) as f64;
    fn rounded(value: f32) -> Self {
        value
    }
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
}

macro_rules! half_number {
    ($($type:ty, $bits:expr);*) => {$(
        impl Number for $type {
            const ROUNDING: f64 = 1.0 / (1 << $bits) as f64;
            fn rounded(value: f32) -> Self {
                <$type>::from_f32(value)
            }
            fn plus(self, other: Self) -> Self {
                // f64 holds the sum of two half-precision values exactly, so it is rounded once.
                <$type>::from_f64(self.to_f64() + other.to_f64())
            }
            fn wide(self) -> f64 {
                self.to_f64()
            }
        }
    )*};
}
half_number!(bf16, 8; f16, 11);

/// Returns the sum of ranks `first..first + count` by definition of the documented order.
pub(crate) fn tree_sum<T: Number>(first: usize, count: usize, part: &impl Fn(usize) -> T) -> T {
    if count == 1 {
        return part(first);
    }
    let left = count.next_power_of_two() / 2;
    tree_sum(first, left, part).plus(tree_sum(first + left, count - left, part))
}

thread_local! {
    /// Whether sums on GPUs have the documented order.
    static SUMS_EXACTLY: Cell<bool> = const { Cell::new(false) };
}

/// Expects the documented order of sums on GPUs too, on this rank's thread.
pub(crate) fn sum_exactly() {
    SUMS_EXACTLY.set(true);
}

/// Returns whether ranks of this thread's world share a GPU, and so sum in the documented order.
pub(crate) fn sums_exactly() -> bool {
    SUMS_EXACTLY.get()
}

/// Asserts that values are the sums over ranks of `operand(rank, index)`: bit for bit in the documented
/// order, or, if a library sums more than two ranks, within the error of any order.
#[track_caller]
pub(crate) fn assert_sums<T: Number>(
    device: &Device,
    world_size: usize,
    sums: &[T],
    operand: &impl Fn(usize, usize) -> T,
) {
    for (index, sum) in sums.iter().enumerate() {
        let expected = tree_sum(0, world_size, &|rank| operand(rank, index));
        if device.backend() != Backend::Cuda || world_size <= 2 || sums_exactly() {
            assert_eq!(*sum, expected, "element {index} of {}", sums.len());
            continue;
        }
        let sizes: f64 = (0..world_size).map(|rank| operand(rank, index).wide().abs()).sum();
        let bound = 2.0 * world_size as f64 * T::ROUNDING * sizes;
        let error = (sum.wide() - expected.wide()).abs();
        assert!(error <= bound, "element {index} of {}: {sum:?}, not {expected:?}", sums.len());
    }
}

/// Returns the error of the first failed rank of a world of threads.
pub(crate) fn first_error<T: std::fmt::Debug>(
    outcome: Result<Vec<T>, collective::threads::RunError<Failed>>,
) -> (usize, String) {
    let error = outcome.expect_err("a rank fails");
    (error.rank, error.cause.to_string())
}
