//! A rank's part in its job, as a launcher sets it.

use std::time::Duration;

use crate::tcp::handshake::Secret;

/// Interval at which a starting rank looks for what has arrived.
pub(super) const PAUSE: Duration = Duration::from_millis(1);
/// Time after which the user learns who is waited for.
pub(super) const NOTICE: Duration = Duration::from_secs(5);

/// A process's part in a job, as its launcher has set it.
#[derive(Clone, Debug)]
pub struct Member {
    /// This rank's number.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// This rank's number among the ranks of its host, if the launcher gives it.
    pub local_rank: Option<usize>,
    /// The number of ranks of this host, if the launcher gives it.
    pub local_size: Option<usize>,
    /// Name or address of rank 0's host.
    pub address: String,
    /// Port on which rank 0 listens.
    pub port: u16,
    /// The job's secret; without one, all ranks are on one host.
    pub secret: Option<Secret>,
    /// Version of the program, which must be the same on all ranks.
    pub version: String,
}
