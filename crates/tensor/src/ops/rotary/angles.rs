//! The angles of a rotation, and its direction.

use device::{Category, DType};

use crate::ops::check;
use crate::{Result, Tensor, TensorError};

/// Table of cosines and sines, starts of documents, and width of heads.
#[derive(Clone, Copy, Debug)]
pub struct Angles<'a> {
    /// Cosines of width/2 angles, then their sines, for every position: `[context, width]` f32. The first
    /// `width` columns of a head are rotated.
    pub table: &'a Tensor,
    /// Columns of a head; `None`: as many as the table.
    pub head_width: Option<usize>,
    /// Position in its sequence where each token's document starts, `[batch, time]` u32; negative (modulo
    /// 2³²) if it starts before the sequence. Angles follow the position in the document. `None`: all 0.
    pub documents: Option<&'a Tensor>,
    /// Whether elements 2·i and 2·i + 1 rotate together, instead of i and i + width/2.
    pub interleaved: bool,
}

/// The direction of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// Rotation by the angles: the forward pass.
    Forward,
    /// Rotation by the negative angles: the gradient.
    Backward,
}

impl Rotation {
    /// Returns the factor of sines.
    pub(super) fn sign(self) -> f32 {
        match self {
            Rotation::Forward => 1.0,
            Rotation::Backward => -1.0,
        }
    }

    /// Returns the category of the result's memory.
    pub(super) fn category(self) -> Category {
        match self {
            Rotation::Forward => Category::Activation,
            Rotation::Backward => Category::ActivationGradient,
        }
    }
}

impl Angles<'_> {
    pub(in crate::ops) fn head_width(&self) -> usize {
        self.head_width.unwrap_or_else(|| self.table.shape().columns())
    }
}

/// Returns the number of columns of a head that are rotated.
///
/// # Errors
/// A table or documents of a wrong shape for `x_blc [batch, time, ..]`.
pub(in crate::ops) fn check_angles(
    operator: &'static str,
    x_blc: &Tensor,
    angles: Angles<'_>,
) -> Result<usize> {
    check::rank(operator, "x", x_blc, 3)?;
    check::rank(operator, "table", angles.table, 2)?;
    check::f32s(operator, &[("table", angles.table)])?;
    let context = angles.table.shape().rows();
    let width = angles.table.shape().columns();
    let [batch, time] = [x_blc.shape().dims()[0], x_blc.shape().dims()[1]];
    if time > context || !width.is_multiple_of(2) {
        return Err(check::wrong(operator, "table", angles.table, format!("[{time} or more, even]")));
    }
    if angles.head_width() < width {
        let expected = format!("at most {} columns, those of a head", angles.head_width());
        return Err(check::wrong(operator, "table", angles.table, expected));
    }
    if let Some(documents_bl) = angles.documents {
        check::dtype(operator, "documents", documents_bl, DType::U32)?;
        check::shape(operator, "documents", documents_bl, [batch, time])?;
    }
    Ok(width)
}

/// Refuses documents that begin after one of their tokens. Checks on the CPU only.
pub(in crate::ops) fn check_documents(
    operator: &'static str,
    documents_bl: Option<&[u32]>,
    time: usize,
) -> Result<()> {
    // As signed numbers: a document may begin before the sequence.
    let late =
        |(index, first): (usize, &u32)| (first.cast_signed() > (index % time) as i32).then_some(*first);
    match documents_bl.and_then(|documents| documents.iter().enumerate().find_map(late)) {
        Some(index) => Err(TensorError::Index { operator, index, limit: time }),
        None => Ok(()),
    }
}
