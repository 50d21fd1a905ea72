//! Best rates of a device, measured with large matmuls and copies.

use crate::error::Result;
use device::{Backend, Category, DType, Device, Matmul, Operand, Request};
use tensor::ops::{Activation, linear};
use tensor::{Tensor, ops};

use crate::options::median;

/// Best rates of the device, measured in the same process.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// FLOP/s of bf16 matmuls of 8192 × 8192 × 8192 on random values.
    pub flops_per_second: f64,
    /// Bytes read and written per second by a large copy on the device.
    pub bytes_per_second: f64,
}

/// Rows and columns of the matmuls that are timed on a GPU.
const SIDE: usize = 8192;
/// Rows and columns of the matmuls that are timed on a CPU.
const HOST_SIDE: usize = 1024;
/// Elements of the copies that are timed: 2 GiB.
const COPIED: usize = 1 << 29;
const ROUNDS: usize = 10;

pub(crate) fn rates(device: &Device) -> Result<Rates> {
    let request = Request::new(Category::Other, "rates");
    let (from, to) = (
        Tensor::zeros(device, [COPIED], DType::F32, request)?,
        Tensor::empty(device, [COPIED], DType::F32, request)?,
    );
    let seconds = timed(device, || Ok(to.copy_from(&from)?))?;
    Ok(Rates {
        flops_per_second: matmul_flops_per_second(device, DType::Bf16)?,
        bytes_per_second: 2.0 * from.bytes() as f64 / seconds,
    })
}

/// Returns the FLOP/s of large matmuls of random values of this dtype.
pub(crate) fn matmul_flops_per_second(device: &Device, dtype: DType) -> Result<f64> {
    if device.backend() == Backend::Cpu {
        return host_flops_per_second(device);
    }
    let request = Request::new(Category::Other, "rates");
    let square = |name: &str| -> Result<Tensor> {
        let matrix = Tensor::empty(device, [SIDE, SIDE], dtype, request)?;
        ops::random::uniform(&matrix, 1, name, -1.0, 1.0)?;
        Ok(matrix)
    };
    let (a, b, out) = (square("a")?, square("b")?, square("out")?);
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
    let seconds = timed(device, || Ok(device.matmul(&matmul)?))?;
    Ok(2.0 * (SIDE as f64).powi(3) / seconds)
}

/// Returns the FLOP/s of large f32 matmuls of random values on the host.
fn host_flops_per_second(device: &Device) -> Result<f64> {
    let square = |name: &str| -> Result<Tensor> {
        let request = Request::new(Category::Other, "rates");
        let matrix = Tensor::empty(device, [HOST_SIDE, HOST_SIDE], DType::F32, request)?;
        ops::random::uniform(&matrix, 1, name, -1.0, 1.0)?;
        Ok(matrix)
    };
    let (a, b) = (square("a")?, square("b")?);
    let matmul = || {
        linear::forward(&a, &b, None, Activation::None)?;
        Ok(())
    };
    Ok(2.0 * (HOST_SIDE as f64).powi(3) / timed(device, matmul)?)
}

/// Returns the seconds of one call on the device, the median of several.
fn timed(device: &Device, run: impl Fn() -> Result<()>) -> Result<f64> {
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
    Ok(median(&times))
}
