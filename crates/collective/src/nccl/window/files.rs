//! Passes open files between the ranks of a host, over Unix sockets.
//!
//! Any process of the host can see a socket's name and connect to it. A rank therefore accepts files only
//! from processes of its own user that know a secret sent over NCCL.

use std::fs::File;
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Read, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use system::numbers::hexadecimal;

/// Bytes of the secret at the end of a socket address.
const SECRET: usize = 16;
/// Bytes of a greeting: the sender's rank and the receiver's secret.
const GREETING: usize = 4 + SECRET;
/// Maximum number of files in one message.
pub(super) const BATCH: usize = 64;
/// Interval of polling for a connection.
const PAUSE: Duration = Duration::from_millis(1);
/// Timeout of one message.
const MESSAGE: Duration = Duration::from_secs(10);

/// Creates anonymous shared memory of `bytes` zeros.
pub(super) fn anonymous(name: &str, bytes: usize) -> Result<File> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.set_len(bytes as u64)?;
    Ok(file)
}

/// The socket on which a rank accepts connections from the other ranks.
pub(super) struct Post {
    listener: UnixListener,
    address: Vec<u8>,
}

impl Post {
    pub(super) fn open() -> Result<Self> {
        let mut random = [0; 2 * SECRET];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let (name, secret) = random.split_at(SECRET);
        let mut address = b"plimsoll-".to_vec();
        address.extend(hexadecimal(name).into_bytes());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&address)?)?;
        listener.set_nonblocking(true)?;
        address.extend(secret);
        Ok(Post { listener, address })
    }

    /// Socket name followed by the secret that a connecting rank must send.
    pub(super) fn address(&self) -> &[u8] {
        &self.address
    }

    /// Connects rank `rank` with all others, whose sockets must exist.
    ///
    /// # Errors
    /// A system call failed, a rank did not connect before the deadline, or `failed` returned true.
    pub(super) fn connect(
        self,
        rank: usize,
        addresses: &[&[u8]],
        deadline: Instant,
        failed: &dyn Fn() -> bool,
    ) -> Result<Lines> {
        let mut to: Vec<Option<UnixStream>> = addresses.iter().map(|_| None).collect();
        for (other, address) in addresses.iter().enumerate().filter(|(other, _)| *other != rank) {
            let (name, secret) = split(address)?;
            let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
            check_user(&stream)?;
            stream.set_write_timeout(Some(MESSAGE))?;
            stream.write_all(&[(rank as u32).to_le_bytes().as_slice(), secret].concat())?;
            to[other] = Some(stream);
        }
        let mut from: Vec<Option<UnixStream>> = addresses.iter().map(|_| None).collect();
        let (_, secret) = split(&self.address)?;
        while from.iter().flatten().count() + 1 < addresses.len() {
            match self.listener.accept() {
                // Connections of other processes are refused, and the wait continues.
                Ok((stream, _)) => {
                    let Ok((other, stream)) = greeted(stream, secret) else { continue };
                    if let Some(slot) = from.get_mut(other).filter(|slot| slot.is_none()) {
                        *slot = Some(stream);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() >= deadline || failed() {
                        return Err(Error::new(ErrorKind::TimedOut, "a rank did not connect"));
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Lines { to, from })
    }
}

/// Splits an address into the socket's name and the secret.
fn split(address: &[u8]) -> Result<(&[u8], &[u8])> {
    let at = address.len().checked_sub(SECRET);
    let parts = at.and_then(|at| address.split_at_checked(at));
    parts.ok_or_else(|| Error::new(ErrorKind::InvalidData, "an address is too short"))
}

/// # Errors
/// The other side is a process of another user.
fn check_user(stream: &UnixStream) -> Result<()> {
    let other = socket_peercred(stream)?.uid;
    if other == geteuid() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::PermissionDenied, "the socket of a rank belongs to another user"))
}

/// Checks the greeting of a new connection, and returns the sender's rank and stream.
///
/// # Errors
/// The sender is a process of another user or does not know the secret.
fn greeted(mut stream: UnixStream, secret: &[u8]) -> Result<(usize, UnixStream)> {
    check_user(&stream)?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(MESSAGE))?;
    let mut greeting = [0; GREETING];
    stream.read_exact(&mut greeting)?;
    let (other, printed) = greeting.split_at(GREETING - SECRET);
    // All bytes are compared, so that the time does not depend on which bytes differ.
    if printed.iter().zip(secret).fold(0, |all, (a, b)| all | (a ^ b)) != 0 {
        return Err(Error::new(ErrorKind::PermissionDenied, "a process does not know the secret of the job"));
    }
    let other = other.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte));
    Ok((other, stream))
}

/// Formats the socket without its secret.
impl std::fmt::Debug for Post {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Post").field("listener", &self.listener).finish_non_exhaustive()
    }
}

/// A rank's connections with all others.
#[derive(Debug)]
pub(super) struct Lines {
    to: Vec<Option<UnixStream>>,
    from: Vec<Option<UnixStream>>,
}

