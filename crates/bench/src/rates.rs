//! Measures the best rates of a device with large matmuls and copies.

use crate::error::Result;
use device::{Backend, Category, DType, Device, Matmul, Operand, Request, StreamKind, bf16};
use tensor::ops::{Activation, linear};
use tensor::{Tensor, ops};

use crate::options::median;

/// Best rates of a device, measured in this process.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// FLOP/s of bf16 matmuls of 8192 × 8192 × 8192 on random values.
    pub flops_per_second: f64,
    /// Bytes read and written per second by a large copy on the device.
    pub bytes_per_second: f64,
}

/// Rows and columns of the timed matmuls on a GPU.
const SIDE: usize = 8192;
/// Rows and columns of the timed matmuls on a CPU.
const HOST_SIDE: usize = 1024;
/// Sizes among which a CPU's fastest matmul is searched.
const HOST_SIDES: [usize; 3] = [256, 512, HOST_SIDE];
/// Elements of the timed copies on the device: 2 GiB.
const COPIED: usize = 1 << 29;
const ROUNDS: usize = 10;
/// Elements of the timed copies between host and device: 512 MiB.
const HOST_COPIED: usize = 1 << 27;

pub(crate) fn rates(device: &Device) -> Result<Rates> {
    let request = Request::new(Category::Other, "rates");
    let from = Tensor::zeros(device, [COPIED], DType::F32, request)?;
    let to = Tensor::empty(device, [COPIED], DType::F32, request)?;
    let seconds = median(&timed(device, || Ok(to.copy_from(&from)?))?);
    Ok(Rates {
        flops_per_second: matmul_flops_per_second(device, DType::Bf16)?,
        bytes_per_second: 2.0 * from.bytes() as f64 / seconds,
    })
}

/// Returns the bytes per second of copies between the device and pinned memory, in each direction while both
/// are in use, as when updating offloaded state.
pub(crate) fn host_copy_bytes_per_second(device: &Device) -> Result<f64> {
    let host = device.host_pool()?;
    let request = Request::new(Category::Other, "rates");
    let pair = || -> Result<[Tensor; 2]> {
        let on = |device| Tensor::zeros(device, [HOST_COPIED], DType::F32, request);
        Ok([on(device)?, on(&host)?])
    };
    let ([to, source], [from, target]) = (pair()?, pair()?);
    let both = || {
        for stream in [StreamKind::Input, StreamKind::Snapshot] {
            device.wait(stream, &device.record(StreamKind::Compute)?)?;
        }
        to.copy_from_pool(&source, StreamKind::Input)?;
        from.copy_to_pool(&target, StreamKind::Snapshot)?;
        for stream in [StreamKind::Input, StreamKind::Snapshot] {
            device.wait(StreamKind::Compute, &device.record(stream)?)?;
        }
        Ok(())
    };
    Ok(source.bytes() as f64 / median(&timed(device, both)?))
}

/// Returns the bytes per second at which values of the host reach the device in bf16, as values of
/// micro-batches do. The host's threads convert them in pinned memory while the device copies from there.
pub(crate) fn host_fill_bytes_per_second(device: &Device) -> Result<f64> {
    host_fill_of(device, HOST_COPIED)
}

/// Returns the rate of [`host_fill_bytes_per_second`] for this many values.
fn host_fill_of(device: &Device, values: usize) -> Result<f64> {
    let to = Tensor::empty(device, [values], DType::Bf16, Request::new(Category::Other, "rates"))?;
    let values = vec![1.0_f32; values];
    let fill = || Ok(device.round_from_host::<bf16>(&values, to.region())?);
    Ok(to.bytes() as f64 / median(&timed(device, fill)?))
}

/// Returns the median FLOP/s of large matmuls of random values in this dtype.
pub(crate) fn matmul_flops_per_second(device: &Device, dtype: DType) -> Result<f64> {
    match device.backend() {
        Backend::Cpu => Ok(flops(HOST_SIDE) / median(&host_matmuls(device, HOST_SIDE)?)),
        _ => Ok(flops(SIDE) / median(&gpu_matmuls(device, dtype)?)),
    }
}

