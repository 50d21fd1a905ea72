//! Operands of measured matmuls, filled with random values.

use device::matmul_table::{EpilogueKind, MatmulKey};
use device::{Category, DType, Device, DeviceError, Epilogue, Matmul, Operand, Request};
use tensor::{Tensor, ops};

use crate::error::Result;

/// Total bytes of the sets of operands that take turns, so that no call finds its operands in a cache.
const COLD_BYTES: usize = 512 << 20;
const MOST_SETS: usize = 8;
/// Number of random values with which operands are filled repeatedly.
const NOISE: usize = 1 << 22;

/// Random values in every dtype that operators compute with.
pub(super) struct Noise(Vec<Tensor>);

fn request() -> Request {
    Request::new(Category::Other, "matmul")
}

impl Noise {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let of = |dtype: &DType| -> Result<Tensor> {
            let values = Tensor::empty(device, [NOISE], *dtype, request())?;
            ops::random::uniform(&values, 1, "matmul", -1.0, 1.0)?;
            Ok(values)
        };
        Ok(Noise(ops::DTYPES.iter().map(of).collect::<Result<_>>()?))
    }

    /// Returns a tensor of `elements` values, which repeat. Errors: a dtype that operators do not compute
    /// with.
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

fn operand(tensor: &Tensor, transposed: bool) -> Operand<'_> {
    Operand { region: tensor.region(), dtype: tensor.dtype(), transposed }
}

/// The operands of a matmul.
pub(super) struct Operands {
    a: Tensor,
    b: Tensor,
    out: Tensor,
    bias: Tensor,
    pre: Tensor,
}

impl Operands {
    /// Creates enough sets of operands that calls which take turns never find theirs in a cache.
    pub(super) fn sets(device: &Device, noise: &Noise, key: MatmulKey) -> Result<Vec<Self>> {
        let first = Self::new(device, noise, key)?;
        let tensors = [&first.a, &first.b, &first.out, &first.bias, &first.pre];
        let bytes: usize = tensors.iter().map(|tensor| tensor.bytes()).sum();
        let count = COLD_BYTES.div_ceil(bytes.max(1)).min(MOST_SETS);
        let more = (1..count).map(|_| Self::new(device, noise, key));
        std::iter::once(Ok(first)).chain(more).collect()
    }

    fn new(device: &Device, noise: &Noise, key: MatmulKey) -> Result<Self> {
        let ([m, n, k], [a, b, out]) = (key.sizes, key.types);
        let (bias, pre) = match key.epilogue {
            EpilogueKind::None => (0, 0),
            EpilogueKind::Bias => (n, 0),
            EpilogueKind::GeluBias => (n, m * n),
            EpilogueKind::GeluGradient => (0, m * n),
            EpilogueKind::BiasGradient => (m, 0),
        };
        let tensor = |elements, dtype| noise.tensor(device, elements, dtype);
        let (a, b) = (tensor(m * k, a)?, tensor(k * n, b)?);
        Ok(Operands { a, b, bias: tensor(bias, out)?, pre: tensor(pre, out)?, out: tensor(m * n, out)? })
    }

    pub(super) fn call(&self, key: MatmulKey) -> Result<()> {
        let Operands { a, b, out, bias, pre } = self;
        let [m, n, k] = key.sizes;
        let epilogue = match key.epilogue {
            EpilogueKind::None => Epilogue::None,
            EpilogueKind::Bias => Epilogue::Bias(bias.region()),
            EpilogueKind::GeluBias => Epilogue::GeluBias { bias: bias.region(), pre: pre.region() },
            EpilogueKind::GeluGradient => Epilogue::GeluGradient { pre: pre.region() },
            EpilogueKind::BiasGradient => Epilogue::BiasGradient(bias.region()),
        };
        let (a, b) = (operand(a, key.transposed[0]), operand(b, key.transposed[1]));
        let out = operand(out, false);
        let call = Matmul { m, n, k, a, b, out, accumulate: key.accumulate, epilogue };
        Ok(self.a.device().matmul(&call)?)
    }

    /// Returns sums of squares over everything that the matmul writes, from the same initial output each
    /// time.
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
