//! The library's own collectives, to be measured against.

use ::mpi::collective::{CommunicatorCollectives, SystemOperation};

use crate::mpi::World;

impl World {
    /// `MPI_Allreduce`: the sum of all ranks' `values` into `sums`, which is as long, in an order of the
    /// library's. It waits inside MPI and hears of no failure: for measurements only.
    pub fn library_all_reduce(&self, values: &[f32], sums: &mut [f32]) {
        debug_assert_eq!(values.len(), sums.len());
        self.shared.library.universe.world().all_reduce_into(values, sums, SystemOperation::sum());
    }

    /// The library's name and version.
    pub fn library_version(&self) -> String {
        let text = ::mpi::environment::library_version().unwrap_or_default();
        text.split([',', '\n']).next().unwrap_or_default().trim_end_matches('\0').to_owned()
    }
}
