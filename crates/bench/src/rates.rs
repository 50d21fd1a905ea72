//! Best rates of a device, measured with large matmuls and copies.

use crate::error::Result;
use device::{Category, DType, Device, Matmul, Operand, Request};
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

/// Rows and columns of the matmuls that are timed.
const SIDE: usize = 8192;
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
    };
    let seconds = timed(device, || Ok(device.matmul(&matmul)?))?;
    Ok(2.0 * (SIDE as f64).powi(3) / seconds)
}

/// Returns the seconds of one call on the device, the median of several.
fn timed(device: &Device, run: impl Fn() -> Result<()>) -> Result<f64> {
    run()?;
    device.begin_profile();
    (0..ROUNDS).try_for_each(|_| run())?;
    let times: Vec<_> = device.end_profile()?.iter().map(|call| f64::from(call.milliseconds)).collect();
    Ok(median(&times) / 1e3)
}
