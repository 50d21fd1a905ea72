//! Finds the processes that the same launcher started on this host, without MPI.

use std::fs;
use std::path::PathBuf;

use crate::processes::parent_and_state;

/// A process with the same parent as this one.
struct Sibling {
    pid: u32,
    /// Rank assigned by the launcher.
    rank: Option<String>,
    state: char,
    program: Option<PathBuf>,
}

/// Environment variables in which launchers pass the rank.
const RANKS: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];
const LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";

/// Returns the rank assigned by the launcher, or 0.
pub(super) fn own_rank() -> usize {
    let rank = RANKS.iter().find_map(|name| std::env::var(name).ok());
    rank.and_then(|rank| rank.parse().ok()).unwrap_or(0)
}

/// Returns a guess why not all ranks have started, for an error message.
pub(super) fn why_incomplete() -> String {
    let own_program = fs::read_link("/proc/self/exe").ok();
    let siblings = siblings();
    let named = |sibling: &Sibling| {
        let rank = sibling.rank.as_ref().map_or("a process".to_owned(), |rank| format!("rank {rank}"));
        format!("{rank}, process {} of this host,", sibling.pid)
    };
    if let Some(stopped) = siblings.iter().find(|sibling| "Tt".contains(sibling.state)) {
        return format!("{} has stopped", named(stopped));
    }
    if let Some(other) = siblings.iter().find(|sibling| sibling.program != own_program) {
        let program = other.program.as_ref().map(|path| path.display().to_string());
        return format!("{} is another program, {}", named(other), program.unwrap_or_default());
    }
    let expected = std::env::var(LOCAL_SIZE).ok().and_then(|size| size.parse::<usize>().ok());
    match expected {
        // This process is not among its siblings.
        Some(expected) if siblings.len() + 1 < expected => format!(
            "the launcher started {expected} processes on this host, of which {} can be seen: another has ended",
            siblings.len() + 1
        ),
        _ => "no process of this host is missing, so a rank of another host did not start".to_owned(),
    }
}

fn siblings() -> Vec<Sibling> {
    let own = std::process::id();
    let Some((parent, _)) = parent_and_state(own) else { return Vec::new() };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own)
        .filter_map(|pid| {
            let (its_parent, state) = parent_and_state(pid)?;
            let is_alive = its_parent == parent && !"ZXx".contains(state);
            is_alive.then(|| Sibling {
                pid,
                rank: rank_of(pid),
                state,
                program: fs::read_link(format!("/proc/{pid}/exe")).ok(),
            })
        })
        .collect()
}

/// Returns the rank in another process's environment.
fn rank_of(pid: u32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        String::from_utf8(value.to_vec()).ok()
    };
    RANKS.iter().find_map(|name| value(name))
}
