//! Scale and divisor of a mean loss.

use device::DType;

use crate::ops::check;
use crate::{Result, Tensor};

/// Scale and divisor of a loss: `scale` · the sum of the rows' losses / a number of rows.
#[derive(Clone, Copy, Debug)]
pub struct Mean<'a> {
    /// The factor of the mean.
    pub scale: f32,
    /// Divisor, one u32 on the device, such as the rows of several calls, whose losses then add up to one
    /// mean. `None`: the call's own rows that are not ignored.
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

    /// Returns the divisor on the CPU. `own` is the call's number of rows that are not ignored.
    pub(in crate::ops) fn divisor(self, own: usize) -> Result<u32> {
        match self.count {
            Some(count) => Ok(count.read::<u32>()?[0]),
            None => Ok(own as u32),
        }
    }

    /// Returns the mean of rows whose losses sum to `total`; 0 if the divisor is 0.
    pub(in crate::ops) fn of_total(self, total: f64, divisor: u32) -> f32 {
        if divisor == 0 { 0.0 } else { (f64::from(self.scale) * total / f64::from(divisor)) as f32 }
    }
}
