//! The backend of ranks that share a GPU: offers memory, reads offers, and waits for readers.

use std::rc::Rc;
use std::sync::Arc;

use device::{Region, StreamKind};

use super::engine::{Engine, span_of};
use super::offers::{Offer, Offered, Offers, Span};
use crate::backend::{GroupCall, NumberedMessage};
use crate::call::Signature;
use crate::caller::Caller;
use crate::error::{CollectiveError, Failure, Result};
use crate::host::Transfers;
use crate::link::Link;
use crate::payload::PayloadPool;

/// A [`GroupBackend`](crate::GroupBackend) over two host links.
pub(crate) struct SharedGpuBackend<L, E: Engine> {
    pub(super) engine: Rc<E>,
    pub(super) offers: Arc<Offers<E::Event>>,
    /// The link that carries the tickets of offers.
    pub(super) tickets: L,
    /// The link that carries confirmations of reads.
    pub(super) news: L,
    pub(super) pool: PayloadPool,
}

/// A span that a call offers to a peer. The signature has no bytes.
#[derive(Clone, Copy)]
pub(super) struct Give {
    peer: usize,
    signature: Signature,
    span: Span,
}

/// An offer that a call reads from a peer.
#[derive(Clone, Copy)]
pub(super) struct Take {
    peer: usize,
    signature: Signature,
    bytes: usize,
}

impl<L: Link, E: Engine> SharedGpuBackend<L, E> {
    pub(crate) fn new(engine: Rc<E>, offers: Arc<Offers<E::Event>>, (tickets, news): (L, L)) -> Self {
        SharedGpuBackend { engine, offers, tickets, news, pool: PayloadPool::default() }
    }

    /// Offers a span to all other ranks, takes theirs, and enqueues `work` on all spans in rank order.
    pub(super) fn with_all(
        &mut self,
        caller: Caller,
        span: Span,
        stream: StreamKind,
        work: impl FnOnce(&E, &[Span]) -> device::Result<()>,
    ) -> Result<()> {
        let rank = self.tickets.rank();
        let ranks = self.tickets.world_size();
        let peers = || (0..ranks).filter(|peer| *peer != rank);
        let signature = Signature::new(caller.call);
        let gives: Vec<_> = peers().map(|peer| Give { peer, signature, span }).collect();
        let takes: Vec<_> = peers().map(|peer| Take { peer, signature, bytes: span.bytes }).collect();
        self.meet(caller, &gives, &takes, stream, |engine, theirs| {
            let mut all = theirs.to_vec();
            all.insert(rank, span);
            work(engine, &all)
        })
    }

    /// Copies the root's region to all others.
    pub(super) fn copy_root(
        &mut self,
        caller: Caller,
        root: usize,
        region: Region<'_>,
        stream: StreamKind,
    ) -> Result<()> {
        let rank = self.tickets.rank();
        let ranks = self.tickets.world_size();
        let signature = Signature::new(caller.call);
        let span = span_of(region);
        if rank == root {
            let peers = (0..ranks).filter(|peer| *peer != root);
            let gives: Vec<_> = peers.map(|peer| Give { peer, signature, span }).collect();
            return self.meet(caller, &gives, &[], stream, |_, _| Ok(()));
        }
        let take = Take { peer: root, signature, bytes: region.bytes };
        self.meet(caller, &[], &[take], stream, |engine, spans| engine.copy(spans[0], region, stream))
    }

