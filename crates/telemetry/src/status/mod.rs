//! The status file of a rank, `logs/rank-N.status` in the run directory: the rank's last known activity.
//!
//! A killed rank reports nothing, so other ranks and users read its last activity here. The file is one short
//! text, rewritten in place at every step and every collective call by its own thread.

mod file;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use collective::{Call, Communicator, Observer};
use memory::Statistics;
use system::input;

use crate::host_name;
use file::StatusFile;

/// Size of the file in bytes, constant so that a shorter text leaves no remains of a longer one.
const BYTES: usize = 1024;

system::names! {
    /// The state of a rank.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum State {
        /// The rank trains.
        Running = "running",
        /// The rank ended with an error.
        Failed = "failed",
        /// The rank ended without an error.
        Done = "done",
    }
}

/// The contents of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The rank.
    pub rank: usize,
    /// The rank's pipeline stages in words; empty if there is one stage.
    pub stage: String,
    /// The name of the rank's host.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The rank's state.
    pub state: State,
    /// The step, from 1; 0 before the first.
    pub step: u64,
    /// The last collective call that began; empty before the first.
    pub call: String,
    /// The time at which the file was last written, since 1970.
    pub seen: Duration,
    /// Bytes allocated and reserved at the start of the step, then the peaks of both.
    pub memory: [u64; 4],
}

const MEMORY: [&str; 4] =
    ["allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"];

impl Record {
    fn new(rank: usize, stage: &str) -> Self {
        Record {
            rank,
            stage: stage.to_owned(),
            host: host_name(),
            pid: std::process::id(),
            state: State::Running,
            step: 0,
            call: String::new(),
            seen: now(),
            memory: [0; 4],
        }
    }

    /// Returns the text of the file, padded to its constant size.
    fn bytes(&self) -> Vec<u8> {
        let mut text = self.text().into_bytes();
        // Only an overlong host name could exceed the size.
        text.resize(BYTES - 1, b' ');
        text.push(b'\n');
        text
    }

    fn text(&self) -> String {
        let Record { rank, stage, host, pid, state, step, call, seen, memory } = self;
        let mut text = format!(
            "rank = {rank}\nstage = {stage}\nhost = {host}\npid = {pid}\nstate = {}\nstep = {step}\n\
             call = {call}\nseen = {:.3}\n",
            state.name(),
            seen.as_secs_f64()
        );
        for (name, bytes) in MEMORY.iter().zip(memory) {
            text += &format!("{name} = {bytes}\n");
        }
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let value =
                |line: &'_ str| line.strip_prefix(name)?.strip_prefix(" =").map(|v| v.trim().to_owned());
            text.lines().find_map(value)
        };
        let state = field("state")?;
        let mut memory = [0; 4];
        for (name, bytes) in MEMORY.iter().zip(&mut memory) {
            *bytes = field(name)?.parse().ok()?;
        }
        Some(Record {
            rank: field("rank")?.parse().ok()?,
            stage: field("stage")?,
            host: field("host")?,
            pid: field("pid")?.parse().ok()?,
            state: State::ALL.into_iter().find(|own| own.name() == state)?,
            step: field("step")?.parse().ok()?,
            call: field("call")?,
            seen: Duration::try_from_secs_f64(field("seen")?.parse().ok()?).ok()?,
            memory,
        })
    }

    /// Reads a rank's status file; `None` if it is missing or cannot be parsed.
    pub fn read(logs: &Path, rank: usize) -> Option<Self> {
        Self::parse(&input::read_text(&path(logs, rank), BYTES as u64).ok()?)
    }

    /// Returns the time since the file was last written.
    pub fn age(&self) -> Duration {
        now().saturating_sub(self.seen)
    }
}

