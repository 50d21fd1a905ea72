//! Matrices in FP8.

use device::{Category, DType, Device, Request};

use crate::{Result, Tensor};

/// The numbers of inputs and outputs of a layer must be multiples of this, as the tensor cores require.
pub const MULTIPLE: usize = 16;

device::names! {
    /// Sharing of factors.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Recipe {
        /// One factor of a whole tensor.
        #[default]
        Tensorwise = "tensorwise",
        /// A factor of every row of an operand, along which a matmul adds.
        Rowwise = "rowwise",
    }
}

impl Recipe {
    /// Number of factors of a matrix with `rows` rows.
    pub(super) fn factors(self, rows: usize) -> usize {
        match self {
            Recipe::Tensorwise => 1,
            Recipe::Rowwise => rows,
        }
    }
}

/// A matrix in FP8, row-major, and the factors that turn its codes back.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// `[rows, columns]` in E4M3 or E5M2.
    pub values: Tensor,
    /// f32: `[1]`, or `[rows]` if each row has a factor.
    pub scales: Tensor,
}

/// A matrix in FP8, in one layout or both.
#[derive(Clone, Debug)]
pub struct Quantised {
    /// `[rows, columns]`.
    pub stored: Option<Scaled>,
    /// `[columns, rows]`, with zeros up to a multiple of 16 rows.
    pub transposed: Option<Scaled>,
}

/// The choice of a format, of factors and of layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// E4M3 or E5M2.
    pub format: DType,
    /// Sharing of factors.
    pub recipe: Recipe,
    /// Whether the layout of the matrix itself is made.
    pub stored: bool,
    /// Whether the transposed layout is made.
    pub transposed: bool,
    /// Category of the result's memory.
    pub category: Category,
}

impl Cast {
    /// A cast into no layout yet, of activations.
    pub fn new(format: DType, recipe: Recipe) -> Self {
        Cast { format, recipe, stored: false, transposed: false, category: Category::Activation }
    }

    /// The same cast, also into the layout of the matrix.
    #[must_use]
    pub fn stored(self) -> Self {
        Cast { stored: true, ..self }
    }

    /// The same cast, also into the transposed layout.
    #[must_use]
    pub fn transposed(self) -> Self {
        Cast { transposed: true, ..self }
    }

    /// The same cast with memory of `category`.
    #[must_use]
    pub fn of(self, category: Category) -> Self {
        Cast { category, ..self }
    }
}

/// Rows with which a transposed layout is stored.
pub(super) fn padded(rows: usize) -> usize {
    rows.next_multiple_of(MULTIPLE)
}

impl Quantised {
    /// Allocates the result of `cast` for a matrix `[rows, columns]`; with one factor, both layouts share it.
    pub fn empty(
        device: &Device,
        operator: &'static str,
        [rows, columns]: [usize; 2],
        cast: Cast,
    ) -> Result<Self> {
        let request = Request::new(cast.category, operator);
        let mut shared = None;
        let mut layout = |wanted: bool, outer: usize, inner: usize| -> Result<Option<Scaled>> {
            if !wanted {
                return Ok(None);
            }
            let values = Tensor::empty(device, [outer, inner], cast.format, request)?;
            let scales = match (&shared, cast.recipe) {
                (Some(scales), Recipe::Tensorwise) => Tensor::clone(scales),
                _ => Tensor::empty(device, [cast.recipe.factors(outer)], DType::F32, request)?,
            };
            shared = Some(scales.clone());
            Ok(Some(Scaled { values, scales }))
        };
        let stored = layout(cast.stored, rows, columns)?;
        let transposed = layout(cast.transposed, columns, padded(rows))?;
        Ok(Quantised { stored, transposed })
    }

    /// The layouts that exist.
    pub fn layouts(&self) -> impl Iterator<Item = &Scaled> {
        self.stored.iter().chain(&self.transposed)
    }
}
