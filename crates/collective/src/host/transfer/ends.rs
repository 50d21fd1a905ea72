//! Source and destination of one transfer.

use device::Region;

use crate::call::{Call, Signature};
use crate::error::{CollectiveError, Result};
use crate::host::region::{on_meta, read, write};
use crate::link::{Link, Message};
use crate::payload::{PAYLOAD_BYTES, Payload, PayloadPool};

/// Source of the bytes to send.
pub(super) enum Source<'a> {
    Region(Region<'a>),
    Bytes(&'a [u8]),
}

/// Destination of the received bytes.
pub(super) enum Sink<'a> {
    Region(Region<'a>),
    /// A vector that grows to the sender's length.
    Bytes(&'a mut Vec<u8>),
    /// A payload that takes one message of the region's length.
    Payload(Region<'a>, &'a mut Payload),
}

pub(super) struct Outgoing<'a> {
    pub(super) to: usize,
    pub(super) signature: Signature,
    pub(super) source: Source<'a>,
    pub(super) moved: usize,
    /// The next message, kept back while the queue was full.
    pub(super) waiting: Option<Message>,
    pub(super) done: bool,
}

pub(super) struct Incoming<'a> {
    pub(super) from: usize,
    pub(super) expected: Signature,
    pub(super) sink: Sink<'a>,
    pub(super) moved: usize,
    pub(super) done: bool,
}

impl Outgoing<'_> {
    pub(super) fn total(&self) -> usize {
        match self.source {
            Source::Region(region) => region.bytes,
            Source::Bytes(bytes) => bytes.len(),
        }
    }

    /// Returns the next message and its number of operand bytes.
    pub(super) fn next(&mut self, pool: &mut PayloadPool) -> device::Result<(Message, usize)> {
        let left = self.total() - self.moved;
        let len = left.min(PAYLOAD_BYTES);
        let stands_for = if is_meta(&self.source) { left } else { len };
        let message = match (self.waiting.take(), &self.source) {
            (Some(message), _) => message,
            (None, Source::Region(region)) => {
                Message { signature: self.signature, payload: read(region.part(self.moved, len), pool)? }
            }
            (None, Source::Bytes(bytes)) => {
                let mut payload = pool.take(len);
                payload.bytes_mut().copy_from_slice(&bytes[self.moved..self.moved + len]);
                Message { signature: self.signature, payload }
            }
        };
        Ok((message, stands_for))
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.moved += bytes;
        self.done = self.moved == self.total();
    }
}

impl Incoming<'_> {
    /// Stores a received message and returns its number of operand bytes.
    pub(super) fn take<L: Link>(
        &mut self,
        link: &L,
        call: Call,
        message: Message,
        pool: &mut PayloadPool,
    ) -> Result<usize> {
        let rank = link.world_rank(link.rank());
        let Message { signature: theirs, payload } = message;
        if !self.expected.agrees(&theirs) {
            let mut mine = self.expected;
            mine.call.kind = call.kind;
            return Err(CollectiveError::mismatch(rank, mine, link.world_rank(self.from), theirs));
        }
        let len = payload.bytes().len();
        let (due, stands_for) = self.due(&theirs);
        if len != due {
            let peer = link.world_rank(self.from);
            let problem = format!("rank {peer} sent a payload of {len} bytes instead of {due}");
            return Err(CollectiveError::Operand { rank, call, problem });
        }
        match &mut self.sink {
            Sink::Region(region) => {
                write(payload.bytes(), region.part(self.moved, len))
                    .map_err(CollectiveError::device(rank, call))?;
                pool.put(payload);
            }
            Sink::Bytes(bytes) => {
                bytes.extend_from_slice(payload.bytes());
                pool.put(payload);
            }
            Sink::Payload(_, slot) => pool.put(std::mem::replace(slot, payload)),
        }
        self.moved += stands_for;
        self.done = self.moved == self.total(&theirs);
        Ok(stands_for)
    }

    pub(super) fn total(&self, theirs: &Signature) -> usize {
        match &self.sink {
            Sink::Region(region) | Sink::Payload(region, _) => region.bytes,
            Sink::Bytes(_) => theirs.bytes.unwrap_or(0) as usize,
        }
    }

    /// Returns the next message's expected payload bytes and operand bytes; on Meta the payload is empty.
    pub(super) fn due(&self, theirs: &Signature) -> (usize, usize) {
        let left = self.total(theirs).saturating_sub(self.moved);
        match &self.sink {
            Sink::Region(region) | Sink::Payload(region, _) if on_meta(region) => (0, left),
            _ => (left.min(PAYLOAD_BYTES), left.min(PAYLOAD_BYTES)),
        }
    }
}

fn is_meta(source: &Source<'_>) -> bool {
    matches!(source, Source::Region(region) if on_meta(region))
}