/// Returns the FLOP/s of the fastest large matmul of random values in this dtype. On a CPU, whose caches
/// favour some sizes, several sizes are tried.
pub(crate) fn fastest_matmul_flops_per_second(device: &Device, dtype: DType) -> Result<f64> {
    let fastest =
        |side: usize, seconds: Vec<f64>| flops(side) / seconds.into_iter().fold(f64::INFINITY, f64::min);
    if device.backend() != Backend::Cpu {
        return Ok(fastest(SIDE, gpu_matmuls(device, dtype)?));
    }
    let mut best = 0.0;
    for side in HOST_SIDES {
        best = f64::max(best, fastest(side, host_matmuls(device, side)?));
    }
    Ok(best)
}

/// Returns the FLOPs of a square matmul.
fn flops(side: usize) -> f64 {
    2.0 * (side as f64).powi(3)
}

/// Returns the seconds of matmuls of size [`SIDE`] on a GPU.
fn gpu_matmuls(device: &Device, dtype: DType) -> Result<Vec<f64>> {
    let request = Request::new(Category::Other, "rates");
    let square = |name: &str| -> Result<Tensor> {
        let matrix = Tensor::empty(device, [SIDE, SIDE], dtype, request)?;
        ops::random::uniform(&matrix, 1, name, -1.0, 1.0)?;
        Ok(matrix)
    };
    let a = square("a")?;
    let b = square("b")?;
    let out = square("out")?;
    let matmul = Matmul {
        m: SIDE,
        n: SIDE,
        k: SIDE,
        a: Operand::new(a.region(), dtype),
        b: Operand::new(b.region(), dtype),
        out: Operand::new(out.region(), dtype),
        accumulate: false,
        epilogue: device::Epilogue::None,
        fast: false,
    };
    timed(device, || Ok(device.matmul(&matmul)?))
}

/// Returns the seconds of f32 matmuls of size `side` on the CPU.
fn host_matmuls(device: &Device, side: usize) -> Result<Vec<f64>> {
    let square = |name: &str| -> Result<Tensor> {
        let request = Request::new(Category::Other, "rates");
        let matrix = Tensor::empty(device, [side, side], DType::F32, request)?;
        ops::random::uniform(&matrix, 1, name, -1.0, 1.0)?;
        Ok(matrix)
    };
    let a = square("a")?;
    let b = square("b")?;
    let matmul = || {
        linear::forward(&a, &b, None, Activation::None)?;
        Ok(())
    };
    timed(device, matmul)
}

/// Returns the seconds of each of several calls on the device.
fn timed(device: &Device, run: impl Fn() -> Result<()>) -> Result<Vec<f64>> {
    run()?;
    let mut marks = vec![device.mark()?];
    for _ in 0..ROUNDS {
        run()?;
        marks.push(device.mark()?);
    }
    device.synchronize()?;
    let mut times = Vec::with_capacity(ROUNDS);
    for pair in marks.windows(2) {
        times.push(pair[0].until(&pair[1])?.unwrap_or_default().as_secs_f64());
    }
    Ok(times)
}

/// Rounds to four digits, more than repeated measurements agree in.
pub(crate) fn legible(rate: f64) -> f64 {
    // A multiple of a power of ten could have many digits.
    format!("{rate:.3e}").parse().unwrap_or(rate)
}

#[cfg(test)]
mod tests {
    use device::DeviceOptions;

    use super::*;

    #[test]
    fn a_host_fills_memory_with_rounded_values() {
        let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
        let rate = host_fill_of(&device, 1 << 16).unwrap();
        assert!(rate > 1e6 && rate.is_finite(), "{rate}");
    }

    #[test]
    fn rates_have_four_digits() {
        let rates = [
            (804_658_897_613_337.9, "804700000000000"),
            (4_271.4, "4271"),
            (1.31e-6, "0.00000131"),
            (0.0, "0"),
        ];
        for (rate, text) in rates {
            assert_eq!(legible(rate).to_string(), text);
        }
        assert!(legible(f64::NAN).is_nan());
    }
}
