//! Finds the processes on this host that belong to one start of a job.

use std::path::Path;
use std::process::{Command, Stdio};

/// Name of an environment variable of all processes in a job's start. Its value is unique to the start.
pub(super) const VARIABLE: &str = "PLIMSOLL_JOB";

/// Returns whether this process belongs to a job that another process restarts after a failure.
pub(super) fn is_of_job() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Returns the ids of processes whose [`VARIABLE`] has this value.
pub(super) fn of_job(value: &str) -> Vec<u32> {
    let wanted = format!("{VARIABLE}={value}");
    let belongs = |process: &u32| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
            && !matches!(state(*process), None | Some('Z' | 'X'))
    };
    process_ids().into_iter().filter(belongs).collect()
}

fn process_ids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the ids among [`of_job`] whose executable is this program.
pub(super) fn ranks_of_job(value: &str) -> Vec<u32> {
    let program = |process: &str| std::fs::read_link(Path::new("/proc").join(process).join("exe")).ok();
    let own = program("self");
    of_job(value)
        .into_iter()
        .filter(|process| own.is_some() && program(&process.to_string()) == own)
        .collect()
}

/// Adds the launcher's id to the ranks', unless the launcher is itself the rank (with threads), which a
/// second signal would kill.
pub(super) fn with_launcher(mut ranks: Vec<u32>, launcher: u32) -> Vec<u32> {
    if !ranks.contains(&launcher) {
        ranks.push(launcher);
    }
    ranks
}

/// Returns the state of a process, for example `T` for stopped; `None` if it is gone.
pub(super) fn state(process: u32) -> Option<char> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Sends a signal to processes. Processes that have ended are ignored.
pub(super) fn signal(name: &str, processes: &[u32]) {
    if processes.is_empty() {
        return;
    }
    let mut command = Command::new("kill");
    command.arg(format!("-{name}")).args(processes.iter().map(u32::to_string));
    // A process that has ended needs no signal.
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::with_launcher;

    #[test]
    fn a_launcher_that_is_a_rank_is_asked_to_stop_once() {
        assert_eq!(with_launcher(vec![7], 7), [7]);
        assert_eq!(with_launcher(vec![8, 9], 7), [8, 9, 7]);
    }
}
