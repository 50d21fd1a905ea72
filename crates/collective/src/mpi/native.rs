//! The MPI library's own collectives, for benchmarks.

use ::mpi::collective::{CommunicatorCollectives, SystemOperation};

use crate::mpi::World;

impl World {
    /// Calls `MPI_Allreduce`: the sum of all ranks' `values` goes to `sums`, of the same length, in the
    /// library's order. It blocks inside MPI and does not detect failures, so it is for benchmarks only.
    pub fn library_all_reduce(&self, values: &[f32], sums: &mut [f32]) {
        debug_assert_eq!(values.len(), sums.len());
        self.shared.library.universe.world().all_reduce_into(values, sums, SystemOperation::sum());
    }

    /// Name and version of the library.
    pub fn library_version(&self) -> String {
        let text = ::mpi::environment::library_version().unwrap_or_default();
        text.split([',', '\n']).next().unwrap_or_default().trim_end_matches('\0').to_owned()
    }
}
