//! Sending files to other hosts of the job, on threads beside the ranks.
//!
//! A [`Receiver`] listens on every network of its host. A sender proves that it knows the job's [`Secret`],
//! sends the file's name, length and bytes, and waits for one byte that confirms storage. Every wait has a
//! deadline. One thread serves all unproven connections, so that strangers take neither threads nor training
//! time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use mio::Waker;
use system::threads;

use crate::tcp::address::{Reach, listen};
use crate::tcp::channel::Channel;
use crate::tcp::handshake::{Handshake, Role, Secret};
use crate::tcp::lobby::{Limits, Lobby, Proven};

/// Interval at which a sender polls for an answer.
const LOOK: Duration = Duration::from_millis(1);
/// Longest wait for connections between checks for the end.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Time allowed to connect, and to prove the secret.
const CONNECTS: Duration = Duration::from_secs(5);
/// Longest silence of a connection.
const SILENCE: Duration = Duration::from_secs(60);
/// Maximum number of connections that have not proven the secret.
const MOST_STRANGERS: usize = 128;
/// Maximum bytes of a file name.
const MOST_NAME: usize = 1024;
/// Bytes sent at a time.
const PIECE: usize = 1 << 20;
/// Answer of a receiver that has stored a file.
const STORED: u8 = 1;

/// Stores a file, by name, number of bytes and contents.
type Store = dyn Fn(&str, u64, &mut dyn Read) -> io::Result<()> + Send + Sync;

/// Receives files on background threads until dropped.
#[derive(Debug)]
pub struct Receiver {
    port: u16,
    ends: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// Starts to receive files, and calls `store` for each.
    ///
    /// # Errors
    /// No port or no thread is available.
    pub fn start(
        secret: Secret,
        store: impl Fn(&str, u64, &mut dyn Read) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = listen(Reach::Network, 0)?;
        let limits = Limits { most: MOST_STRANGERS, patience: CONNECTS };
        let lobby = Lobby::new(listener, Some(secret), limits)?;
        let port = lobby.port()?;
        let waker = lobby.waker()?;
        let ends = Arc::new(AtomicBool::new(false));
        let (ended, store): (_, Arc<Store>) = (Arc::clone(&ends), Arc::new(store));
        let thread = threads::spawn("copies", move || accept(lobby, &store, &ended))?;
        Ok(Receiver { port, ends, waker, thread: Some(thread) })
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // A wait that this does not end times out.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic has already been printed, and senders know which files were not stored.
            let _ = thread.join();
        }
    }
}

/// Accepts connections until `ends`, and starts a thread for each one that knows the secret.
fn accept(mut lobby: Lobby, store: &Arc<Store>, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        for Proven { channel, .. } in lobby.proven(LONGEST_WAIT) {
            let store = Arc::clone(store);
            // The sender learns of an error, and reports it.
            let read = move || drop(receive(channel, &*store));
            // The sender also learns of a closed connection.
            let _ = threads::spawn("copy", read);
        }
    }
}

fn receive(channel: Channel, store: &Store) -> io::Result<()> {
    let mut stream = blocking(channel)?;
    let mut words = [0; 4];
    let mut bytes = [0; 8];
    stream.read_exact(&mut words)?;
    stream.read_exact(&mut bytes)?;
    let length = usize::try_from(u32::from_le_bytes(words)).unwrap_or(usize::MAX);
    if length > MOST_NAME {
        return Err(io::Error::new(ErrorKind::InvalidData, "the name is too long"));
    }
    let mut name = vec![0; length];
    stream.read_exact(&mut name)?;
    let name = String::from_utf8(name).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    let bytes = u64::from_le_bytes(bytes);
    store(&name, bytes, &mut (&stream).take(bytes))?;
    stream.write_all(&[STORED])
}

/// Proves knowledge of the secret to the receiver at the other end of `stream`, and checks its proof.
fn proven(stream: TcpStream, secret: &Secret) -> io::Result<TcpStream> {
    let mut handshake = Handshake::begin(stream, Role::Connects)?;
    let deadline = Instant::now() + CONNECTS;
    while !handshake.poll(Some(secret)).map_err(io::Error::other)? {
        if Instant::now() > deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        sleep(LOOK);
    }
    blocking(handshake.into_channel())
}

/// Returns the stream of a connection in blocking mode, with timeouts.
fn blocking(mut channel: Channel) -> io::Result<TcpStream> {
    while !channel.flush().map_err(io::Error::other)? {
        sleep(LOOK);
    }
    let stream = channel.into_stream();
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok(stream)
}

