//! Launches of `kernels/attention*.cu`.

mod backward;
mod call;
mod forward;

pub(super) use backward::{Given, backward};
pub(super) use call::check;
pub(in crate::ops) use call::{FAMILY, FAMILY_F32, FAMILY_HOPPER_BACKWARD, FAMILY_HOPPER_FORWARD};
pub(super) use forward::forward;
