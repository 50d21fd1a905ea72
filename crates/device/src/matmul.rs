//! A matmul with its epilogue, as operators ask a GPU for it.

use crate::buffer::Region;
use crate::dtype::DType;
use crate::work::Work;

/// Workspace of the GPU's matmul library, for the whole life of a device: what NVIDIA recommends for Hopper.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

/// One operand, row-major and dense.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// Elements of the operand.
    pub region: Region<'a>,
    /// Their type: f32 or bf16.
    pub dtype: DType,
    /// The transpose of the operand is stored.
    pub transposed: bool,
}

impl<'a> Operand<'a> {
    /// Stored as it is used.
    pub fn new(region: Region<'a>, dtype: DType) -> Self {
        Operand { region, dtype, transposed: false }
    }

    /// Stored as its transpose.
    pub fn transposed(self) -> Self {
        Operand { transposed: true, ..self }
    }
}

/// An operation on a matmul's result before it is written.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a> {
    /// Nothing.
    None,
    /// Row `bias` is added to every row: n elements of the output's type.
    Bias(Region<'a>),
    /// Adds the bias; the sum goes to `pre`, its GELU to the output.
    GeluBias {
        /// n elements of the output's type.
        bias: Region<'a>,
        /// `[m, n]` of the output's type.
        pre: Region<'a>,
    },
    /// The matmul is multiplied by GELU's derivative at `pre`, `[m, n]` of the output's type.
    GeluGradient {
        /// Input of GELU.
        pre: Region<'a>,
    },
    /// The sum of op(a)'s columns is written besides: m elements of the output's type.
    BiasGradient(Region<'a>),
}

/// out\[m, n\] (+)= op(a)\[m, k\] · op(b)\[k, n\], added up in f32.
#[derive(Clone, Copy, Debug)]
pub struct Matmul<'a> {
    /// Rows of the output.
    pub m: usize,
    /// Columns of the output.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// The left operand.
    pub a: Operand<'a>,
    /// The right operand.
    pub b: Operand<'a>,
    /// The output; never transposed.
    pub out: Operand<'a>,
    /// Adds to the output instead of overwriting it.
    pub accumulate: bool,
    /// Operation before writing.
    pub epilogue: Epilogue<'a>,
}

impl Matmul<'_> {
    /// The least work: each operand moved once, and two FLOPs a term.
    pub(crate) fn work(&self) -> Work {
        let (m, n, k) = (self.m as u64, self.n as u64, self.k as u64);
        let bytes = |elements: u64, operand: &Operand<'_>| elements * operand.dtype.bytes() as u64;
        let out = bytes(m * n, &self.out);
        let more = match self.epilogue {
            Epilogue::None | Epilogue::Bias(_) | Epilogue::BiasGradient(_) => 0,
            Epilogue::GeluBias { .. } | Epilogue::GeluGradient { .. } => out,
        };
        let read = if self.accumulate { out } else { 0 };
        let bytes = bytes(m * k, &self.a) + bytes(k * n, &self.b) + out + more + read;
        Work { bytes, flops: 2 * m * n * k }
    }
}
