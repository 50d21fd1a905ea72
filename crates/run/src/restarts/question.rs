//! Questions to hosts: commands that run there.

use std::fmt;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use system::threads;

use super::named_host::MOST_BYTES;

/// Makes a number of a command's output.
type Understand = Box<dyn Fn(&str) -> usize>;

/// A question to a host, whose answer is a number.
pub(super) enum Question {
    /// The answer; `None` if the host does not answer.
    Answered(Option<usize>),
    /// The process that asks.
    Asked {
        process: Child,
        /// Reads the output, so that the process never waits for a reader.
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
    /// Starts a command that answers with `answer` if it succeeds.
    pub(super) fn asked(command: Command, answer: usize) -> Self {
        Self::start(command, Stdio::null(), Box::new(move |_| answer))
    }

    /// Starts a command, of whose output `understand` makes the answer.
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

    /// Returns the answer, `Some(None)` if the host gives none; `None` if that is not known yet.
    pub(super) fn answer(&mut self) -> Option<Option<usize>> {
        let (process, output, understand) = match self {
            Question::Answered(answer) => return Some(*answer),
            Question::Asked { process, output, understand } => (process, output, understand),
        };
        let succeeded = match process.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => status.success(),
            Err(_) => false,
        };
        if succeeded && output.as_ref().is_some_and(|output| !output.is_finished()) {
            return None;
        }
        let text = output.take().filter(|_| succeeded).and_then(|output| output.join().ok());
        let answer = succeeded.then(|| understand(&text.unwrap_or_default()));
        *self = Question::Answered(answer);
        Some(answer)
    }

    /// Ends the process that asks.
    pub(super) fn end(&mut self) {
        if let Question::Asked { process, .. } = self {
            // A process that has ended cannot be killed.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
