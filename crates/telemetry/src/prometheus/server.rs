//! A single-threaded HTTP server that never blocks on one client and limits clients' number and time.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum time from a client's connection to the end of the response.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum size of a request in bytes.
pub(super) const MOST_REQUEST: usize = 8192;
/// Maximum number of clients; a further one replaces the longest connected.
const MOST_CLIENTS: usize = 64;
/// Pause after the system refuses a connection, for example because too many files are open.
const PAUSE: Duration = Duration::from_millis(100);

struct Client {
    stream: TcpStream,
    until: Instant,
    request: Vec<u8>,
    /// Unsent bytes of the response, once the request is complete.
    answer: Option<Vec<u8>>,
}

/// Answers clients of `listener`, which must be non-blocking, until `ended` is set and a client connects.
/// `answer` maps a request to a response.
pub(super) fn serve(listener: &TcpListener, ended: &AtomicBool, answer: &dyn Fn(&[u8]) -> Vec<u8>) {
    let mut clients = VecDeque::new();
    loop {
        wait(listener, &clients);
        if ended.load(Ordering::Relaxed) {
            return;
        }
        accept(listener, &mut clients);
        let now = Instant::now();
        // A client that disconnects or is too slow gets nothing more.
        clients.retain_mut(|client| client.until > now && client.advance(answer).unwrap_or(false));
    }
}

/// Waits until a client connects, is readable or writable, or times out.
fn wait(listener: &TcpListener, clients: &VecDeque<Client>) {
    let mut all = vec![PollFd::new(listener, PollFlags::IN)];
    all.extend(clients.iter().map(|client| {
        let awaited = if client.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(&client.stream, awaited)
    }));
    let until = clients.iter().map(|client| client.until).min();
    let patience = until.map(|until| until.saturating_duration_since(Instant::now()));
    let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
    if poll(&mut all, patience.as_ref()).is_err() {
        // A signal interrupted the wait, or memory is short.
        std::thread::sleep(PAUSE);
    }
}

fn accept(listener: &TcpListener, clients: &mut VecDeque<Client>) {
    for _ in 0..MOST_CLIENTS {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(_) => return std::thread::sleep(PAUSE),
        };
        if stream.set_nonblocking(true).is_err() {
            continue;
        }
        if clients.len() == MOST_CLIENTS {
            clients.pop_front();
        }
        let until = Instant::now() + PATIENCE;
        clients.push_back(Client { stream, until, request: Vec::new(), answer: None });
    }
}

impl Client {
    /// Reads and writes as much as possible without blocking. Returns whether the client needs more.
    fn advance(&mut self, answer: &dyn Fn(&[u8]) -> Vec<u8>) -> io::Result<bool> {
        while self.answer.is_none() {
            let mut piece = [0; 1024];
            let Some(bytes) = now(self.stream.read(&mut piece))? else { return Ok(true) };
            self.request.extend(&piece[..bytes]);
            let is_complete = self.request.windows(4).any(|end| end == b"\r\n\r\n");
            if bytes == 0 || is_complete || self.request.len() >= MOST_REQUEST {
                self.answer = Some(answer(&self.request));
            }
        }
        let Some(rest) = &mut self.answer else { return Ok(false) };
        while !rest.is_empty() {
            let Some(bytes) = now(self.stream.write(rest))? else { return Ok(true) };
            if bytes == 0 {
                return Ok(false);
            }
            rest.drain(..bytes);
        }
        Ok(false)
    }
}

/// Returns the number of transferred bytes; `None` if the transfer would block.
fn now(transferred: io::Result<usize>) -> io::Result<Option<usize>> {
    match transferred {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}
