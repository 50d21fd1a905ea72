//! A matmul with its epilogue, as operators request it of a GPU.

use crate::buffer::Region;
use crate::dtype::DType;
use crate::work::Work;

/// Bytes of the matmul library's workspace, which lives as long as the device: NVIDIA's recommendation for
/// Hopper.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

/// Factors of an operand in FP8, in f32 on the device.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// One factor of all elements.
    Tensor(Region<'a>),
    /// A factor of each row of the left operand, or of each column of the right one.
    Outer(Region<'a>),
}

/// One operand: row-major and dense.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// Elements of the operand.
    pub region: Region<'a>,
    /// Element type: a float, or for a and b both an FP8 format.
    pub dtype: DType,
    /// Whether the operand's transpose is stored. In FP8 the left operand is stored as it is used and the
    /// right one transposed.
    pub transposed: bool,
    /// Factors of an operand in FP8; `None` for others.
    pub scales: Option<Scales<'a>>,
}

impl<'a> Operand<'a> {
    /// Returns an operand that is stored as it is used.
    pub fn new(region: Region<'a>, dtype: DType) -> Self {
        Operand { region, dtype, transposed: false, scales: None }
    }

    /// Returns the operand with factors.
    pub fn scaled(self, scales: Scales<'a>) -> Self {
        Operand { scales: Some(scales), ..self }
    }

    /// Returns an operand whose transpose is stored.
    pub fn transposed(self) -> Self {
        Operand { transposed: true, ..self }
    }
}

/// An operation on a matmul's result before it is written.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a> {
    /// Nothing.
    None,
    /// Adds row `bias` to every row: n elements of the output's type.
    Bias(Region<'a>),
    /// Adds the bias, n elements of the output's type, and replaces negative sums by 0.
    BiasRelu(Region<'a>),
    /// Adds the bias and a residual, and replaces negative sums by 0.
    BiasResidualRelu {
        /// n elements of the output's type.
        bias: Region<'a>,
        /// `[m, n]` of the output's type.
        residual: Region<'a>,
    },
    /// Adds the bias, writes the sum to `pre` and its GELU to the output.
    GeluBias {
        /// n elements of the output's type.
        bias: Region<'a>,
        /// `[m, n]` of the output's type.
        pre: Region<'a>,
    },
    /// Multiplies the matmul by GELU's derivative at `pre`, `[m, n]` of the output's type.
    GeluGradient {
        /// Input of GELU.
        pre: Region<'a>,
    },
    /// Also writes the sum of op(a)'s columns: m elements of the output's type.
    BiasGradient(Region<'a>),
}

/// Matmul out\[m, n\] (+)= op(a)\[m, k\] · op(b)\[k, n\], accumulated in f32.
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
    /// The output, which is never transposed.
    pub out: Operand<'a>,
    /// Whether the result is added to the output instead of overwriting it.
    pub accumulate: bool,
    /// Operation applied before the result is written.
    pub epilogue: Epilogue<'a>,
    /// Whether sums in FP8 may stay in the tensor cores' accumulators, of about 14 bits on Hopper, instead of
    /// being added in f32 now and then: faster.
    pub fast: bool,
}

impl Matmul<'_> {
    /// The least work of the matmul: each operand moved once, and two FLOPs per term.
    pub(crate) fn work(&self) -> Work {
        let m = self.m as u64;
        let n = self.n as u64;
        let k = self.k as u64;
        let bytes = |elements: u64, operand: &Operand<'_>| elements * operand.dtype.bytes() as u64;
        let out = bytes(m * n, &self.out);
        let more = match self.epilogue {
            Epilogue::None | Epilogue::Bias(_) | Epilogue::BiasRelu(_) | Epilogue::BiasGradient(_) => 0,
            Epilogue::BiasResidualRelu { .. } | Epilogue::GeluBias { .. } | Epilogue::GeluGradient { .. } => {
                out
            }
        };
        let read = if self.accumulate { out } else { 0 };
        let bytes = bytes(m * k, &self.a) + bytes(k * n, &self.b) + out + more + read;
        Work { bytes, flops: Work::flops_of_products([self.m, self.n, self.k]) }
    }
}
