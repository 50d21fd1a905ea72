//! The message queues of a rank that is an MPI process.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::call::{Call, Signature};
use crate::control::Watch;
use crate::error::Failure;
use crate::link::{Absent, Closed, Link, Message};
use crate::mpi::post::Library;
use crate::mpi::raw::{Completed, Fault, Request};
use crate::payload::{PAYLOAD_BYTES, PayloadPool};
use crate::processes::{DATA, HEADER_BYTES, Header, Shared, child};

/// Maximum number of pending sends to one peer; a message takes one or two.
const QUEUED: usize = 8;
/// Largest payload sent in one message with its header.
const INLINE_BYTES: usize = 2048;

/// Message queues between processes. A message is a header followed by a short payload. A longer payload
/// follows as a separate message with another tag, without a copy.
pub(crate) struct MpiLink {
    world: Rc<Shared>,
    library: Rc<Library>,
    rank: usize,
    /// World numbers of the ranks, by number in the group.
    members: Vec<usize>,
    context: u64,
    tags: Tags,
    peers: Vec<Peer>,
    /// Pool of headers with short payloads.
    headers: PayloadPool,
    pool: PayloadPool,
}

/// MPI tags of one group's headers and payloads.
///
/// Two groups may get the same tags, with a probability of 2⁻³⁰ under Open MPI. Headers name the group, so a
/// collision is an error, never a wrong value.
#[derive(Clone, Copy)]
struct Tags {
    header: i32,
    payload: i32,
}

impl Tags {
    fn new(context: u64, greatest: i32) -> Self {
        let pairs = u64::try_from(greatest).unwrap_or(32767).div_ceil(2);
        let pair = if context <= DATA { context } else { 2 + context % (pairs - 2) };
        let header = (2 * pair) as i32;
        Tags { header, payload: header + 1 }
    }
}

/// Pending requests to and from one peer.
#[derive(Default)]
struct Peer {
    sends: VecDeque<Request>,
    header: Option<Request>,
    payload: Option<(Signature, Request)>,
}

impl MpiLink {
    pub(super) fn new(world: Rc<Shared>, library: Rc<Library>, members: Vec<usize>, context: u64) -> Self {
        let rank = members.iter().position(|member| *member == world.rank).unwrap_or_default();
        let peers = members.iter().map(|_| Peer::default()).collect();
        let tags = Tags::new(context, library.traffic.greatest_tag());
        MpiLink {
            world,
            library,
            rank,
            members,
            context,
            tags,
            peers,
            headers: PayloadPool::default(),
            pool: PayloadPool::default(),
        }
    }

    /// Removes completed sends to a peer from the queue.
    fn reap(&mut self, to: usize) -> Result<(), Fault> {
        while let Some(request) = self.peers[to].sends.front_mut() {
            let Some(Completed { payload, .. }) = request.test()? else { break };
            self.peers[to].sends.pop_front();
            let pool = if payload.bytes().len() <= HEADER_BYTES + INLINE_BYTES {
                &mut self.headers
            } else {
                &mut self.pool
            };
            pool.put(payload);
            self.world.progressed();
        }
        Ok(())
    }

    fn send(&mut self, to: usize, Message { signature, payload }: Message) -> Result<(), Fault> {
        let bytes = payload.bytes();
        let inline = if bytes.len() <= INLINE_BYTES { bytes.len() } else { 0 };
        let header = Header::new(self.context, &signature, bytes.len());
        let mut first = self.headers.take(HEADER_BYTES + inline);
        first.bytes_mut()[..HEADER_BYTES].copy_from_slice(bytemuck::bytes_of(&header));
        first.bytes_mut()[HEADER_BYTES..].copy_from_slice(&bytes[..inline]);
        let member = self.members[to];
        let traffic = &self.library.traffic;
        let sends = &mut self.peers[to].sends;
        sends.push_back(traffic.send(first, member, self.tags.header)?);
        if payload.bytes().len() > inline {
            sends.push_back(traffic.send(payload, member, self.tags.payload)?);
        } else {
            self.pool.put(payload);
        }
        self.world.progressed();
        Ok(())
    }

    fn receive(&mut self, from: usize) -> Result<Option<Message>, Fault> {
        if self.peers[from].payload.is_none() {
            match self.receive_header(from)? {
                Some(Arrived::Whole(message)) => return Ok(Some(message)),
                Some(Arrived::Header) => {}
                None => return Ok(None),
            }
        }
        let Some((signature, request)) = &mut self.peers[from].payload else { return Ok(None) };
        let signature = *signature;
        let Some(Completed { payload, .. }) = request.test()? else { return Ok(None) };
        self.peers[from].payload = None;
        Ok(Some(Message { signature, payload }))
    }

