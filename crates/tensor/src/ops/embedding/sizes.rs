//! Sizes of an embedding.

use device::DType;

use crate::ops::check;
use crate::{Result, Tensor};

/// Token number of a row that another shard of the table has. Its row is −0, which leaves any number
/// unchanged when added, and it has no gradient.
pub const ABSENT: u32 = u32::MAX;

#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) time: usize,
    pub(super) vocab: usize,
    pub(super) width: usize,
}

impl Sizes {
    /// Checks tokens and tables, and returns their sizes.
    pub(super) fn check(
        operator: &'static str,
        tokens: &Tensor,
        table: &Tensor,
        positions: Option<&Tensor>,
    ) -> Result<Self> {
        check::dtype(operator, "tokens", tokens, DType::U32)?;
        let dtype = check::computed(operator, &[("table", table)])?;
        check::rank(operator, "tokens", tokens, 2)?;
        check::rank(operator, "table", table, 2)?;
        let tokens = tokens.shape();
        let width = table.shape().columns();
        let batch = tokens.rows();
        let time = tokens.columns();
        if let Some(positions) = positions {
            check::dtype(operator, "positions", positions, dtype)?;
            check::rank(operator, "positions", positions, 2)?;
            if positions.shape().columns() != width || positions.shape().rows() < time {
                let expected = format!("[at least {time}, {width}]");
                return Err(check::wrong(operator, "positions", positions, expected));
            }
        }
        Ok(Sizes { batch, time, vocab: table.shape().rows(), width })
    }

    /// Checks a gradient `[batch, time, width]` and a position table, and returns their sizes.
    pub(super) fn check_positions(operator: &'static str, dy: &Tensor, positions: &Tensor) -> Result<Self> {
        check::rank(operator, "dy", dy, 3)?;
        check::rank(operator, "positions", positions, 2)?;
        let time = dy.shape().dims()[1];
        let width = dy.shape().columns();
        if positions.shape().columns() != width || positions.shape().rows() < time {
            let expected = format!("[at least {time}, {width}]");
            return Err(check::wrong(operator, "positions", positions, expected));
        }
        Ok(Sizes { batch: dy.shape().dims()[0], time, vocab: 0, width })
    }
}
