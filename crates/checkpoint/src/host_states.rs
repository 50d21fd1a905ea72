//! States in the memory of a job's hosts: which are complete, and which files the hosts copy from each other.
//!
//! A state is complete if the remaining hosts together have all its files ([`missing`]). Each host then
//! copies the files it lacks ([`add_piece`]).

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use system::file_error::FileContext;

use crate::directory::{Directory, list};
use crate::error::CheckpointError;
use crate::manifest::{MANIFEST, Manifest};

/// A state with files on this host, possibly not all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostState {
    /// Number of steps completed.
    pub step: u64,
    /// Identifier of the state.
    pub id: String,
    /// Every file of the state, with its size in bytes on this host; `None` if this host lacks it.
    pub files: Vec<(String, Option<u64>)>,
}

/// Returns the states with files on this host, oldest first. Damaged states are skipped.
pub fn host_states(directory: &Path) -> Vec<HostState> {
    let all = list(directory).unwrap_or_default();
    let read = |(step, path): (u64, PathBuf)| {
        let manifest = Manifest::read(&path).ok()?;
        let file = |name: &str| {
            let there = path.join(name).metadata().map(|metadata| metadata.len());
            (
                name.to_owned(),
                there.ok().filter(|bytes| manifest.check_size(&path.join(name), *bytes).is_ok()),
            )
        };
        // The manifest itself travels like the other files.
        let files = manifest.files().map(file);
        let own = path.join(MANIFEST).metadata().ok().map(|metadata| metadata.len());
        let files = files.chain([(MANIFEST.to_owned(), own)]).collect();
        Some(HostState { step, id: manifest.id().to_owned(), files })
    };
    all.into_iter().filter_map(read).collect()
}

/// A file that some hosts must copy from another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Name of the file.
    pub name: String,
    /// Number of bytes.
    pub bytes: u64,
    /// Index of a host that has the file.
    pub from: usize,
    /// Indices of the hosts that lack the file.
    pub to: Vec<usize>,
}

/// Returns the newest state that the hosts hold together, with the files that some of them lack; `None` if no
/// state is complete.
pub fn missing(hosts: &[Vec<HostState>]) -> Option<(u64, Vec<Copied>)> {
    let mut states: Vec<_> = hosts.iter().flatten().collect();
    states.sort_by_key(|state| std::cmp::Reverse(state.step));
    states.into_iter().find_map(|state| Some((state.step, copies(hosts, state)?)))
}

fn copies(hosts: &[Vec<HostState>], state: &HostState) -> Option<Vec<Copied>> {
    let on = |host: &Vec<HostState>, name: &str| {
        let same = host.iter().find(|other| (other.step, &other.id) == (state.step, &state.id))?;
        same.files.iter().find(|(other, _)| other == name)?.1
    };
    let copied = |(name, _): &(String, Option<u64>)| {
        let (from, bytes) =
            hosts.iter().enumerate().find_map(|(host, states)| Some((host, on(states, name)?)))?;
        let lacking = hosts.iter().enumerate().filter(|(_, states)| on(states, name).is_none());
        Some(Copied { name: name.clone(), bytes, from, to: lacking.map(|(host, _)| host).collect() })
    };
    let all: Vec<_> = state.files.iter().map(copied).collect::<Option<_>>()?;
    Some(all.into_iter().filter(|copied| !copied.to.is_empty()).collect())
}

/// Reads `bytes` bytes at `offset` from a file of the state of step `step`.
pub fn read_piece(
    directory: &Path,
    step: u64,
    name: &str,
    (offset, bytes): (u64, usize),
) -> std::result::Result<Vec<u8>, CheckpointError> {
    let path = Directory::in_run(directory).step(step).join(name);
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(&path)?;
        file.seek(SeekFrom::Start(offset))?;
        let mut piece = vec![0; bytes];
        file.read_exact(&mut piece)?;
        Ok(piece)
    };
    Ok(read().context(&path, "read it")?)
}

/// Appends `piece`, whose first byte is at `offset`, to a file of the state of step `step`.
pub fn add_piece(
    directory: &Path,
    step: u64,
    name: &str,
    (offset, piece): (u64, &[u8]),
) -> std::result::Result<(), CheckpointError> {
    let state = Directory::in_run(directory).step(step);
    let path = state.join(name);
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(&state)?;
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        file.set_len(offset)?;
        file.write_all(piece)
    };
    Ok(write().context(&path, "write it")?)
}

#[cfg(test)]
mod tests {
    use super::{Copied, HostState, missing};

    /// A state with the files a, b and m. The host has the files named in `has`.
    fn state(step: u64, id: &str, has: &str) -> HostState {
        let file = |name: char| (name.to_string(), has.contains(name).then_some(7));
        HostState { step, id: id.to_owned(), files: ['a', 'b', 'm'].map(file).to_vec() }
    }

    #[test]
    fn the_newest_state_counts_that_hosts_have_together() {
        let copied = |name: &str, from, to: &[usize]| Copied {
            name: name.to_owned(),
            bytes: 7,
            from,
            to: to.to_vec(),
        };
        let old = |has| state(5, "old", has);
        let new = |has| state(10, "new", has);
        for (hosts, expected) in [
            (vec![], None),
            (vec![vec![], vec![]], None),
            (vec![vec![old("abm"), new("abm")]], Some((10, vec![]))),
            (vec![vec![old("abm"), new("am")]], Some((5, vec![]))),
            (
                vec![vec![new("am")], vec![new("bm")]],
                Some((10, vec![copied("a", 0, &[1]), copied("b", 1, &[0])])),
            ),
            // A host that has nothing gets all.
            (
                vec![vec![], vec![new("abm")]],
                Some((10, vec![copied("a", 1, &[0]), copied("b", 1, &[0]), copied("m", 1, &[0])])),
            ),
            // A state of the same step of another run.
            (vec![vec![new("am")], vec![state(10, "other", "bm")]], None),
            (
                vec![vec![new("am"), old("am")], vec![old("bm")], vec![]],
                Some((5, vec![copied("a", 0, &[1, 2]), copied("b", 1, &[0, 2]), copied("m", 0, &[2])])),
            ),
        ] {
            assert_eq!(missing(&hosts), expected, "{hosts:?}");
        }
    }
}
