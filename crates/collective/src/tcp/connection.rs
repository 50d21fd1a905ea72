//! A connection after the start: non-blocking frames in both directions.
//!
//! A frame is a head of fixed length and a body, whose length is checked before memory is allocated for it.
//! Each group's messages have a window per direction: at most [`WINDOW`] are in flight or wait to be taken. A
//! group that is not polled thus takes bounded memory and never delays another.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;

use bytemuck::{Pod, Zeroable};
use mio::{Interest, Registry, Token};

use crate::link::Message;
use crate::payload::{PAYLOAD_BYTES, Payload, PayloadPool};
use crate::processes::{HEADER_BYTES, Header, NOTICE_BYTES, Notice};

/// Maximum number of a group's unacknowledged messages in one direction.
const WINDOW: usize = 8;
/// Number of messages per acknowledgement.
const ACKNOWLEDGED: usize = WINDOW / 2;

/// Frame kind: a message of a group. [`NOTICE`]: a notice. [`TAKEN`]: [`ACKNOWLEDGED`] messages of a group
/// were taken.
const MESSAGE: u32 = 1;
const NOTICE: u32 = 2;
const TAKEN: u32 = 3;

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Head {
    kind: u32,
    /// Bytes of the body.
    length: u32,
    header: [u8; HEADER_BYTES],
}

const HEAD_BYTES: usize = size_of::<Head>();

impl Head {
    fn new(kind: u32, header: Option<&Header>, length: usize) -> Self {
        let mut bytes = [0; HEADER_BYTES];
        if let Some(header) = header {
            bytes.copy_from_slice(bytemuck::bytes_of(header));
        }
        // Payloads and notices are far shorter than 4 GiB.
        Head { kind, length: length as u32, header: bytes }
    }
}

/// A frame being sent.
#[derive(Debug)]
struct Outgoing {
    head: [u8; HEAD_BYTES],
    body: Payload,
    written: usize,
}

/// A frame being received.
#[derive(Debug, Default)]
struct Incoming {
    head: Vec<u8>,
    body: Option<(Head, Payload)>,
    read: usize,
}

/// A group's messages to and from the peer.
#[derive(Debug, Default)]
struct Window {
    arrived: VecDeque<Message>,
    /// Number of messages taken since the last acknowledgement.
    taken: usize,
    /// Number of messages sent and not acknowledged.
    sent: usize,
}

/// A connection to one peer.
#[derive(Debug)]
pub(super) struct Connection {
    peer: usize,
    stream: mio::net::TcpStream,
    is_open: bool,
    outgoing: VecDeque<Outgoing>,
    incoming: Incoming,
    windows: HashMap<u64, Window>,
}

