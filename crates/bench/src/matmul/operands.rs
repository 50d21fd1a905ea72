//! Operands of measured matmuls, filled with random values.

use device::matmul_table::{EpilogueKind, MatmulKey, Scaling};
use device::{Category, DType, Device, DeviceError, Epilogue, Matmul, Operand, Request, Scales};
use tensor::ops::fp8_linear::{self, Cast, Input, Recipe};
use tensor::{Tensor, ops};

use crate::error::Result;

/// Total bytes of the operand sets that calls rotate through, so that no call finds its operands in a cache.
pub(super) const COLD_BYTES: usize = 512 << 20;
const MOST_SETS: usize = 8;
/// Number of random values, which are repeated to fill operands.
const NOISE: usize = 1 << 22;

/// Random values in every compute dtype and in FP8.
pub(crate) struct Noise(Vec<Tensor>);

fn request() -> Request {
    Request::new(Category::Other, "matmul")
}

impl Noise {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let random_values = |dtype: &DType| -> Result<Tensor> {
            let values = Tensor::empty(device, [NOISE], *dtype, request())?;
            ops::random::uniform(&values, 1, "matmul", -1.0, 1.0)?;
            Ok(values)
        };
        let mut all: Vec<Tensor> = ops::DTYPES.iter().map(random_values).collect::<Result<_>>()?;
        let half = random_values(&DType::Bf16)?.reshape([NOISE / 1024, 1024])?;
        for format in [DType::E4m3, DType::E5m2] {
            let cast = Cast::new(format, Recipe::Tensorwise).stored();
            let output = fp8_linear::quantise(&half, Input::Plain, cast)?;
            all.extend(output.stored.map(|scaled| scaled.values.reshape([NOISE])).transpose()?);
        }
        Ok(Noise(all))
    }

    /// Returns a tensor of `elements` values, filled with repeated random values.
    ///
    /// # Errors
    /// Operators do not compute with this dtype.
    fn tensor(&self, device: &Device, elements: usize, dtype: DType) -> Result<Tensor> {
        let noise = self.0.iter().find(|noise| noise.dtype() == dtype);
        let noise = noise.ok_or(DeviceError::Unsupported { call: "matmul", dtype })?;
        let tensor = Tensor::empty(device, [elements], dtype, request())?;
        for first in (0..elements).step_by(NOISE) {
            let count = NOISE.min(elements - first);
            tensor.view(first, [count])?.copy_from(&noise.view(0, [count])?)?;
        }
        Ok(tensor)
    }
}

fn operand(tensor: &Tensor, transposed: bool, stride: usize) -> Operand<'_> {
    Operand { transposed, ..Operand::new(tensor.region(), tensor.dtype()).with_stride(stride) }
}

fn scaled<'a>(operand: Operand<'a>, scaling: Scaling, scales: &'a Tensor) -> Operand<'a> {
    match scaling {
        Scaling::None => operand,
        Scaling::Tensor { .. } => operand.scaled(Scales::Tensor(scales.region())),
        Scaling::Outer { .. } => operand.scaled(Scales::Outer(scales.region())),
    }
}

pub(crate) struct Operands {
    a: Tensor,
    b: Tensor,
    out: Tensor,
    bias: Tensor,
    pre: Tensor,
    /// Scales of a and b; empty unless the operands are FP8.
    scales: [Tensor; 2],
}

impl Operands {
    /// Creates sets of operands for rotating calls, of at least `most_bytes` bytes or as many as are useful.
    pub(crate) fn sets(
        device: &Device,
        noise: &Noise,
        key: MatmulKey,
        most_bytes: usize,
    ) -> Result<Vec<Self>> {
        let first = Self::new(device, noise, key)?;
        let tensors = [&first.a, &first.b, &first.out, &first.bias, &first.pre];
        let bytes: usize = tensors.iter().map(|tensor| tensor.bytes()).sum();
        let count = most_bytes.div_ceil(bytes.max(1)).min(MOST_SETS);
        let more = (1..count).map(|_| Self::new(device, noise, key));
        std::iter::once(Ok(first)).chain(more).collect()
    }

