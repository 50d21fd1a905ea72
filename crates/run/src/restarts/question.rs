//! Queries of hosts, by commands that run there.

use std::fmt;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::task::Poll;
use std::thread::JoinHandle;

use system::threads;

use super::named_host::MOST_BYTES;

/// Parses a command's output into a number.
type Understand = Box<dyn Fn(&str) -> usize>;

/// A query of a host, answered by a number.
pub(super) enum Question {
    /// The answer; `None` if the host did not answer.
    Answered(Option<usize>),
    /// The command is still running.
    Asked {
        process: Child,
        /// Thread that reads the output, so that the command never blocks on a full pipe.
        output: Option<JoinHandle<String>>,
        understand: Understand,
    },
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Question::Answered(answer) => f.debug_tuple("Answered").field(answer).finish(),
            Question::Asked { process, .. } => f.debug_tuple("Asked").field(&process.id()).finish(),
        }
    }
}

impl Question {
    /// Starts a command. If it succeeds, the answer is `answer`.
    pub(super) fn asked(command: Command, answer: usize) -> Self {
        Self::start(command, Stdio::null(), Box::new(move |_| answer))
    }

    /// Starts a command. `understand` parses the answer from its output.
    pub(super) fn read(command: Command, understand: impl Fn(&str) -> usize + 'static) -> Self {
        Self::start(command, Stdio::piped(), Box::new(understand))
    }

    fn start(mut command: Command, output: Stdio, understand: Understand) -> Self {
        command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(output);
        let Ok(mut process) = command.spawn() else { return Question::Answered(None) };
        let output = process.stdout.take().and_then(|output| {
            let read = move || {
                let mut bytes = Vec::new();
                // What has been read before an error counts.
                let _ = output.take(MOST_BYTES).read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            };
            threads::spawn("answer", read).ok()
        });
        Question::Asked { process, output, understand }
    }

    /// Returns the answer once the command has ended; `Ready(None)` if the host did not answer.
    pub(super) fn answer(&mut self) -> Poll<Option<usize>> {
        let (process, output, understand) = match self {
            Question::Answered(answer) => return Poll::Ready(*answer),
            Question::Asked { process, output, understand } => (process, output, understand),
        };
        let succeeded = match process.try_wait() {
            Ok(None) => return Poll::Pending,
            Ok(Some(status)) => status.success(),
            Err(_) => false,
        };
        if succeeded && output.as_ref().is_some_and(|output| !output.is_finished()) {
            return Poll::Pending;
        }
        let text = output.take().filter(|_| succeeded).and_then(|output| output.join().ok());
        let answer = succeeded.then(|| understand(&text.unwrap_or_default()));
        *self = Question::Answered(answer);
        Poll::Ready(answer)
    }

    /// Kills the command if it still runs.
    pub(super) fn end(&mut self) {
        if let Question::Asked { process, .. } = self {
            // A process that has ended cannot be killed.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
