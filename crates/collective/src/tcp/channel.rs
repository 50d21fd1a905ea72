//! A non-blocking connection during the start of a job: reads fixed lengths or length-prefixed parcels.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle};

/// Idle time after which the system checks that a connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// Bytes of the length before a parcel.
const LENGTH_BYTES: usize = 4;

/// The reason why a connection is unusable.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("it closed the connection")]
    Closed,
    #[error("{0}")]
    Io(io::Error),
    #[error("it sent {0} bytes where fewer are allowed")]
    TooLong(usize),
}

/// A connection that never reads past the requested bytes.
#[derive(Debug)]
pub(super) struct Channel {
    stream: TcpStream,
    incoming: Vec<u8>,
    /// Length of the parcel being read.
    parcel: Option<usize>,
    outgoing: Vec<u8>,
}

impl Channel {
    /// Takes over a connected stream.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // Networks drop connections that are idle for long.
        set_socket_keepalive(&stream, true)?;
        set_tcp_keepidle(&stream, KEEP_ALIVE)?;
        Ok(Channel { stream, incoming: Vec::new(), parcel: None, outgoing: Vec::new() })
    }

    /// Starts to send bytes.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.outgoing.extend_from_slice(bytes);
        // An error recurs at the next read.
        let _ = self.flush();
    }

    /// Starts to send a parcel: its length, then its bytes.
    pub(super) fn send_parcel(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.send(&[&length.to_le_bytes(), bytes].concat());
    }

    /// Sends what can be sent now; returns whether everything was sent.
    pub(super) fn flush(&mut self) -> Result<bool, Broken> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(0) => return Err(Broken::Closed),
                Ok(written) => drop(self.outgoing.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Broken::Io(error)),
            }
        }
        Ok(true)
    }

    /// Returns the next `length` bytes once all have arrived, otherwise `None`.
    pub(super) fn take(&mut self, length: usize) -> Result<Option<Vec<u8>>, Broken> {
        self.flush()?;
        let mut arrived = self.incoming.len();
        self.incoming.resize(length, 0);
        let outcome = loop {
            if arrived == length {
                break Ok(true);
            }
            match self.stream.read(&mut self.incoming[arrived..]) {
                Ok(0) => break Err(Broken::Closed),
                Ok(read) => arrived += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(Broken::Io(error)),
            }
        };
        self.incoming.truncate(arrived);
        Ok(outcome?.then(|| std::mem::take(&mut self.incoming)))
    }

    /// Bytes received so far by an unfinished [`Channel::take`].
    pub(super) fn arrived(&self) -> &[u8] {
        &self.incoming
    }

    /// Returns the next parcel once it has arrived, otherwise `None`. Checks its length before allocating
    /// memory for it.
    ///
    /// # Errors
    /// The parcel is longer than `most` bytes, or the connection is broken.
    pub(super) fn parcel(&mut self, most: usize) -> Result<Option<Vec<u8>>, Broken> {
        let length = match self.parcel {
            Some(length) => length,
            None => {
                let Some(bytes) = self.take(LENGTH_BYTES)? else { return Ok(None) };
                let bytes = bytes.try_into().unwrap_or([0; LENGTH_BYTES]);
                let length = usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX);
                if length > most {
                    return Err(Broken::TooLong(length));
                }
                *self.parcel.insert(length)
            }
        };
        let parcel = self.take(length)?;
        if parcel.is_some() {
            self.parcel = None;
        }
        Ok(parcel)
    }

    /// The file descriptor of the stream.
    pub(super) fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// IP address of the other end.
    pub(super) fn peer(&self) -> Option<std::net::IpAddr> {
        self.stream.peer_addr().ok().map(|address| address.ip().to_canonical())
    }

    /// Returns the non-blocking stream.
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }
}