    pub(crate) fn new(device: &Device, noise: &Noise, key: MatmulKey) -> Result<Self> {
        let [m, n, _] = key.sizes;
        let [a, b, out] = key.types;
        let [left, right, output] = std::array::from_fn(|index| key.stored()[index][0] * key.strides[index]);
        let (bias, pre) = match key.epilogue {
            EpilogueKind::None => (0, 0),
            EpilogueKind::Bias | EpilogueKind::BiasRelu => (n, 0),
            EpilogueKind::BiasResidualRelu => (n, output),
            EpilogueKind::GeluBias => (n, m * n),
            EpilogueKind::GeluGradient => (0, m * n),
            EpilogueKind::Combined => (0, output),
            EpilogueKind::BiasGradient => (m, 0),
        };
        let tensor = |elements, dtype| noise.tensor(device, elements, dtype);
        let a = tensor(left, a)?;
        let b = tensor(right, b)?;
        let scales = match key.scaling {
            Scaling::None => [0, 0],
            Scaling::Tensor { .. } => [1, 1],
            Scaling::Outer { .. } => [m, n],
        };
        let [left, right] = scales.map(|count| tensor(count, DType::F32));
        let bias = tensor(bias, out)?;
        let pre = tensor(pre, out)?;
        let out = tensor(output, out)?;
        Ok(Operands { a, b, bias, pre, out, scales: [left?, right?] })
    }

    pub(crate) fn call(&self, key: MatmulKey) -> Result<()> {
        let Operands { a, b, out, bias, pre, scales } = self;
        let [m, n, k] = key.sizes;
        let epilogue = match key.epilogue {
            EpilogueKind::None => Epilogue::None,
            EpilogueKind::Bias => Epilogue::Bias(bias.region()),
            EpilogueKind::BiasRelu => Epilogue::BiasRelu(bias.region()),
            EpilogueKind::BiasResidualRelu => {
                Epilogue::BiasResidualRelu { bias: bias.region(), residual: pre.region() }
            }
            EpilogueKind::GeluBias => Epilogue::GeluBias { bias: bias.region(), pre: pre.region() },
            EpilogueKind::GeluGradient => Epilogue::GeluGradient { pre: pre.region() },
            EpilogueKind::BiasGradient => Epilogue::BiasGradient(bias.region()),
            EpilogueKind::Combined => Epilogue::Combined { product: 1.0, own: 1.0, added: pre.region() },
        };
        let a = operand(a, key.transposed[0], key.strides[0]);
        let b = operand(b, key.transposed[1], key.strides[1]);
        let [a, b] =
            [(a, &scales[0]), (b, &scales[1])].map(|(operand, scales)| scaled(operand, key.scaling, scales));
        let out = operand(out, false, key.strides[2]);
        let fast = matches!(key.scaling, Scaling::Tensor { fast: true } | Scaling::Outer { fast: true });
        let call = Matmul { m, n, k, a, b, out, accumulate: key.accumulate, epilogue, fast };
        Ok(self.a.device().matmul(&call)?)
    }

    /// Runs the matmul from a fixed initial output. Returns sums of squares of everything that it writes.
    pub(super) fn sums(&self, key: MatmulKey) -> Result<Vec<f32>> {
        self.out.zero()?;
        self.call(key)?;
        let mut written = vec![&self.out];
        match key.epilogue {
            EpilogueKind::GeluBias => written.push(&self.pre),
            EpilogueKind::BiasGradient => written.push(&self.bias),
            _ => {}
        }
        let mut all = Vec::new();
        for tensor in written {
            let count = ops::norm::chunks(tensor.elements());
            let sums = Tensor::empty(tensor.device(), [count], DType::F32, request())?;
            ops::norm::chunk_sums(tensor, &sums)?;
            all.extend(sums.to_vec::<f32>()?);
        }
        Ok(all)
    }
}
