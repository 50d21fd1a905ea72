//! The processes of a job as listed by their hosts, to detect processes that died silently.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

/// The operating-system process of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Name of the process's host.
    pub host: String,
    /// Process identifier on that host.
    pub pid: u32,
    /// Boot identifier and process namespace; equal for processes that can see each other.
    system: String,
    /// Start time in clock ticks, because process identifiers are reused.
    began: u64,
}

impl Process {
    /// Describes this process.
    pub(crate) fn own() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let numbering = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let pid = std::process::id();
        Process {
            host: host.trim().to_owned(),
            pid,
            system: format!("{} {}", boot.trim(), numbering.display()),
            began: state_of(pid).map_or(0, |(_, began)| began),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        format!("{}\n{}\n{}\n{}", self.host, self.pid, self.system, self.began).into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.split('\n');
        Some(Process {
            host: lines.next()?.to_owned(),
            pid: lines.next()?.parse().ok()?,
            system: lines.next()?.to_owned(),
            began: lines.next()?.parse().ok()?,
        })
    }

    /// State of the process as in `/proc/PID/stat`, `X` if it has ended; `None` if it runs on another system.
    fn state(&self, own: &Process) -> Option<char> {
        let visible = self.system == own.system && !self.system.trim().is_empty() && self.began != 0;
        visible.then(|| match state_of(self.pid) {
            Some((state, began)) if began == self.began => state,
            _ => 'X',
        })
    }

    /// Returns whether the process is known to have ended.
    fn is_gone(&self, own: &Process) -> bool {
        self.state(own).is_some_and(|state| "ZXx".contains(state))
    }
}

/// Returns the state and start time of a process, from `/proc/PID/stat`; `None` if it does not exist.
fn state_of(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything; the start time is field 22.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Returns the parent and state of a process; `None` if it does not exist.
#[cfg(feature = "mpi")]
pub(crate) fn parent_and_state(pid: u32) -> Option<(u32, char)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

/// The processes of all ranks. Usable from any thread.
#[derive(Debug)]
pub struct Processes {
    rank: usize,
    all: Vec<Process>,
    ending: AtomicBool,
}

impl Processes {
    pub(crate) fn new(rank: usize, all: Vec<Process>) -> Self {
        Processes { rank, all, ending: AtomicBool::new(false) }
    }

    /// The rank of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// All ranks' processes, in rank order.
    pub fn all(&self) -> &[Process] {
        &self.all
    }

    /// Returns this rank's number among the ranks of its host, and the number of ranks there.
    pub(crate) fn on_host(&self) -> (usize, usize) {
        let own = self.all.get(self.rank);
        let is_here = |process: &&Process| {
            own.is_some_and(|own| process.host == own.host && process.system == own.system)
        };
        let before = self.all.iter().take(self.rank).filter(is_here).count();
        (before, self.all.iter().filter(is_here).count())
    }

    /// Returns the first rank of this host whose process has ended.
    pub(crate) fn first_gone(&self) -> Option<usize> {
        let own = self.all.get(self.rank)?;
        let gone = |(rank, process): &(usize, &Process)| *rank != self.rank && process.is_gone(own);
        self.all.iter().enumerate().find(gone).map(|(rank, _)| rank)
    }

    /// Returns the first rank of this host whose process has ended too early; `None` once this rank has made
    /// all its calls. For threads other than the worker's.
    pub fn gone(&self) -> Option<usize> {
        // Read last: a peer exits only after this rank has announced its own end.
        self.first_gone().filter(|_| !self.ending.load(Ordering::Acquire))
    }

    /// Returns the first rank of this host whose process was stopped by a signal.
    #[cfg(feature = "mpi")]
    pub(crate) fn first_stopped(&self) -> Option<usize> {
        (0..self.all.len()).find(|rank| self.has_stopped(*rank))
    }

    /// Returns whether a rank's process is on this host and was stopped by a signal.
    pub(crate) fn has_stopped(&self, rank: usize) -> bool {
        let state = self.all.get(self.rank).and_then(|own| self.all.get(rank)?.state(own));
        state.is_some_and(|state| "Tt".contains(state))
    }

    /// Returns an error message for a rank whose process has ended.
    pub fn reason(&self, rank: usize) -> String {
        match self.all.get(rank) {
            Some(process) => format!(
                "its process {} on {} has ended without a message, as when it is killed",
                process.pid, process.host
            ),
            None => "there is no such rank".to_owned(),
        }
    }

    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn ended_processes_are_detected() {
        let own = Process::own();
        assert_eq!(Process::decode(&own.encode()), Some(own.clone()));
        assert!(!own.is_gone(&own));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (_, began) = state_of(child.id()).unwrap();
        let other = Process { pid: child.id(), began, ..own.clone() };
        let processes = Processes::new(0, vec![own.clone(), other.clone()]);
        assert_eq!(processes.gone(), None);
        child.kill().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        // The process has ended but its status has not been collected: a zombie.
        while processes.gone().is_none() && std::time::Instant::now() < deadline {}
        assert_eq!(processes.gone(), Some(1));
        child.wait().unwrap();
        assert_eq!(processes.gone(), Some(1));
        assert!(!Process { system: "elsewhere".to_owned(), ..other.clone() }.is_gone(&own));
        assert!(Process { began: 1, ..own.clone() }.is_gone(&own), "another process with the same number");
        processes.end();
        assert_eq!(processes.gone(), None);
    }
}
