//! Normalisation of 8-bit pixels by channel.

use device::parallel::{CHUNK, for_pieces};
use device::{Backend, Category, DType, Family, Float, Function, Request, dispatch};

use super::kernels::family;
use super::{check, gpu};
use crate::{Result, Tensor, TensorError};

const OPERATOR: &str = "pixels.normalise";

/// Maximum number of channels.
pub const MOST_CHANNELS: usize = 4;
/// Number of values of an 8-bit channel.
const LEVELS: usize = 256;
/// Elements that a thread reads at once.
const LANES: usize = 8;
/// Vectors of [`LANES`] elements per thread.
const UNROLL: u32 = 16;

pub(super) static FAMILY: Family = family!(
    "pixels",
    constants: &[
        gpu::THREADS_CONSTANT,
        ("UNROLL", UNROLL),
        ("LANES", LANES as u32),
        ("LEVELS", LEVELS as u32),
        ("MOST_CHANNELS", MOST_CHANNELS as u32),
    ],
);

/// Returns (level / 255 − mean) / deviation of each value of `pixels`, u8, computed in f64 and rounded to f32
/// and then to `dtype`. Element i belongs to channel i modulo their number, 1 to [`MOST_CHANNELS`].
pub fn normalise(pixels: &Tensor, mean: &[f64], deviation: &[f64], dtype: DType) -> Result<Tensor> {
    check::dtype(OPERATOR, "pixels", pixels, DType::U8)?;
    check::count(OPERATOR, deviation.len(), mean.len())?;
    if mean.is_empty() || mean.len() > MOST_CHANNELS {
        return Err(TensorError::Count { operator: OPERATOR, actual: mean.len(), expected: MOST_CHANNELS });
    }
    let values = pixels.like(dtype, Request::new(Category::Input, OPERATOR))?;
    check::computed(OPERATOR, &[("result", &values)])?;
    if values.elements() == 0 {
        return Ok(values);
    }
    match pixels.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => dispatch!(
            dtype,
            T => from_levels::<T>(&pixels.read()?, mean, deviation, &mut values.write()?),
            _ => return Err(check::unsupported(OPERATOR, "result", &values)),
        ),
        Backend::Cuda => launch(pixels, mean, deviation, &values)?,
    }
    Ok(values)
}

fn from_levels<T: Float>(pixels: &[u8], mean: &[f64], deviation: &[f64], values: &mut [T]) {
    let of_channel = |(mean, deviation): (&f64, &f64)| -> [T; LEVELS] {
        std::array::from_fn(|level| T::from_f32(((level as f64 / 255.0 - mean) / deviation) as f32))
    };
    let tables: Vec<[T; LEVELS]> = mean.iter().zip(deviation).map(of_channel).collect();
    // Every piece begins with the first channel.
    let length = CHUNK * tables.len();
    for_pieces(values, length, |index, values| {
        let pixels = pixels[index * length..].chunks(tables.len());
        for (values, pixels) in values.chunks_mut(tables.len()).zip(pixels) {
            for ((value, level), table) in values.iter_mut().zip(pixels).zip(&tables) {
                *value = table[usize::from(*level)];
            }
        }
    });
}

/// Enqueues the kernel on the compute stream.
fn launch(pixels: &Tensor, mean: &[f64], deviation: &[f64], values: &Tensor) -> Result<()> {
    let count = values.elements();
    let vector = gpu::aligned(&[pixels, values]);
    let each = gpu::THREADS as usize * UNROLL as usize * if vector { LANES } else { 1 };
    let kernel = Function::new(&FAMILY, "normalise").with_dtype(values.dtype());
    let mut launch = values.device().kernel(kernel).read(pixels).write(values);
    for numbers in [mean, deviation] {
        for channel in 0..MOST_CHANNELS {
            launch = launch.f64(numbers[channel % numbers.len()]);
        }
    }
    let launch = launch.u32(gpu::word(OPERATOR, mean.len())?).u64(count as u64).u32(u32::from(vector));
    let launch = launch.cost(gpu::bytes(&[pixels, values]), count as u64);
    Ok(launch.launch([gpu::word(OPERATOR, count.div_ceil(each))?, 1, 1], gpu::THREADS)?)
}