impl Lines {
    /// Sends at most [`BATCH`] files to a rank. They stay open in this process.
    pub(super) fn send(&self, other: usize, files: &[BorrowedFd<'_>]) -> Result<()> {
        let line = line(&self.to, other)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(Error::new(ErrorKind::InvalidInput, "too many files for one message"));
        }
        let count = (files.len() as u32).to_le_bytes();
        match sendmsg(line, &[IoSlice::new(&count)], &mut control, SendFlags::NOSIGNAL)? {
            sent if sent == count.len() => Ok(()),
            _ => Err(Error::new(ErrorKind::WriteZero, "half a message was sent")),
        }
    }

    /// Receives the files of a rank's next message.
    pub(super) fn receive(&self, other: usize) -> Result<Vec<OwnedFd>> {
        let line = line(&self.from, other)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut count = [0; 4];
        let into = &mut [IoSliceMut::new(&mut count)];
        let message = recvmsg(line, into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut files = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                files.extend(rights);
            }
        }
        if message.bytes != count.len() || files.len() != u32::from_le_bytes(count) as usize {
            return Err(Error::new(ErrorKind::UnexpectedEof, "a rank left, or files were lost on the way"));
        }
        Ok(files)
    }
}

fn line(lines: &[Option<UnixStream>], other: usize) -> Result<&UnixStream> {
    let line = lines.get(other).and_then(Option::as_ref);
    line.ok_or_else(|| Error::new(ErrorKind::NotConnected, "no connection with that rank"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn every_rank_receives_the_files_of_all_others() {
        const RANKS: usize = 4;
        let posts: Vec<Post> = (0..RANKS).map(|_| Post::open().unwrap()).collect();
        let addresses: Vec<Vec<u8>> = posts.iter().map(|post| post.address().to_vec()).collect();
        std::thread::scope(|scope| {
            for (rank, post) in posts.into_iter().enumerate() {
                let addresses: Vec<&[u8]> = addresses.iter().map(Vec::as_slice).collect();
                scope.spawn(move || {
                    let lines = post.connect(rank, &addresses, later(), &|| false).unwrap();
                    let others = || (0..RANKS).filter(|other| *other != rank);
                    let file = |index: usize| {
                        let mut file = anonymous("test", 8).unwrap();
                        file.write_all(&[rank as u8, index as u8]).unwrap();
                        file
                    };
                    for batch in [1, BATCH, 3] {
                        let files: Vec<File> = (0..batch).map(file).collect();
                        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                        others().for_each(|other| lines.send(other, &borrowed).unwrap());
                        for other in others() {
                            let theirs = lines.receive(other).unwrap();
                            assert_eq!(theirs.len(), batch);
                            for (index, file) in theirs.into_iter().enumerate() {
                                let mut actual = [0; 2];
                                File::from(file).read_exact_at(&mut actual, 0).unwrap();
                                assert_eq!(actual, [other as u8, index as u8]);
                            }
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn processes_without_the_secret_are_refused() {
        let first = Post::open().unwrap();
        let second = Post::open().unwrap();
        let addresses = [first.address().to_vec(), second.address().to_vec()];
        let name = SocketAddr::from_abstract_name(split(first.address()).unwrap().0).unwrap();
        // One process connects as rank 1 with a wrong secret, another without a secret.
        let mut stranger = UnixStream::connect_addr(&name).unwrap();
        stranger.write_all(&[&1_u32.to_le_bytes()[..], &[7; SECRET]].concat()).unwrap();
        drop(UnixStream::connect_addr(&name).unwrap());
        std::thread::scope(|scope| {
            let meet = |rank: usize, post: Post| {
                let addresses: Vec<&[u8]> = addresses.iter().map(Vec::as_slice).collect();
                post.connect(rank, &addresses, later(), &|| false).unwrap()
            };
            let theirs = scope.spawn(move || {
                let lines = meet(1, second);
                lines.send(0, &[anonymous("theirs", 8).unwrap().as_fd()]).unwrap();
            });
            assert_eq!(meet(0, first).receive(1).unwrap().len(), 1);
            theirs.join().unwrap();
        });
        let mut byte = [0];
        assert!(matches!(stranger.read(&mut byte), Ok(0) | Err(_)));
    }

    #[test]
    fn ranks_that_do_not_connect_or_leave_are_errors() {
        let first = Post::open().unwrap();
        let second = Post::open().unwrap();
        let addresses = [first.address().to_vec(), second.address().to_vec()];
        let addresses: Vec<&[u8]> = addresses.iter().map(Vec::as_slice).collect();
        let late = first.connect(0, &addresses, Instant::now(), &|| false).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let failed = second.connect(1, &addresses, later(), &|| true).unwrap_err();
        assert!(matches!(failed.kind(), ErrorKind::TimedOut | ErrorKind::ConnectionRefused), "{failed}");
        let (here, there) = UnixStream::pair().unwrap();
        let lines = Lines { to: vec![None], from: vec![Some(here)] };
        drop(there);
        assert_eq!(lines.receive(0).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(lines.send(0, &[]).unwrap_err().kind(), ErrorKind::NotConnected);
    }
}