    fn receive_header(&mut self, from: usize) -> Result<Option<Arrived>, Fault> {
        if self.peers[from].header.is_none() {
            let payload = self.headers.take(HEADER_BYTES + INLINE_BYTES);
            let request =
                self.library.traffic.receive(payload, Some(self.members[from]), self.tags.header)?;
            self.peers[from].header = Some(request);
        }
        let Some(request) = &mut self.peers[from].header else { return Ok(None) };
        let Some(Completed { payload: first, bytes }) = request.test()? else { return Ok(None) };
        self.peers[from].header = None;
        let (header, body) = first.bytes()[..bytes].split_at(HEADER_BYTES.min(bytes));
        let header = Header::read(header).filter(|header| header.context == self.context);
        let Some(header) = header.filter(|header| header.payload <= PAYLOAD_BYTES as u64) else {
            return Err(foreign(self.members[from]));
        };
        let len = header.payload as usize;
        let mut payload = self.pool.take(len);
        if len > INLINE_BYTES {
            let request =
                self.library.traffic.receive(payload, Some(self.members[from]), self.tags.payload)?;
            self.peers[from].payload = Some((header.signature(), request));
            self.headers.put(first);
            return Ok(Some(Arrived::Header));
        }
        let body = body.get(..len).ok_or_else(|| foreign(self.members[from]))?;
        payload.bytes_mut().copy_from_slice(body);
        self.headers.put(first);
        Ok(Some(Arrived::Whole(Message { signature: header.signature(), payload })))
    }

    /// Records a failure of MPI, which ends the world.
    fn failed(&self, fault: Fault) -> Closed {
        self.world.fault(&fault.in_words());
        Closed
    }
}

enum Arrived {
    Whole(Message),
    /// A header arrived; its payload follows.
    Header,
}

fn foreign(rank: usize) -> Fault {
    Fault { code: 0, text: format!("a message of rank {rank} belongs to another group") }
}

impl Link for MpiLink {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn world_rank(&self, rank: usize) -> usize {
        self.members[rank]
    }

    fn timeout(&self) -> Duration {
        self.world.timeout.get()
    }

    fn try_send(&mut self, to: usize, message: Message) -> Result<Option<Message>, Closed> {
        self.reap(to).map_err(|fault| self.failed(fault))?;
        if self.world.has_ended(self.members[to]) {
            return Err(Closed);
        }
        if self.peers[to].sends.len() >= QUEUED {
            return Ok(Some(message));
        }
        self.send(to, message).map_err(|fault| self.failed(fault)).map(|()| None)
    }

    fn try_receive(&mut self, from: usize) -> Result<Option<Message>, Closed> {
        // Checked before the queue, so that the peer's last messages have arrived by then.
        let ended = self.world.has_ended(self.members[from]);
        match self.receive(from).map_err(|fault| self.failed(fault))? {
            Some(message) => {
                self.world.progressed();
                Ok(Some(message))
            }
            None if ended => Err(Closed),
            None => Ok(None),
        }
    }

    fn sent(&mut self, to: usize) -> Result<bool, Closed> {
        self.reap(to).map_err(|fault| self.failed(fault))?;
        let sent = self.peers[to].sends.is_empty();
        if !sent && self.world.has_ended(self.members[to]) { Err(Closed) } else { Ok(sent) }
    }

    fn wait(&mut self, _sends: &[usize], _receives: &[usize], deadline: Instant) {
        self.world.idle(deadline);
    }

    fn slow(&self, peer: usize) {
        self.world.say_slow(self.members[peer]);
    }

    fn failure(&self) -> Option<Failure> {
        self.world.failure()
    }

    fn fail(&mut self, reason: &str) {
        self.world.fail(self.world.rank, reason);
    }

    fn lost(&mut self, rank: usize, reason: &str) {
        self.world.fail(rank, reason);
    }

    fn watch(&self) -> Watch {
        self.world.watch()
    }

    fn begin(&mut self, signature: &Signature) -> Result<(), (usize, Signature)> {
        self.world.begin(self.context, signature);
        Ok(())
    }

    fn absent(&self, call: Call) -> Option<Absent> {
        self.world.absent(&self.members, self.context, call)
    }

    fn split(&mut self, sequence: u64, group: usize, members: &[usize]) -> Self {
        let members = members.iter().map(|member| self.members[*member]).collect();
        let context = child(self.context, sequence, group);
        MpiLink::new(Rc::clone(&self.world), Rc::clone(&self.library), members, context)
    }
}
