//! Offers: spans of a rank's memory that other ranks of the process may read until they are withdrawn.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A range of device memory, by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Address of the first byte.
    pub(crate) address: u64,
    /// Number of bytes.
    pub(crate) bytes: usize,
}

impl Span {
    /// Returns `bytes` bytes of the span, starting at `offset`.
    pub(crate) fn part(self, offset: usize, bytes: usize) -> Span {
        Span { address: self.address + offset as u64, bytes }
    }
}

/// A span that a rank offers to one other rank. `V` is an event in a stream's work.
#[derive(Debug)]
pub(crate) struct Offer<V> {
    /// The offered memory.
    pub(crate) span: Span,
    /// The event after the work that produces the values.
    pub(crate) ready: Arc<V>,
    state: Mutex<State<V>>,
    idle: Condvar,
}

#[derive(Debug)]
struct State<V> {
    is_open: bool,
    /// Number of readers that are enqueuing their work.
    readers: usize,
    /// The events after the readers' work.
    read: Vec<Arc<V>>,
}

impl<V> Offer<V> {
    fn new(span: Span, ready: Arc<V>) -> Self {
        let state = Mutex::new(State { is_open: true, readers: 0, read: Vec::new() });
        Offer { span, ready, state, idle: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<V>> {
        // Each change is one assignment, so a poisoned lock still guards a correct state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to enqueue work that reads the span; `None` if the offer was withdrawn. Never blocks.
    pub(crate) fn begin(&self) -> Option<Reading<'_, V>> {
        let mut state = self.state();
        state.is_open.then(|| {
            state.readers += 1;
            Reading(self)
        })
    }

    /// Closes the offer once its readers have enqueued their work, and returns the events after that work.
    fn withdraw(&self) -> Vec<Arc<V>> {
        let mut state = self.state();
        state.is_open = false;
        while state.readers > 0 {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut state.read)
    }
}

/// A read in progress; the offer stays open until it is dropped.
#[derive(Debug)]
pub(crate) struct Reading<'a, V>(&'a Offer<V>);

impl<V> Reading<'_, V> {
    /// Ends the read. All its work was enqueued before `read`.
    pub(crate) fn end(self, read: Arc<V>) {
        self.0.state().read.push(read);
    }
}

impl<V> Drop for Reading<'_, V> {
    fn drop(&mut self) {
        self.0.state().readers -= 1;
        self.0.idle.notify_all();
    }
}

/// The open offers of a process's ranks, by ticket.
#[derive(Debug)]
pub(crate) struct Offers<V> {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Offer<V>>>>,
}

impl<V> Default for Offers<V> {
    fn default() -> Self {
        Offers { next: AtomicU64::new(0), open: Mutex::default() }
    }
}

impl<V> Offers<V> {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Offer<V>>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an offer of each span. The values are complete at `ready`.
    pub(crate) fn offer(&self, spans: impl Iterator<Item = Span>, ready: &Arc<V>) -> Offered<'_, V> {
        let offers = spans.map(|span| {
            let ticket = self.next.fetch_add(1, Ordering::Relaxed);
            (ticket, Arc::new(Offer::new(span, Arc::clone(ready))))
        });
        let offers: Vec<_> = offers.collect();
        self.open().extend(offers.iter().cloned());
        Offered { all: self, offers }
    }

    /// Returns the offer with a ticket; `None` if it was withdrawn.
    pub(crate) fn get(&self, ticket: u64) -> Option<Arc<Offer<V>>> {
        self.open().get(&ticket).cloned()
    }
}

/// The offers of one call, withdrawn when dropped.
#[derive(Debug)]
pub(crate) struct Offered<'a, V> {
    all: &'a Offers<V>,
    offers: Vec<(u64, Arc<Offer<V>>)>,
}

impl<V> Offered<'_, V> {
    /// The tickets of the offers, in the order of their spans.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = u64> {
        self.offers.iter().map(|(ticket, _)| *ticket)
    }

    /// Withdraws all offers, and returns the events after the work that reads them.
    pub(crate) fn withdraw(&mut self) -> Vec<Arc<V>> {
        let mut open = self.all.open();
        self.offers.iter().for_each(|(ticket, _)| drop(open.remove(ticket)));
        drop(open);
        self.offers.drain(..).flat_map(|(_, offer)| offer.withdraw()).collect()
    }
}

impl<V> Drop for Offered<'_, V> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn offered(offers: &Offers<u32>) -> (Offered<'_, u32>, Arc<Offer<u32>>) {
        let spans = [Span { address: 64, bytes: 32 }.part(16, 8)];
        let offered = offers.offer(spans.into_iter(), &Arc::new(7));
        let ticket = offered.tickets().next().unwrap();
        let offer = offers.get(ticket).unwrap();
        (offered, offer)
    }

    #[test]
    fn an_owner_learns_of_all_reading_and_nobody_reads_what_was_withdrawn() {
        let offers = Offers::default();
        let (mut mine, offer) = offered(&offers);
        assert_eq!((offer.span, *offer.ready), (Span { address: 80, bytes: 8 }, 7));
        offer.begin().unwrap().end(Arc::new(1));
        offer.begin().unwrap().end(Arc::new(2));
        assert_eq!(mine.withdraw(), [Arc::new(1), Arc::new(2)]);
        assert!(offer.begin().is_none() && offers.open().is_empty());
        assert!(mine.withdraw().is_empty());
        let (mine, offer) = offered(&offers);
        drop(mine);
        assert!(offer.begin().is_none() && offers.open().is_empty());
    }

    #[test]
    fn withdrawing_waits_for_readers_that_have_begun() {
        let offers = Offers::default();
        let (mut mine, offer) = offered(&offers);
        let reading = offer.begin().unwrap();
        std::thread::scope(|scope| {
            let withdrawn = scope.spawn(move || mine.withdraw());
            // The owner closes the offer first, then waits for the reader.
            while offer.state().is_open {
                std::thread::yield_now();
            }
            assert!(!withdrawn.is_finished() && offer.begin().is_none());
            reading.end(Arc::new(3));
            assert_eq!(withdrawn.join().unwrap(), [Arc::new(3)]);
        });
    }
}
