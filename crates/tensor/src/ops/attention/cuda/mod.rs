//! Launches of `kernels/attention*.cu`.

mod backward;
mod call;
mod families;
mod forward;

pub(super) use backward::{Operands, backward};
pub(super) use call::check;
pub(crate) use families::{FAMILY, FAMILY_F32, FAMILY_HOPPER_BACKWARD, FAMILY_HOPPER_FORWARD, widths};
pub(super) use forward::forward;