impl Connection {
    /// Takes over the stream to rank `peer`; its events have the token `peer`.
    pub(super) fn new(peer: usize, stream: TcpStream, registry: &Registry) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let mut stream = mio::net::TcpStream::from_std(stream);
        registry.register(&mut stream, Token(peer), Interest::READABLE | Interest::WRITABLE)?;
        Ok(Connection {
            peer,
            stream,
            is_open: true,
            outgoing: VecDeque::new(),
            incoming: Incoming::default(),
            windows: HashMap::new(),
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns whether all frames were handed to the system, or the peer is gone.
    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Starts to send a message of a group; returns it if the window is full or the peer is gone.
    pub(super) fn try_send(
        &mut self,
        context: u64,
        message: Message,
        pool: &mut PayloadPool,
    ) -> Option<Message> {
        let window = self.windows.entry(context).or_default();
        if !self.is_open || window.sent == WINDOW {
            return Some(message);
        }
        window.sent += 1;
        let Message { signature, payload } = message;
        let header = Header::new(context, &signature, payload.bytes().len());
        self.send(MESSAGE, Some(&header), payload, pool);
        None
    }

    /// Takes the next message of a group.
    pub(super) fn take(&mut self, context: u64, pool: &mut PayloadPool) -> Option<Message> {
        let window = self.windows.get_mut(&context)?;
        let message = window.arrived.pop_front()?;
        window.taken += 1;
        if window.taken == ACKNOWLEDGED {
            window.taken = 0;
            let header = Header::new(context, &message.signature, 0);
            self.send(TAKEN, Some(&header), Payload::default(), pool);
        }
        Some(message)
    }

    /// Starts to send a notice.
    pub(super) fn notify(&mut self, notice: &Notice, pool: &mut PayloadPool) {
        let bytes = notice.encode();
        let mut body = pool.take(bytes.len());
        body.bytes_mut().copy_from_slice(&bytes);
        self.send(NOTICE, None, body, pool);
    }

    fn send(&mut self, kind: u32, header: Option<&Header>, body: Payload, pool: &mut PayloadPool) {
        if !self.is_open {
            return;
        }
        let head = Head::new(kind, header, body.bytes().len());
        self.outgoing.push_back(Outgoing { head: bytemuck::cast(head), body, written: 0 });
        self.write(pool);
    }

    /// Writes as much as the system accepts.
    pub(super) fn write(&mut self, pool: &mut PayloadPool) {
        while let Some(frame) = self.outgoing.front_mut() {
            let head = &frame.head[frame.written.min(HEAD_BYTES)..];
            let body = &frame.body.bytes()[frame.written.saturating_sub(HEAD_BYTES)..];
            if head.is_empty() && body.is_empty() {
                pool.put(std::mem::take(&mut frame.body));
                self.outgoing.pop_front();
                continue;
            }
            match self.stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(0) => return self.close(),
                Ok(written) => frame.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Bytes that have arrived are still read; reading finds the end.
                Err(_) => return self.outgoing.clear(),
            }
        }
    }

    fn close(&mut self) {
        self.is_open = false;
        self.outgoing.clear();
    }

    /// Reads everything that has arrived. Notices are appended to `notices`.
    ///
    /// # Errors
    /// The peer sent invalid bytes.
    pub(super) fn read(
        &mut self,
        scratch: &mut [u8],
        pool: &mut PayloadPool,
        notices: &mut VecDeque<Notice>,
    ) -> Result<(), String> {
        while self.is_open {
            // A long payload is read directly into its buffer.
            let rest = match &mut self.incoming.body {
                Some((_, body)) => &mut body.bytes_mut()[self.incoming.read..],
                None => &mut [],
            };
            let is_long = rest.len() >= scratch.len();
            let read = if is_long { self.stream.read(rest) } else { self.stream.read(scratch) };
            match read {
                Ok(0) => self.close(),
                Ok(read) if is_long => {
                    self.incoming.read += read;
                    self.complete(notices)?;
                }
                Ok(read) => self.feed(&scratch[..read], pool, notices)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.close(),
            }
        }
        Ok(())
    }

    fn feed(
        &mut self,
        mut bytes: &[u8],
        pool: &mut PayloadPool,
        notices: &mut VecDeque<Notice>,
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            let Incoming { head, body, read } = &mut self.incoming;
            match body {
                None => {
                    let (first, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - head.len()));
                    head.extend_from_slice(first);
                    bytes = rest;
                    if head.len() == HEAD_BYTES {
                        let parsed: Head = bytemuck::pod_read_unaligned(head);
                        head.clear();
                        let length = checked_length(&parsed).ok_or_else(|| self.foreign())?;
                        let body = pool.take(length);
                        self.incoming.body = Some((parsed, body));
                    }
                }
                Some((_, body)) => {
                    let room = &mut body.bytes_mut()[*read..];
                    let (first, rest) = bytes.split_at(bytes.len().min(room.len()));
                    room[..first.len()].copy_from_slice(first);
                    *read += first.len();
                    bytes = rest;
                }
            }
            self.complete(notices)?;
        }
        Ok(())
    }

    /// Delivers the frame if it is complete.
    fn complete(&mut self, notices: &mut VecDeque<Notice>) -> Result<(), String> {
        let read = self.incoming.read;
        let whole = self.incoming.body.take_if(|(_, body)| read == body.bytes().len());
        let Some((head, payload)) = whole else { return Ok(()) };
        self.incoming.read = 0;
        if head.kind == NOTICE {
            let notice = Notice::decode(payload.bytes()).ok_or_else(|| self.foreign())?;
            notices.push_back(notice);
            return Ok(());
        }
        let header = Header::read(&head.header).ok_or_else(|| self.foreign())?;
        let window = self.windows.entry(header.context).or_default();
        let is_expected = match head.kind {
            MESSAGE => {
                window.arrived.push_back(Message { signature: header.signature(), payload });
                window.arrived.len() <= WINDOW
            }
            _ => {
                let acknowledges = window.sent >= ACKNOWLEDGED;
                window.sent = window.sent.saturating_sub(ACKNOWLEDGED);
                acknowledges
            }
        };
        if is_expected { Ok(()) } else { Err(self.foreign()) }
    }

    fn foreign(&self) -> String {
        format!("rank {} sent what is no message of a rank", self.peer)
    }
}

/// Returns the length of a frame's body; `None` if the frame is invalid.
fn checked_length(head: &Head) -> Option<usize> {
    let length = usize::try_from(head.length).ok()?;
    let is_allowed = match head.kind {
        MESSAGE => {
            length <= PAYLOAD_BYTES
                && Header::read(&head.header).is_some_and(|header| header.payload == length as u64)
        }
        NOTICE => length <= NOTICE_BYTES,
        TAKEN => length == 0,
        _ => false,
    };
    is_allowed.then_some(length)
}
