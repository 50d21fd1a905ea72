//! A process's settings in a job, as provided by its launcher.

use std::time::Duration;

use crate::tcp::handshake::Secret;

/// Interval at which a starting rank polls for arrivals.
pub(super) const PAUSE: Duration = Duration::from_millis(1);
/// Time after which a message names the rank being waited for.
pub(super) const NOTICE: Duration = Duration::from_secs(5);

/// A process's settings in a job, as provided by its launcher.
#[derive(Clone, Debug)]
pub struct Member {
    /// This rank's number.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// This rank's number among the ranks of its host, if the launcher provides it.
    pub local_rank: Option<usize>,
    /// The number of ranks of this host, if the launcher provides it.
    pub local_size: Option<usize>,
    /// Name or address of rank 0's host.
    pub address: String,
    /// Port on which rank 0 listens.
    pub port: u16,
    /// The job's secret. Required if ranks are on several hosts.
    pub secret: Option<Secret>,
    /// Version of the program; must be equal on all ranks.
    pub version: String,
}
