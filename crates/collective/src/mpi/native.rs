//! The MPI library's own collectives, for benchmarks.

use ::mpi::collective::{CommunicatorCollectives, SystemOperation};
use ::mpi::topology::SimpleCommunicator;

/// Calls `MPI_Allreduce`: writes the sum of all ranks' `values` to `sums`, of the same length, in the
/// library's order. Blocks inside MPI and does not detect failures. The ranks must be connected by MPI
/// ([`crate::mpi::start`]).
pub fn library_all_reduce(values: &[f32], sums: &mut [f32]) {
    debug_assert_eq!(values.len(), sums.len());
    SimpleCommunicator::world().all_reduce_into(values, sums, SystemOperation::sum());
}