    /// Runs sends and receives between pairs of ranks.
    pub(super) fn transfer(&mut self, call: &GroupCall<'_>) -> Result<()> {
        let give = |message: &NumberedMessage<'_>| {
            let signature = message.signature();
            let span = span_of(message.region);
            Give { peer: message.peer, signature, span }
        };
        let take = |message: &NumberedMessage<'_>| {
            let signature = message.signature();
            let bytes = message.region.bytes;
            Take { peer: message.peer, signature, bytes }
        };
        let gives: Vec<_> = call.sends.iter().map(give).collect();
        let takes: Vec<_> = call.receives.iter().map(take).collect();
        self.meet(call.caller, &gives, &takes, call.stream, |engine, spans| {
            let mut copies = spans.iter().zip(&call.receives);
            copies.try_for_each(|(span, message)| engine.copy(*span, message.region, call.stream))
        })
    }

    /// Offers spans to peers, takes their offers, and enqueues `work` that reads these. Later work on
    /// `stream` waits until peers have read this rank's spans.
    ///
    /// # Errors
    /// A link or the device failed. Even then, later work on the stream waits for every read of this rank's
    /// spans.
    pub(super) fn meet(
        &mut self,
        caller: Caller,
        gives: &[Give],
        takes: &[Take],
        stream: StreamKind,
        work: impl FnOnce(&E, &[Span]) -> device::Result<()>,
    ) -> Result<()> {
        let refused = |source| caller.device_error(source);
        let engine = Rc::clone(&self.engine);
        let offers = Arc::clone(&self.offers);
        let ready = Arc::new(engine.record(stream).map_err(refused)?);
        let mut offered = offers.offer(gives.iter().map(|give| give.span), &ready);
        let met = self.exchange_tickets(caller, (gives, &offered), takes).and_then(|peer_offers| {
            self.read(caller, takes, &peer_offers, stream, work)?;
            self.exchange_news(caller, gives, takes)
        });
        let read = offered.withdraw();
        let settled = read.iter().try_for_each(|event| engine.wait(event, stream));
        met.and(settled.map_err(refused))
    }

    /// Sends the tickets of this rank's offers, and returns the offers of the peers.
    fn exchange_tickets(
        &mut self,
        caller: Caller,
        (gives, offered): (&[Give], &Offered<'_, E::Event>),
        takes: &[Take],
    ) -> Result<Vec<Arc<Offer<E::Event>>>> {
        let tickets: Vec<_> = offered.tickets().map(u64::to_le_bytes).collect();
        let mut theirs = vec![Vec::new(); takes.len()];
        let mut transfers = Transfers::new(caller.call);
        for (give, ticket) in gives.iter().zip(&tickets) {
            transfers.send_bytes(give.peer, give.signature, ticket);
        }
        for (take, ticket) in takes.iter().zip(&mut theirs) {
            transfers.receive_bytes(take.peer, take.signature, ticket);
        }
        transfers.run(&mut self.tickets, &mut self.pool)?;
        takes.iter().zip(&theirs).map(|(take, ticket)| self.find(caller, take, ticket)).collect()
    }

    /// Returns the offer with a ticket, if it is open and has the expected length.
    fn find(&self, caller: Caller, take: &Take, ticket: &[u8]) -> Result<Arc<Offer<E::Event>>> {
        let ticket = ticket.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let offer = ticket.and_then(|ticket| self.offers.get(ticket));
        let offer = offer.ok_or_else(|| self.withdrawn(caller, take.peer))?;
        if offer.span.bytes != take.bytes {
            let (mut mine, theirs) =
                (take.signature.bytes(take.bytes), take.signature.bytes(offer.span.bytes));
            mine.call.kind = caller.call.kind;
            let peer = self.tickets.world_rank(take.peer);
            return Err(CollectiveError::mismatch(caller.rank, mine, peer, theirs));
        }
        Ok(offer)
    }

    /// Returns the error of a call whose peer has withdrawn its offer.
    fn withdrawn(&self, caller: Caller, peer: usize) -> CollectiveError {
        let gave_up = || {
            let reason = format!("it gave up {}", caller.call);
            Failure { rank: self.tickets.world_rank(peer), reason }
        };
        CollectiveError::failed(caller.rank, caller.call, self.tickets.failure().unwrap_or_else(gave_up))
    }

    /// Enqueues `work` on offered spans, after the work that produces their values.
    fn read(
        &self,
        caller: Caller,
        takes: &[Take],
        peer_offers: &[Arc<Offer<E::Event>>],
        stream: StreamKind,
        work: impl FnOnce(&E, &[Span]) -> device::Result<()>,
    ) -> Result<()> {
        let refused = |source| caller.device_error(source);
        let begun = takes
            .iter()
            .zip(peer_offers)
            .map(|(take, offer)| offer.begin().ok_or_else(|| self.withdrawn(caller, take.peer)));
        let reading = begun.collect::<Result<Vec<_>>>()?;
        let spans: Vec<_> = peer_offers.iter().map(|offer| offer.span).collect();
        let enqueued = peer_offers
            .iter()
            .try_for_each(|offer| self.engine.wait(&offer.ready, stream))
            .and_then(|()| work(&self.engine, &spans));
        // Also after an error, because part of the work may have been enqueued.
        let read = self.engine.record(stream).map(Arc::new);
        if let Ok(read) = &read {
            reading.into_iter().for_each(|reading| reading.end(Arc::clone(read)));
        }
        enqueued.and(read.map(drop)).map_err(refused)
    }

    /// Confirms to the owners that their offers have been read, and waits for the confirmations of this
    /// rank's offers.
    fn exchange_news(&mut self, caller: Caller, gives: &[Give], takes: &[Take]) -> Result<()> {
        let mut nothing = vec![Vec::new(); gives.len()];
        let mut transfers = Transfers::new(caller.call);
        takes.iter().for_each(|take| transfers.send_bytes(take.peer, take.signature, &[]));
        for (give, nothing) in gives.iter().zip(&mut nothing) {
            transfers.receive_bytes(give.peer, give.signature, nothing);
        }
        transfers.run(&mut self.news, &mut self.pool).map(drop)
    }
}
