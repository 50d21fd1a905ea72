//! Concurrent sends and receives between ranks. Operands are cut into payloads, and no transfer blocks
//! another.

mod ends;

use std::time::{Duration, Instant};

use device::Region;

use crate::call::{Call, CallKind, Signature};
use crate::error::{CollectiveError, Failure, Result};
use crate::link::{Absent, Closed, Link};
use crate::payload::{Payload, PayloadPool};
use crate::traffic::Moved;
use ends::{Incoming, Outgoing, Sink, Source};

/// Time after which a message names the rank being waited for.
const NOTICE: Duration = Duration::from_secs(5);

/// Sends and receives to run together. Transfers with the same peer and direction run in the order they were
/// added.
pub(crate) struct Transfers<'a> {
    call: Call,
    outgoing: Vec<Outgoing<'a>>,
    incoming: Vec<Incoming<'a>>,
}

impl<'a> Transfers<'a> {
    pub(crate) fn new(call: Call) -> Self {
        Transfers { call, outgoing: Vec::new(), incoming: Vec::new() }
    }

    fn outgoing(&mut self, to: usize, signature: Signature, source: Source<'a>) {
        self.outgoing.push(Outgoing { to, signature, source, moved: 0, waiting: None, done: false });
    }

    fn incoming(&mut self, from: usize, expected: Signature, sink: Sink<'a>) {
        self.incoming.push(Incoming { from, expected, sink, moved: 0, done: false });
    }

    pub(crate) fn send(&mut self, to: usize, signature: Signature, region: Region<'a>) {
        self.outgoing(to, signature, Source::Region(region));
    }

    pub(crate) fn send_bytes(&mut self, to: usize, signature: Signature, bytes: &'a [u8]) {
        self.outgoing(to, signature.bytes(bytes.len()), Source::Bytes(bytes));
    }

    pub(crate) fn receive(&mut self, from: usize, expected: Signature, region: Region<'a>) {
        self.incoming(from, expected, Sink::Region(region));
    }

    pub(crate) fn receive_bytes(&mut self, from: usize, expected: Signature, bytes: &'a mut Vec<u8>) {
        bytes.clear();
        self.incoming(from, expected, Sink::Bytes(bytes));
    }

    /// Receives the bytes of `region`, at most one payload, into `payload`.
    pub(crate) fn receive_payload(
        &mut self,
        from: usize,
        expected: Signature,
        region: Region<'a>,
        payload: &'a mut Payload,
    ) {
        self.incoming(from, expected, Sink::Payload(region, payload));
    }

    /// Runs all transfers.
    ///
    /// # Errors
    /// A peer failed, made another call, or was silent for a whole timeout.
    pub(crate) fn run<L: Link>(mut self, link: &mut L, pool: &mut PayloadPool) -> Result<Moved> {
        let rank = link.world_rank(link.rank());
        let timeout = link.timeout();
        let mut moved = Moved::default();
        let mut deadline = Instant::now() + timeout;
        let mut notice = Some(Instant::now() + NOTICE);
        loop {
            if let Some(failure) = link.failure() {
                return Err(CollectiveError::failed(rank, self.call, failure));
            }
            let before = (moved.sent, moved.received, self.pending());
            self.send_ready(link, pool, &mut moved)?;
            self.receive_ready(link, pool, &mut moved)?;
            if self.pending() == 0 && self.all_sent(link)? {
                return Ok(moved);
            }
            let now = Instant::now();
            if before != (moved.sent, moved.received, self.pending()) {
                deadline = now + timeout;
            } else if now >= deadline && link.watch().liveness().is_delayed() {
                deadline = Instant::now() + timeout;
            } else if now >= deadline {
                let error = self.timed_out(link);
                if let CollectiveError::Timeout { rank, call, peer, waited } = &error {
                    let waited = waited.as_secs_f64();
                    link.lost(
                        *peer,
                        &format!("it did not answer rank {rank} within {waited:.1} s, in {call}"),
                    );
                }
                return Err(error);
            } else {
                let (sends, receives) = self.peers();
                if notice.take_if(|notice| now >= *notice).is_some() {
                    receives.first().or(sends.first()).into_iter().for_each(|peer| link.slow(*peer));
                }
                link.wait(&sends, &receives, deadline);
            }
        }
    }

