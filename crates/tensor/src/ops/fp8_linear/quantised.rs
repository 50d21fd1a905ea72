//! Matrices in FP8.

use device::{Category, DType, Device, Request};

use crate::{Result, Tensor};

/// Divisor of a layer's numbers of inputs and outputs, as the tensor cores require.
pub const MULTIPLE: usize = 16;

device::names! {
    /// Granularity of the scaling factors.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Recipe {
        /// One factor for the whole tensor.
        #[default]
        Tensorwise = "tensorwise",
        /// One factor for each row of an operand; matmuls sum along rows.
        Rowwise = "rowwise",
    }
}

impl Recipe {
    /// Returns the number of factors of a matrix with `rows` rows.
    pub(super) fn factors(self, rows: usize) -> usize {
        match self {
            Recipe::Tensorwise => 1,
            Recipe::Rowwise => rows,
        }
    }
}

/// An FP8 matrix, row-major, with the factors that decode it.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// The codes, `[rows, columns]` in E4M3 or E5M2.
    pub values: Tensor,
    /// The factors, f32: `[1]`, or `[rows]` with one per row.
    pub scales: Tensor,
}

/// An FP8 matrix in the layout as stored, the transposed one, or both.
#[derive(Clone, Debug)]
pub struct Quantised {
    /// The layout as stored, `[rows, columns]`.
    pub stored: Option<Scaled>,
    /// The transposed layout, `[columns, rows]`, with rows padded by zeros to a multiple of 16.
    pub transposed: Option<Scaled>,
}

/// Options of a cast to FP8: format, factors, layouts and category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// FP8 format: E4M3 or E5M2.
    pub format: DType,
    /// Granularity of the scaling factors.
    pub recipe: Recipe,
    /// Whether to make the layout as stored.
    pub stored: bool,
    /// Whether to make the transposed layout.
    pub transposed: bool,
    /// Category of the result's memory.
    pub category: Category,
}

impl Cast {
    /// Returns the options of a cast of activations; add layouts by [`Cast::stored`] and
    /// [`Cast::transposed`].
    pub fn new(format: DType, recipe: Recipe) -> Self {
        Cast { format, recipe, stored: false, transposed: false, category: Category::Activation }
    }

    /// Returns this cast with the layout as stored added.
    #[must_use]
    pub fn stored(self) -> Self {
        Cast { stored: true, ..self }
    }

    /// Returns this cast with the transposed layout added.
    #[must_use]
    pub fn transposed(self) -> Self {
        Cast { transposed: true, ..self }
    }

    /// Returns this cast with memory of `category`.
    #[must_use]
    pub fn with_category(self, category: Category) -> Self {
        Cast { category, ..self }
    }
}

/// Returns the number of rows padded for the transposed layout.
pub(super) fn padded(rows: usize) -> usize {
    rows.next_multiple_of(MULTIPLE)
}

impl Quantised {
    /// Allocates the result of `cast` for a matrix `[rows, columns]`. With one factor, both layouts share it.
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

    /// Returns the layouts that exist.
    pub fn layouts(&self) -> impl Iterator<Item = &Scaled> {
        self.stored.iter().chain(&self.transposed)
    }
}
