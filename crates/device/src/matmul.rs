//! Description of a matmul with its epilogue, as operators request it from a GPU.

use crate::buffer::Region;
use crate::dtype::DType;
use crate::work::Work;

/// Bytes of cuBLASLt's workspace, which lives as long as the device: NVIDIA's recommendation for Hopper.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

/// Scaling factors of an FP8 operand, f32 on the device.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// One factor for all elements.
    Tensor(Region<'a>),
    /// One factor for each row of the left operand, or for each column of the right one.
    Outer(Region<'a>),
}

/// One operand of a matmul, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// Elements of the operand.
    pub region: Region<'a>,
    /// Element type: f32 or a half type; a and b may instead both be FP8.
    pub dtype: DType,
    /// Whether the operand's transpose is stored. In FP8 the right operand must be stored transposed, the
    /// left one not.
    pub transposed: bool,
    /// Scaling factors of an FP8 operand; `None` for other types.
    pub scales: Option<Scales<'a>>,
    /// Elements from the start of a stored row to the next; `None` if rows have no padding.
    pub stride: Option<usize>,
}

impl<'a> Operand<'a> {
    /// Returns an operand stored without transposition.
    pub fn new(region: Region<'a>, dtype: DType) -> Self {
        Operand { region, dtype, transposed: false, scales: None, stride: None }
    }

    /// Returns the operand with scaling factors.
    pub fn scaled(self, scales: Scales<'a>) -> Self {
        Operand { scales: Some(scales), ..self }
    }

    /// Returns an operand whose transpose is stored.
    pub fn transposed(self) -> Self {
        Operand { transposed: true, ..self }
    }

    /// Returns an operand whose stored rows begin `stride` elements apart.
    pub fn with_stride(self, stride: usize) -> Self {
        Operand { stride: Some(stride), ..self }
    }

    /// Returns an operand without the first `columns` columns of the stored rows, which have a stride.
    #[must_use]
    pub fn skip_columns(self, columns: usize) -> Self {
        let bytes = columns * self.dtype.bytes();
        let Region { buffer, offset, bytes: all } = self.region;
        Operand {
            region: Region { buffer, offset: offset + bytes, bytes: all.saturating_sub(bytes) },
            ..self
        }
    }

    /// Returns the fewest and the most elements of the region of an operand of `shape`. The last stored row
    /// may lack its padding.
    pub(crate) fn elements(&self, shape: [usize; 2]) -> [usize; 2] {
        let [rows, stride] = self.stored(shape);
        let columns = if self.transposed { shape[0] } else { shape[1] };
        [(rows * stride + columns).saturating_sub(stride), rows * stride]
    }

    /// Returns the stored rows of an operand of `shape`, and the elements from one to the next.
    pub(crate) fn stored(&self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        let [rows, columns] = if self.transposed { [columns, rows] } else { [rows, columns] };
        [rows, self.stride.unwrap_or(columns)]
    }
}

/// An operation on a matmul's result before it is written.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a> {
    /// No operation.
    None,
    /// Adds row `bias`, n elements of the output's type, to every row.
    Bias(Region<'a>),
    /// Adds the bias, n elements of the output's type, then applies ReLU.
    BiasRelu(Region<'a>),
    /// Adds the bias and a residual, then applies ReLU.
    BiasResidualRelu {
        /// The bias, n elements of the output's type.
        bias: Region<'a>,
        /// The residual, `[m, n]` of the output's type.
        residual: Region<'a>,
    },
    /// Adds the bias, writes the sum to `pre`, and writes GELU of it to the output.
    GeluBias {
        /// The bias, n elements of the output's type.
        bias: Region<'a>,
        /// The sum before GELU, `[m, n]` of the output's type.
        pre: Region<'a>,
    },
    /// Multiplies the product by GELU's derivative at `pre`, `[m, n]` of the output's type.
    GeluGradient {
        /// Input of GELU in the forward pass.
        pre: Region<'a>,
    },
    /// Also writes the sum of op(a)'s columns (a bias's gradient): m elements of the output's type.
    BiasGradient(Region<'a>),
    /// Writes `product` · (op(a) · op(b)) + `own` · `added`, rounded once.
    Combined {
        /// Factor of the product.
        product: f32,
        /// Factor of `added`.
        own: f32,
        /// A matrix `[m, n]` of the output's type, which may be an operand but not the output.
        added: Region<'a>,
    },
}

/// A matmul: out\[m, n\] (+)= op(a)\[m, k\] · op(b)\[k, n\], accumulated in f32.
#[derive(Clone, Copy, Debug)]
pub struct Matmul<'a> {
    /// Rows of the output.
    pub m: usize,
    /// Columns of the output.
    pub n: usize,
    /// Number of terms of each sum.
    pub k: usize,
    /// The left operand.
    pub a: Operand<'a>,
    /// The right operand.
    pub b: Operand<'a>,
    /// The output, which is never transposed.
    pub out: Operand<'a>,
    /// Whether the result is added to the output; otherwise it overwrites the output.
    pub accumulate: bool,
    /// Operation applied before the result is written.
    pub epilogue: Epilogue<'a>,
    /// Whether FP8 sums may stay in the tensor cores' accumulators, which have about 14 bits on Hopper. This
    /// is faster than adding partial sums in f32.
    pub fast: bool,
}

impl Matmul<'_> {
    /// Returns the minimum work of the matmul: each operand moved once, and two FLOPs per term.
    pub(crate) fn work(&self) -> Work {
        let m = self.m as u64;
        let n = self.n as u64;
        let k = self.k as u64;
        let bytes = |elements: u64, operand: &Operand<'_>| elements * operand.dtype.bytes() as u64;
        let out = bytes(m * n, &self.out);
        let more = match self.epilogue {
            Epilogue::None | Epilogue::Bias(_) | Epilogue::BiasRelu(_) | Epilogue::BiasGradient(_) => 0,
            Epilogue::BiasResidualRelu { .. }
            | Epilogue::GeluBias { .. }
            | Epilogue::GeluGradient { .. }
            | Epilogue::Combined { .. } => out,
        };
        let read = if self.accumulate { out } else { 0 };
        let bytes = bytes(m * k, &self.a) + bytes(k * n, &self.b) + out + more + read;
        Work { bytes, flops: Work::flops_of_products([self.m, self.n, self.k]) }
    }
}