    fn pending(&self) -> usize {
        self.outgoing.iter().filter(|o| !o.done).count() + self.incoming.iter().filter(|i| !i.done).count()
    }

    /// Returns whether all sends will complete without further calls of this rank.
    fn all_sent<L: Link>(&self, link: &mut L) -> Result<bool> {
        for outgoing in &self.outgoing {
            if !link.sent(outgoing.to).map_err(|Closed| closed(link, self.call, outgoing.to))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn peers(&self) -> (Vec<usize>, Vec<usize>) {
        let sends = self.outgoing.iter().filter(|o| !o.done).map(|o| o.to);
        let receives = self.incoming.iter().filter(|i| !i.done).map(|i| i.from);
        (sends.collect(), receives.collect())
    }

    fn timed_out<L: Link>(&self, link: &L) -> CollectiveError {
        let rank = link.world_rank(link.rank());
        let absent = link.absent(self.call);
        if let Some(failure) = link.failure() {
            return CollectiveError::failed(rank, self.call, failure);
        }
        let (sends, receives) = self.peers();
        // With nothing pending, some sent message has not been received.
        let sent = self.outgoing.first().map(|outgoing| outgoing.to);
        let awaited = receives.first().or(sends.first()).copied().or(sent);
        let peer = match absent {
            Some(Absent::Elsewhere { rank: peer, mine, theirs }) => {
                return CollectiveError::mismatch(rank, mine, link.world_rank(peer), theirs);
            }
            Some(Absent::Silent(peer)) => peer,
            None => awaited.unwrap_or(link.rank()),
        };
        let call = self.call;
        let peer = link.world_rank(peer);
        let waited = link.timeout();
        CollectiveError::Timeout { rank, call, peer, waited }
    }

    fn send_ready<L: Link>(&mut self, link: &mut L, pool: &mut PayloadPool, moved: &mut Moved) -> Result<()> {
        let rank = link.world_rank(link.rank());
        let mut full = vec![false; link.world_size()];
        for outgoing in self.outgoing.iter_mut().filter(|outgoing| !outgoing.done) {
            while !outgoing.done && !full[outgoing.to] {
                let (message, bytes) =
                    outgoing.next(pool).map_err(CollectiveError::device(rank, self.call))?;
                match link.try_send(outgoing.to, message) {
                    Ok(None) => {
                        moved.sent += bytes as u64;
                        outgoing.advance(bytes);
                    }
                    Ok(Some(message)) => {
                        outgoing.waiting = Some(message);
                        full[outgoing.to] = true;
                    }
                    Err(Closed) => return Err(closed(link, self.call, outgoing.to)),
                }
            }
        }
        Ok(())
    }

    fn receive_ready<L: Link>(
        &mut self,
        link: &mut L,
        pool: &mut PayloadPool,
        moved: &mut Moved,
    ) -> Result<()> {
        let mut empty = vec![false; link.world_size()];
        for incoming in self.incoming.iter_mut().filter(|incoming| !incoming.done) {
            while !incoming.done && !empty[incoming.from] {
                match link.try_receive(incoming.from) {
                    Ok(Some(message)) => {
                        moved.received += incoming.take(link, self.call, message, pool)? as u64;
                    }
                    Ok(None) => empty[incoming.from] = true,
                    Err(Closed) => return Err(closed(link, self.call, incoming.from)),
                }
            }
        }
        Ok(())
    }
}

fn closed<L: Link>(link: &L, call: Call, peer: usize) -> CollectiveError {
    let reason = match call.kind {
        CallKind::Send => "it ended without receiving this",
        CallKind::Receive | CallKind::Exchange => "it ended without sending this",
        _ => "it ended without making this call",
    };
    let ended = Failure { rank: link.world_rank(peer), reason: reason.to_owned() };
    CollectiveError::failed(link.world_rank(link.rank()), call, link.failure().unwrap_or(ended))
}
