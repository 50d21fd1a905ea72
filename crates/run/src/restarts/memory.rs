//! The states in the memory of a job's hosts, as seen by the process that restarts the job.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::hosts::Hosts;
use crate::memory_states;

/// The directories of a job's states in memory. Dropping the value deletes them.
#[derive(Debug)]
pub(super) struct MemoryOfJob {
    name: String,
    directory: Option<PathBuf>,
    /// The hosts that keep states; `None` if the job keeps none.
    hosts: Option<Hosts>,
}

impl MemoryOfJob {
    /// Chooses a name for the job's directories. If `hosts` is set, the ranks there create them.
    pub(super) fn new(hosts: Option<Hosts>) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("plimsoll-{}-{}", std::process::id(), since_1970.as_nanos());
        let directory = memory_states::root(&name);
        MemoryOfJob { name, directory, hosts }
    }

    /// Returns the directory's name, which is passed to ranks.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the directory on this machine.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Returns the step of the newest state on this machine; 0 if there is none.
    pub(super) fn newest(&self) -> u64 {
        self.directory().map_or(0, memory_states::newest)
    }
}

impl Drop for MemoryOfJob {
    fn drop(&mut self) {
        let Some(directory) = &self.directory else { return };
        memory_states::remove(directory);
        self.hosts.iter().for_each(|hosts| hosts.remove(directory));
    }
}
