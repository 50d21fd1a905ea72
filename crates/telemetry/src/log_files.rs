//! Log files, written on their own thread so that no step waits for a disk.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use system::{output, threads};

use crate::progress::write_beside_bars;

/// Writes one file per rank in a directory. Dropping it waits until all lines are written.
#[derive(Debug)]
pub(crate) struct LogFiles {
    /// Requests to the thread; `None` during drop.
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Request {
    Line(usize, String),
    /// Answers once all earlier lines are written.
    Flush(SyncSender<()>),
}

impl LogFiles {
    /// Starts the thread that writes the files in `directory`.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn start(directory: PathBuf) -> Result<Self> {
        let (requests, received) = channel();
        let thread = threads::spawn("log", move || serve(&directory, &received))?;
        Ok(LogFiles { requests: Some(requests), thread: Some(thread) })
    }

    /// Passes a rank's line to the thread.
    pub(crate) fn write(&self, rank: usize, line: String) {
        self.send(Request::Line(rank, line));
    }

    /// Returns a receiver that gets a message once all lines so far are written.
    pub(crate) fn flush(&self) -> Receiver<()> {
        let (answer, answered) = sync_channel(1);
        self.send(Request::Flush(answer));
        answered
    }

    fn send(&self, request: Request) {
        if let Some(requests) = &self.requests {
            // A thread that has panicked writes no more.
            let _ = requests.send(request);
        }
    }
}

impl Drop for LogFiles {
    fn drop(&mut self) {
        self.requests = None;
        // Lines after a panic are lost; the panic was reported.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(directory: &std::path::Path, requests: &Receiver<Request>) {
    // `None` for a file that could not be opened, which has been reported.
    let mut files: HashMap<usize, Option<File>> = HashMap::new();
    for request in requests {
        match request {
            Request::Line(rank, line) => {
                let open = || {
                    let path = directory.join(format!("rank-{rank}.log"));
                    let file = output::open_own(&path, OpenOptions::new().create(true).append(true));
                    file.map_err(|error| {
                        write_beside_bars(&format!("{}: cannot open the log: {error}\n", path.display()))
                    })
                    .ok()
                };
                if let Some(file) = files.entry(rank).or_insert_with(open) {
                    // A full disk must not end the run.
                    let _ = file.write_all(line.as_bytes());
                }
            }
            // The receiver may have been dropped.
            Request::Flush(answer) => drop(answer.send(())),
        }
    }
}
