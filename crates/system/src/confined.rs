//! Runs work on untrusted data in a second process of this program, with limits on memory and time.
//!
//! A library that hangs, runs out of memory or overflows its stack on hostile data ends only that process,
//! and this one gets the reason. A program that supports this must call [`serve`] first. In other programs,
//! [`Confined::start`] returns `None`, and the work must be done in this process.

use std::fmt;
use std::io::{BufReader, Error, ErrorKind, Read, Result, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::threads;

/// First argument of a confined process; the second is the task's name.
const ARGUMENT: &str = "confined-task";
/// Path of this program, valid even if its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";
/// Maximum memory of a confined process in bytes.
const MOST_MEMORY: u64 = 1 << 30;
/// Maximum processor seconds per request.
const MOST_SECONDS: u64 = 5;
/// Maximum size of a request or an answer in bytes.
const MOST_BYTES: u64 = 1 << 30;

/// Whether this program calls [`serve`].
static SERVES: AtomicBool = AtomicBool::new(false);

/// Answers requests, one after another.
pub type Answers = Box<dyn FnMut(&[u8]) -> Vec<u8>>;

/// A kind of work that confined processes do.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Name with which a process for this task is started.
    pub name: &'static str,
    /// Starts the work, in the confined process.
    pub start: fn() -> Answers,
}

/// If this process was started for a task, answers requests and returns the exit status; otherwise returns
/// `None`. Must be called first in a program, before it has threads.
pub fn serve(tasks: &[Task]) -> Option<u8> {
    SERVES.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let name = arguments.next()?;
    let task = *tasks.iter().find(|task| name == task.name)?;
    // The first thread's stack has the user's size.
    let worked = threads::spawn("confined", move || work(task)).map(std::thread::JoinHandle::join);
    Some(u8::from(!matches!(worked, Ok(Ok(Ok(()))))))
}

fn work(task: Task) -> Result<()> {
    lower(Resource::Data, getrlimit(Resource::Data), MOST_MEMORY)?;
    lower(Resource::Core, getrlimit(Resource::Core), 0)?;
    let seconds = getrlimit(Resource::Cpu);
    let mut requests = std::io::stdin().lock();
    let mut answers = std::io::stdout().lock();
    let mut answer = (task.start)();
    while let Some(request) = receive(&mut requests)? {
        let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec.unsigned_abs();
        lower(Resource::Cpu, seconds, used + 1 + MOST_SECONDS)?;
        send(&mut answers, &answer(&request))?;
    }
    Ok(())
}

/// Sets a limit of this process, unless the user's limit `own` is lower.
fn lower(resource: Resource, own: Rlimit, limit: u64) -> Result<()> {
    let current = own.current.map_or(limit, |own| own.min(limit));
    Ok(setrlimit(resource, Rlimit { current: Some(current), ..own })?)
}

fn send(to: &mut impl Write, bytes: &[u8]) -> Result<()> {
    to.write_all(&(bytes.len() as u64).to_le_bytes())?;
    to.write_all(bytes)?;
    to.flush()
}

/// Receives a message; `None` at the end of the stream.
fn receive(from: &mut impl Read) -> Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u64::from_le_bytes(length);
    if length > MOST_BYTES {
        return Err(Error::new(ErrorKind::InvalidData, "the message is too long"));
    }
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 == length).then_some(bytes))
}

/// A confined process. It ends when this is dropped or when this process ends.
pub struct Confined {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Confined {
    /// Starts a process for the task `name`; `None` if this program does not [`serve`].
    pub fn start(name: &str) -> Option<Result<Self>> {
        SERVES.load(Ordering::Relaxed).then(|| Self::spawn(name))
    }

    fn spawn(name: &str) -> Result<Self> {
        let mut command = Command::new(PROGRAM);
        command.args([ARGUMENT, name]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // In its own process group, so that a terminal's signals reach only this process.
        let mut child = command.process_group(0).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(answers)) => {
                Ok(Confined { child, requests, answers: BufReader::new(answers) })
            }
            _ => Err(Error::other("it has no pipes")),
        }
    }

    /// Sends a request and returns the answer.
    ///
    /// # Errors
    /// The process ended; the error is the reason, a phrase whose subject is the request.
    pub fn ask(&mut self, request: &[u8]) -> std::result::Result<Vec<u8>, String> {
        // A process that has already ended gives no answer either.
        let sent = send(&mut self.requests, request);
        match sent.and_then(|()| receive(&mut self.answers)) {
            Ok(Some(answer)) => Ok(answer),
            _ => Err(self.ending()),
        }
    }

    fn ending(&mut self) -> String {
        // The process has ended or is about to, because it has closed its output.
        let status = match self.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            _ => self.child.wait(),
        };
        status.map_or_else(|error| error.to_string(), in_words)
    }
}

fn in_words(status: ExitStatus) -> String {
    let is = |signal: Signal| status.signal() == Some(signal.as_raw());
    if is(Signal::XCPU) {
        return format!("it takes more than {MOST_SECONDS} s of processor time");
    }
    // Either ends a process with SIGABRT.
    if is(Signal::ABORT) || is(Signal::SEGV) {
        let memory = MOST_MEMORY >> 20;
        let stack = threads::STACK_BYTES >> 20;
        return format!("it takes more than {memory} MiB of memory or {stack} MiB of stack");
    }
    format!("the process for it ended with {status}")
}

impl Drop for Confined {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl fmt::Debug for Confined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Confined").field("process", &self.child.id()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_or_not_at_all() {
        let mut stream = Vec::new();
        send(&mut stream, b"request").unwrap();
        send(&mut stream, b"").unwrap();
        let mut from = stream.as_slice();
        assert_eq!(receive(&mut from).unwrap().as_deref(), Some(&b"request"[..]));
        assert_eq!(receive(&mut from).unwrap().as_deref(), Some(&b""[..]));
        assert!(receive(&mut from).unwrap().is_none());
        assert!(receive(&mut &stream[..10]).unwrap().is_none());
        assert!(receive(&mut [255; 16].as_slice()).is_err());
    }

    #[test]
    fn a_program_that_does_not_serve_starts_no_process() {
        assert!(Confined::start("task").is_none());
    }

    #[test]
    fn endings_are_distinguished() {
        for (status, words) in [
            (24, "5 s of processor time"),
            (6, "1024 MiB of memory or 8 MiB of stack"),
            (11, "of stack"),
            (9, "signal: 9"),
            (0x100, "exit status: 1"),
        ] {
            let text = in_words(ExitStatus::from_raw(status));
            assert!(text.contains(words), "{status}: {text}");
        }
    }
}
