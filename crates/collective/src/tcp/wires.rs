//! All connections of a rank, which are polled together.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use crate::link::Message;
use crate::payload::PayloadPool;
use crate::processes::{Notice, Post, Transport};
use crate::tcp::connection::Connection;

/// Bytes read at once, except from long payloads.
const SCRATCH_BYTES: usize = 64 << 10;
/// Maximum number of events taken at once.
const EVENTS: usize = 256;
/// Number of polls without progress before a wait yields its processor ([`SPINS`]) and before it sleeps
/// ([`YIELDS`]), if every rank of the host has its own processor.
const SPINS: u32 = 200;
const YIELDS: u32 = 2000;

/// The connections of a rank, by peer.
pub(super) struct Wires {
    connections: RefCell<Vec<Option<Connection>>>,
    inbox: RefCell<Inbox>,
    pool: RefCell<PayloadPool>,
    /// Description of the first invalid message from a peer.
    fault: RefCell<Option<String>>,
    /// Whether ranks share this host's processors; waits then sleep instead of polling.
    is_crowded: Cell<bool>,
}

struct Inbox {
    poll: Poll,
    events: Events,
    scratch: Vec<u8>,
    notices: VecDeque<Notice>,
}

impl Wires {
    /// Takes over the streams to all other ranks.
    pub(super) fn new(rank: usize, streams: Vec<Option<TcpStream>>) -> std::io::Result<Self> {
        let poll = Poll::new()?;
        let connect = |(peer, stream): (usize, Option<TcpStream>)| {
            let stream = stream.filter(|_| peer != rank);
            stream.map(|stream| Connection::new(peer, stream, poll.registry())).transpose()
        };
        let connections = streams.into_iter().enumerate().map(connect).collect::<Result<_, _>>()?;
        let inbox = Inbox {
            poll,
            events: Events::with_capacity(EVENTS),
            scratch: vec![0; SCRATCH_BYTES],
            notices: VecDeque::new(),
        };
        Ok(Wires {
            connections: RefCell::new(connections),
            inbox: RefCell::new(inbox),
            pool: RefCell::default(),
            fault: RefCell::default(),
            is_crowded: Cell::new(true),
        })
    }

    /// Sets whether ranks share this host's processors.
    pub(super) fn share_processors(&self, is_crowded: bool) {
        self.is_crowded.set(is_crowded);
    }

    /// Starts to send a message of a group; returns it if it cannot be sent yet.
    pub(super) fn try_send(&self, to: usize, context: u64, message: Message) -> Option<Message> {
        match self.connections.borrow_mut().get_mut(to) {
            Some(Some(connection)) => connection.try_send(context, message, &mut self.pool.borrow_mut()),
            _ => Some(message),
        }
    }

    /// Takes the next message of a group from a peer.
    pub(super) fn take(&self, from: usize, context: u64) -> Option<Message> {
        let mut connections = self.connections.borrow_mut();
        connections.get_mut(from)?.as_mut()?.take(context, &mut self.pool.borrow_mut())
    }

    /// Returns whether all messages to a peer were handed to the system.
    pub(super) fn is_flushed(&self, to: usize) -> bool {
        let connections = self.connections.borrow();
        connections.get(to).and_then(Option::as_ref).is_none_or(Connection::is_flushed)
    }

    /// Waits at most `patience` for a ready connection, then reads and writes all that are ready.
    fn pump(&self, patience: Duration) {
        let mut inbox = self.inbox.borrow_mut();
        let Inbox { poll, events, scratch, notices } = &mut *inbox;
        match poll.poll(events, Some(patience)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return,
            Err(error) => {
                let fault = || format!("the connections cannot be polled: {error}");
                self.fault.borrow_mut().get_or_insert_with(fault);
                return;
            }
        }
        let mut connections = self.connections.borrow_mut();
        let mut pool = self.pool.borrow_mut();
        for event in events.iter() {
            let Some(Some(connection)) = connections.get_mut(event.token().0) else { continue };
            connection.write(&mut pool);
            if let Err(fault) = connection.read(scratch, &mut pool, notices) {
                self.fault.borrow_mut().get_or_insert(fault);
            }
        }
    }
}

impl Post for Wires {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn receive(&self) -> Result<Option<Notice>, String> {
        if self.inbox.borrow().notices.is_empty() {
            self.pump(Duration::ZERO);
        }
        let notice = self.inbox.borrow_mut().notices.pop_front();
        match (notice, &*self.fault.borrow()) {
            (None, Some(fault)) => Err(fault.clone()),
            (notice, _) => Ok(notice),
        }
    }

    fn send(&self, to: usize, notice: &Notice) {
        if let Some(Some(connection)) = self.connections.borrow_mut().get_mut(to) {
            connection.notify(notice, &mut self.pool.borrow_mut());
        }
    }

    fn is_sent(&self) -> bool {
        self.connections.borrow().iter().flatten().all(Connection::is_flushed)
    }

    fn closed(&self, is_awaited: &dyn Fn(usize) -> bool) -> Option<usize> {
        let connections = self.connections.borrow();
        let is_closed = |connection: &Option<Connection>| connection.as_ref().is_some_and(|c| !c.is_open());
        (0..connections.len()).find(|rank| is_closed(&connections[*rank]) && is_awaited(*rank))
    }

    fn idle(&self, idle_rounds: u32, deadline: Instant) {
        match idle_rounds {
            ..SPINS if !self.is_crowded.get() => std::hint::spin_loop(),
            ..YIELDS if !self.is_crowded.get() => std::thread::yield_now(),
            _ => self.pump(deadline.saturating_duration_since(Instant::now())),
        }
    }
}
