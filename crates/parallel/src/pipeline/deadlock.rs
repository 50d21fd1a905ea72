//! Whether ranks that follow their lists one action at a time come to their end.

use std::fmt;

use crate::pipeline::action::Action;
use crate::pipeline::schedule::Schedule;

/// What a send does while its receive has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// It is buffered: the sender goes on.
    Buffered,
    /// It waits, as large messages do over MPI and NCCL.
    Rendezvous,
}

/// A rank that waits for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Which rank.
    pub rank: usize,
    /// Where in its list, from 0.
    pub place: usize,
    /// What it is stuck in.
    pub action: Action,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} waits at place {}: {}", self.rank, self.place, self.action)
    }
}

/// Runs the lists against each other, every transfer in its place; the ranks that never end. What one rank sends to
/// another is taken to match what is received ([`validate`](crate::pipeline::validate) has looked).
pub fn deadlock(schedule: &Schedule, sends: Sends) -> Vec<Stuck> {
    let mut run = Run {
        schedule,
        sends,
        places: vec![0; schedule.ranks],
        sent: vec![0; schedule.ranks * schedule.ranks],
    };
    while (0..schedule.ranks).any(|rank| run.advance(rank)) {}
    let stuck = |rank: usize| run.current(rank).map(|action| Stuck { rank, place: run.places[rank], action });
    (0..schedule.ranks).filter_map(stuck).collect()
}

struct Run<'a> {
    schedule: &'a Schedule,
    sends: Sends,
    places: Vec<usize>,
    /// Sent and not yet received, by sender × receiver.
    sent: Vec<usize>,
}

impl Run<'_> {
    fn current(&self, rank: usize) -> Option<Action> {
        self.schedule.actions[rank].get(self.places[rank]).copied()
    }

    fn advance(&mut self, rank: usize) -> bool {
        let before = self.places[rank];
        while let Some(action) = self.current(rank) {
            if let Some(peer) = self.schedule.peer(action)
                && !self.transfer(rank, peer, action)
            {
                break;
            }
            self.places[rank] += 1;
        }
        self.places[rank] > before
    }

    /// Whether a transfer can be done now; if so it is, also at the peer where that has waited in its send.
    fn transfer(&mut self, rank: usize, peer: usize, action: Action) -> bool {
        let ranks = self.schedule.ranks;
        let waits = self.current(peer).filter(|other| self.schedule.peer(*other) == Some(rank));
        match (self.sends, action.kind.is_send()) {
            (Sends::Buffered, true) => {
                self.sent[rank * ranks + peer] += 1;
                true
            }
            (Sends::Buffered, false) => {
                let queue = &mut self.sent[peer * ranks + rank];
                let there = *queue > 0;
                *queue -= usize::from(there);
                there
            }
            (Sends::Rendezvous, send) => {
                let meet = waits
                    .is_some_and(|other| if send { other.kind.is_receive() } else { other.kind.is_send() });
                self.places[peer] += usize::from(meet);
                meet
            }
        }
    }
}
