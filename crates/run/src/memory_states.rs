//! States in the memory of a job's hosts, from which a job restarts without reading a disk.
//!
//! Each host has a directory for the job in a file system in memory. The process that restarts the job names
//! the directory and removes it.

use std::path::{Path, PathBuf};

use checkpoint::{
    Checkpoint, Copied, Directory, HostState, Share, add_piece, find_share, host_states, missing, read_piece,
};
use system::private;
use telemetry::host_name;

use crate::error::{Result, RunError};
use crate::startup::Startup;

/// Name of the environment variable that holds the name of the job's directory, which outlives single starts.
pub(crate) const VARIABLE: &str = "PLIMSOLL_MEMORY";
/// Mount point of the file system in memory.
const MEMORY: &str = "/dev/shm";
/// Chunk size for sending a file, in bytes.
const PIECE: u64 = 16 << 20;

/// Returns the directory on this machine for the job named `name`.
pub(crate) fn root(name: &str) -> Option<PathBuf> {
    let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    Some(name).filter(|name| is_plain(name) && !name.is_empty()).map(|name| Path::new(MEMORY).join(name))
}

/// Returns this host's directory of the job; `None` if no process restarts the job.
pub(crate) fn of_process() -> Option<PathBuf> {
    Some(root(&std::env::var(VARIABLE).ok()?)?.join(host_name()))
}

/// Creates this host's directory, which only this user can read.
///
/// # Errors
/// There is no file system in memory.
pub(crate) fn make(directory: &Path) -> Result<()> {
    let failed = |source| RunError::File { path: directory.to_owned(), source };
    let parent = directory.parent().unwrap_or(Path::new(MEMORY));
    private::make_directory(parent).and_then(|()| private::make_directory(directory)).map_err(failed)
}

/// Deletes a directory of states.
pub(crate) fn remove(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("{}: the states in memory are still there: {error}", directory.display());
    }
}

/// Returns the step of the newest state in this machine's memory, complete or not; 0 if there is none.
pub(crate) fn newest(root: &Path) -> u64 {
    let hosts = std::fs::read_dir(root).into_iter().flatten().flatten();
    let steps = hosts.flat_map(|host| host_states(&host.path())).map(|state| state.step);
    steps.max().unwrap_or(0)
}

/// A state found in this host's memory.
#[derive(Clone, Debug)]
pub(crate) struct InMemory {
    /// The state. The processes of this host have each verified a share of its files.
    pub(crate) checkpoint: Checkpoint,
}

/// Finds the newest state that the hosts of this job hold together, and copies missing files until every host
/// has all in its `directory`. Returns that state. Every rank must call this.
///
/// # Errors
/// Communication or access to files in memory fails.
pub(crate) fn complete(startup: &mut Startup, directory: &Path) -> Result<Option<InMemory>> {
    if startup.local().0 == 0 {
        // What killed ranks left.
        let _ = Directory::in_run(directory).tidy(u64::MAX);
    }
    let own = Host { name: host_name(), states: host_states(directory) };
    let hosts = of_ranks(startup.of_all(&serde_json::to_string(&own).unwrap_or_default())?);
    let states: Vec<_> = hosts.iter().map(|(host, _)| host.states.clone()).collect();
    let Some((step, copied)) = missing(&states) else { return Ok(None) };
    for file in &copied {
        copy(startup, directory, (step, file), &hosts)?;
    }
    let (index, of) = startup.local();
    let opened = find_share(directory, Some(step), Share { index, of });
    // All ranks go on from the same state.
    let damage = opened.as_ref().err().map(ToString::to_string).unwrap_or_default();
    if let Some(damage) = startup.of_all(&damage)?.into_iter().find(|damage| !damage.is_empty()) {
        tracing::warn!("the state of step {step} in memory is not used: {damage}");
        return Ok(None);
    }
    Ok(opened.ok().map(|checkpoint| InMemory { checkpoint }))
}

/// A host's states, as one of its ranks reports them.
#[derive(serde::Serialize, serde::Deserialize)]
struct Host {
    name: String,
    states: Vec<HostState>,
}

/// Groups the reports of all ranks by host. Returns each host with its first rank.
fn of_ranks(all: Vec<String>) -> Vec<(Host, usize)> {
    let mut hosts: Vec<(Host, usize)> = Vec::new();
    for (rank, text) in all.iter().enumerate() {
        let Ok(host) = serde_json::from_str::<Host>(text) else { continue };
        if hosts.iter().all(|(other, _)| other.name != host.name) {
            hosts.push((host, rank));
        }
    }
    hosts
}

/// Copies a file to the hosts that lack it.
fn copy(
    startup: &mut Startup,
    directory: &Path,
    (step, file): (u64, &Copied),
    hosts: &[(Host, usize)],
) -> Result<()> {
    let Copied { name, bytes, from, to } = file;
    let source = hosts[*from].1;
    let takes = to.iter().any(|host| hosts[*host].1 == startup.rank());
    let mut offset = 0;
    // An empty file is made, too.
    while offset < *bytes || offset == 0 {
        let length = (bytes - offset).min(PIECE);
        let piece = match source == startup.rank() {
            true => read_piece(directory, step, name, (offset, length as usize)),
            false => Ok(Vec::new()),
        };
        let mut piece = startup.agree(piece.map_err(RunError::from))?;
        startup.broadcast(source, &mut piece)?;
        let added = if takes { add_piece(directory, step, name, (offset, &piece)) } else { Ok(()) };
        startup.agree(added.map_err(RunError::from))?;
        offset += length.max(1);
    }
    Ok(())
}
