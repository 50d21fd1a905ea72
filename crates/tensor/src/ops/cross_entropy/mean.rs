//! The mean that a loss of rows is.

use device::DType;

use crate::ops::check;
use crate::{Result, Tensor};

/// A mean over rows: `scale` times the sum of the rows' losses, divided by a number of rows.
#[derive(Clone, Copy, Debug)]
pub struct Mean<'a> {
    /// The factor of the mean.
    pub scale: f32,
    /// The divisor, one u32 on the device: rows of several calls, whose losses then add up to the mean over
    /// all of them. `None`: the number of the call's own rows that are not ignored.
    pub count: Option<&'a Tensor>,
}

impl Mean<'_> {
    /// Returns the mean over a call's own rows that are not ignored.
    pub fn of_rows(scale: f32) -> Self {
        Mean { scale, count: None }
    }

    pub(in crate::ops) fn check(self, operator: &'static str) -> Result<()> {
        let Some(count) = self.count else { return Ok(()) };
        check::dtype(operator, "count", count, DType::U32)?;
        check::elements(operator, "count", count, 1)
    }

    /// Returns the divisor on the CPU, where the call has `own` rows that are not ignored.
    pub(in crate::ops) fn divisor(self, own: usize) -> Result<u32> {
        match self.count {
            Some(count) => Ok(count.read::<u32>()?[0]),
            None => Ok(own as u32),
        }
    }

    /// Returns the mean of rows whose losses have the sum `total`; 0 if the divisor is 0.
    pub(in crate::ops) fn of_total(self, total: f64, divisor: u32) -> f32 {
        if divisor == 0 { 0.0 } else { (f64::from(self.scale) * total / f64::from(divisor)) as f32 }
    }
}
