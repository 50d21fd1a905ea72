//! The processes of a job as their hosts' systems see them, to find those that ended without a message.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

/// A rank's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The host's name.
    pub host: String,
    /// Number of the process on that host.
    pub pid: u32,
    /// Identity of the running system and of its numbering of processes: the same for processes that see each
    /// other.
    system: String,
    /// Start in the system's ticks, as process numbers are used again.
    began: u64,
}

impl Process {
    /// This process.
    pub(super) fn own() -> Self {
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

    pub(super) fn encode(&self) -> Vec<u8> {
        format!("{}\n{}\n{}\n{}", self.host, self.pid, self.system, self.began).into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.split('\n');
        Some(Process {
            host: lines.next()?.to_owned(),
            pid: lines.next()?.parse().ok()?,
            system: lines.next()?.to_owned(),
            began: lines.next()?.parse().ok()?,
        })
    }

    /// State of the process, `X` if it has ended; `None` for a process of another system.
    fn state(&self, own: &Process) -> Option<char> {
        let visible = self.system == own.system && !self.system.trim().is_empty() && self.began != 0;
        visible.then(|| match state_of(self.pid) {
            Some((state, began)) if began == self.began => state,
            _ => 'X',
        })
    }

    /// Returns true if the process is known to have ended.
    fn is_gone(&self, own: &Process) -> bool {
        self.state(own).is_some_and(|state| "ZXx".contains(state))
    }
}

/// State and start of a process, from `/proc/PID/stat`; `None` if there is none.
fn state_of(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before is in parentheses, and may hold anything; the start is field 22 of all.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Parent and state of a process; `None` if there is none.
pub(super) fn parent_and_state(pid: u32) -> Option<(u32, char)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

/// The processes of all ranks. Any thread may ask.
#[derive(Debug)]
pub struct Processes {
    rank: usize,
    all: Vec<Process>,
    ending: AtomicBool,
}

impl Processes {
    pub(super) fn new(rank: usize, all: Vec<Process>) -> Self {
        Processes { rank, all, ending: AtomicBool::new(false) }
    }

    /// The rank of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Every rank's process, in rank order.
    pub fn all(&self) -> &[Process] {
        &self.all
    }

    /// The first rank whose process has ended; only ranks of this host are seen.
    pub(super) fn first_gone(&self) -> Option<usize> {
        let own = self.all.get(self.rank)?;
        let gone = |(rank, process): &(usize, &Process)| *rank != self.rank && process.is_gone(own);
        self.all.iter().enumerate().find(gone).map(|(rank, _)| rank)
    }

    /// As [`Processes::first_gone`], for other threads than the worker's; `None` once the worker has made all
    /// its calls, as others may end first.
    pub fn gone(&self) -> Option<usize> {
        // Asked last: a peer ends only after this rank has said that it has come to its end.
        self.first_gone().filter(|_| !self.ending.load(Ordering::Acquire))
    }

    /// The first rank whose process is on this host and was stopped by a signal.
    pub(super) fn first_stopped(&self) -> Option<usize> {
        (0..self.all.len()).find(|rank| self.has_stopped(*rank))
    }

    /// Returns true if a rank's process is on this host and was stopped by a signal.
    pub(super) fn has_stopped(&self, rank: usize) -> bool {
        let state = self.all.get(self.rank).and_then(|own| self.all.get(rank)?.state(own));
        state.is_some_and(|state| "Tt".contains(state))
    }

    /// The reason of the failure of a rank whose process has ended.
    pub fn reason(&self, rank: usize) -> String {
        match self.all.get(rank) {
            Some(process) => format!(
                "its process {} on {} has ended without a word, as one does that is killed",
                process.pid, process.host
            ),
            None => "there is no such rank".to_owned(),
        }
    }

    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_seen_to_end_and_others_are_not() {
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
        // Ended, and nobody has asked for its status yet: a zombie.
        while processes.gone().is_none() && std::time::Instant::now() < deadline {}
        assert_eq!(processes.gone(), Some(1));
        child.wait().unwrap();
        assert_eq!(processes.gone(), Some(1));
        assert!(!Process { system: "elsewhere".to_owned(), ..other.clone() }.is_gone(&own));
        assert!(Process { began: 1, ..own.clone() }.is_gone(&own), "another process with that number");
        processes.end();
        assert_eq!(processes.gone(), None);
    }
}
