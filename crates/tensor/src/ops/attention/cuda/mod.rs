//! Launches of `kernels/attention*.cu`.

mod backward;
mod call;
mod families;
mod forward;
mod half;
mod hopper;
mod needs;

pub(super) use backward::{Operands, backward};
pub(super) use call::check;
pub(crate) use families::{FAMILY, FAMILY_F32, FAMILY_PARTS, FAMILY_WIDE, widths};
pub(super) use forward::forward;
pub(crate) use hopper::{FAMILY_HOPPER_BACKWARD, FAMILY_HOPPER_FORWARD, FAMILY_HOPPER_WIDE};
