//! The kernels and the name of the operator.

use device::Family;

use crate::ops::gpu;
use crate::ops::kernels::family;

pub(in crate::ops) static FAMILY: Family = family!("orthogonalise", constants: &[gpu::THREADS_CONSTANT]);

pub(super) const OPERATOR: &str = "orthogonalise";