/// Returns the path of a rank's status file.
pub fn path(logs: &Path, rank: usize) -> PathBuf {
    logs.join(format!("rank-{rank}.status"))
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// A rank's own status and its file. Clones share both.
#[derive(Clone, Debug)]
pub struct Status(Option<Rc<(StatusFile, RefCell<Record>)>>);

impl Status {
    /// Returns a status without a file, for a dry run.
    pub fn none() -> Self {
        Status(None)
    }

    /// Creates the file of a rank with these stages. A failure is logged once; the rank then continues
    /// without a file.
    pub fn create(logs: &Path, rank: usize, stage: &str) -> Self {
        let path = path(logs, rank);
        let record = Record::new(rank, stage);
        let result = std::fs::create_dir_all(logs).and_then(|()| StatusFile::create(&path, record.bytes()));
        match result {
            Ok(file) => Status(Some(Rc::new((file, RefCell::new(record))))),
            Err(error) => {
                tracing::warn!("{}: cannot be created: {error}", path.display());
                Status(None)
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Record)) {
        let Some(shared) = &self.0 else { return };
        let (file, record) = &**shared;
        let mut record = record.borrow_mut();
        change(&mut record);
        record.seen = now();
        file.write(record.bytes());
    }

    /// Records that step `step` (from 0) begins with this memory.
    pub fn step(&self, step: u64, memory: impl FnOnce() -> Statistics) {
        self.change(|record| {
            let memory = memory();
            record.step = step + 1;
            record.memory =
                [memory.allocated(), memory.reserved(), memory.peak_allocated(), memory.peak_reserved()];
        });
    }

    /// Makes `communicator` record each call in this status.
    pub fn observe(&self, communicator: &mut Communicator) {
        if let Some(observer) = self.observer() {
            communicator.control.observe(observer.clone());
            communicator.group.observe(observer);
        }
    }

    /// Returns an observer that records calls; `None` without a status file.
    pub fn observer(&self) -> Option<Observer> {
        let status = self.clone();
        let note = move |call: Call| status.change(|record| record.call = call.to_string());
        self.0.is_some().then(|| Observer::new(note))
    }

    /// Records the final state, and waits until it is written.
    pub fn end(&self, state: State) {
        self.change(|record| record.state = state);
        if let Some(shared) = &self.0 {
            shared.0.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use collective::Collective;
    use collective::threads::{Options, run};
    use device::StreamKind;

    use super::*;

    #[test]
    fn the_last_record_is_read_back() {
        let logs = tempfile::tempdir().unwrap();
        let path = logs.path().to_owned();
        run(2, Options::default(), move |mut communicator| -> Result<(), String> {
            let rank = communicator.rank();
            let status = Status::create(&path.join("logs"), rank, "stage 1 of 2");
            let first = Record::read(&path.join("logs"), rank).ok_or("no record")?;
            assert_eq!((first.step, first.call.as_str(), first.state), (0, "", State::Running));
            assert_eq!(first.stage, "stage 1 of 2");
            status.observe(&mut communicator);
            for step in 0..11 {
                status.step(step, Statistics::default);
                communicator
                    .group
                    .run(Collective::Barrier, StreamKind::Reduce)
                    .map_err(|error| error.to_string())?;
            }
            communicator.control.barrier().map_err(|error| error.to_string())?;
            status.end(State::Done);
            Ok(())
        })
        .unwrap();
        for rank in 0..2 {
            let record = Record::read(&logs.path().join("logs"), rank).unwrap();
            assert_eq!((record.rank, record.pid, record.step), (rank, std::process::id(), 11));
            assert_eq!(record.call, "control barrier #0");
            assert!(record.age() < Duration::from_secs(60));
            let file = std::fs::read(super::path(&logs.path().join("logs"), rank)).unwrap();
            assert_eq!(file.len(), BYTES);
        }
        assert_eq!(Record::read(logs.path(), 0), None);
        std::fs::write(super::path(logs.path(), 0), "rank = 0\nhost = x\n").unwrap();
        assert_eq!(Record::read(logs.path(), 0), None);
    }
}