/// Sends a file of `bytes` bytes to the first of these addresses whose receiver stores it. `open` returns a
/// reader of the file.
///
/// # Errors
/// No receiver stored the file.
pub fn send<R: Read>(
    addresses: &[SocketAddr],
    secret: &Secret,
    (name, bytes): (&str, u64),
    open: impl Fn() -> io::Result<R>,
) -> io::Result<()> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "it has no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, CONNECTS)
            .and_then(|stream| proven(stream, secret))
            .and_then(|stream| write(stream, name, bytes, &mut open()?))
        {
            Ok(()) => return Ok(()),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn write(mut stream: TcpStream, name: &str, bytes: u64, reader: &mut dyn Read) -> io::Result<()> {
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    stream.write_all(&[&length.to_le_bytes()[..], &bytes.to_le_bytes(), name.as_bytes()].concat())?;
    let mut piece = vec![0; PIECE];
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        reader.read_exact(&mut piece[..length])?;
        stream.write_all(&piece[..length])?;
        left -= length as u64;
    }
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    if answer == [STORED] { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::Mutex;

    use super::*;

    /// Names and contents of files.
    type Files = Vec<(String, Vec<u8>)>;

    #[test]
    fn a_file_arrives_where_the_secret_is_known() {
        let secret = Secret::new(b"0123456789abcdef").unwrap();
        let stored: Arc<Mutex<Files>> = Arc::default();
        let all = Arc::clone(&stored);
        let receiver = Receiver::start(secret.clone(), move |name, bytes, reader| {
            let mut file = Vec::new();
            reader.read_to_end(&mut file)?;
            if name == "refused" || file.len() as u64 != bytes {
                return Err(io::Error::other("not stored"));
            }
            all.lock().unwrap().push((name.to_owned(), file));
            Ok(())
        })
        .unwrap();
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let file: Vec<u8> = (0..3_000_001_u32).map(|at| at as u8).collect();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let to = [closed, address(receiver.port())];
        let length = file.len() as u64;
        send(&to, &secret, ("7/a", length), || Ok(&file[..])).unwrap();
        send(&to, &secret, ("7/empty", 0), || Ok(&[][..])).unwrap();
        let other = Secret::new(b"0123456789abcdeX").unwrap();
        send(&to, &other, ("7/b", length), || Ok(&file[..])).unwrap_err();
        send(&to, &secret, ("refused", 1), || Ok(&file[..])).unwrap_err();
        send(&to, &secret, ("7/short", 10), || Ok(&file[..3])).unwrap_err();
        drop(receiver);
        assert_eq!(*stored.lock().unwrap(), [("7/a".to_owned(), file), ("7/empty".to_owned(), Vec::new())]);
    }

    /// Idle connections are evicted, and a sender always gets in.
    #[test]
    fn strangers_keep_no_file_out() {
        let secret = Secret::new(b"0123456789abcdef").unwrap();
        let receiver =
            Receiver::start(secret.clone(), |_, _, reader| io::copy(reader, &mut io::sink()).map(drop));
        let receiver = receiver.unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, receiver.port()));
        let mut idle: Vec<TcpStream> = Vec::new();
        for round in 0..3 {
            for number in 0..MOST_STRANGERS {
                let mut stranger = TcpStream::connect(address).unwrap();
                // Some begin with a valid greeting.
                stranger.write_all(&b"plimsoll"[..number % 9]).unwrap();
                idle.push(stranger);
            }
            send(&[address], &secret, ("7/a", 9), || Ok(&b"some data"[..])).unwrap_or_else(|error| {
                panic!("round {round}: {error}");
            });
        }
        let is_open = |stream: &TcpStream| {
            stream.set_read_timeout(Some(SILENCE)).unwrap();
            let mut greeting = [0; 44];
            // The receiver greets each accepted connection, and closes evicted ones.
            let mut stream = stream;
            stream.read_exact(&mut greeting).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream.read(&mut greeting).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        let open: Vec<bool> = idle.iter().map(is_open).collect();
        assert!(open.iter().filter(|is_open| **is_open).count() <= MOST_STRANGERS);
        assert!(open[2 * MOST_STRANGERS + 1..].contains(&true) && !open[..MOST_STRANGERS].contains(&true));
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        assert!(threads < MOST_STRANGERS, "{threads} threads");
    }
}
