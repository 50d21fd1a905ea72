//! Detects deadlocks between ranks that execute their lists one action at a time.

use crate::pipeline::action::Action;
use crate::pipeline::error::Stuck;
use crate::pipeline::schedule::Schedule;

/// Behaviour of a send whose receive has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// The message is buffered and the sender continues.
    Buffered,
    /// The sender waits, as for large messages over MPI and NCCL.
    Rendezvous,
}

/// Simulates all ranks' lists together, with transfers in list order, and returns the ranks that never
/// finish.
///
/// Sends must match receives, which [`validate`](crate::pipeline::validate) checks.
pub fn deadlock(schedule: &Schedule, sends: Sends) -> Vec<Stuck> {
    let mut progress = Progress {
        schedule,
        sends,
        indices: vec![0; schedule.ranks],
        sent: vec![0; schedule.ranks * schedule.ranks],
    };
    while (0..schedule.ranks).any(|rank| progress.advance(rank)) {}
    let stuck = |rank: usize| {
        progress.current(rank).map(|action| Stuck { rank, index: progress.indices[rank], action })
    };
    (0..schedule.ranks).filter_map(stuck).collect()
}

/// The progress of all ranks through their lists.
struct Progress<'a> {
    schedule: &'a Schedule,
    sends: Sends,
    /// Index of the next action in each rank's list.
    indices: Vec<usize>,
    /// Number of messages sent and not yet received, by sender × receiver.
    sent: Vec<usize>,
}

impl Progress<'_> {
    fn current(&self, rank: usize) -> Option<Action> {
        self.schedule.actions[rank].get(self.indices[rank]).copied()
    }

    fn advance(&mut self, rank: usize) -> bool {
        let before = self.indices[rank];
        while let Some(action) = self.current(rank) {
            if let Some(peer) = self.schedule.peer(action)
                && !self.transfer(rank, peer, action)
            {
                break;
            }
            self.indices[rank] += 1;
        }
        self.indices[rank] > before
    }

    /// Executes a transfer if possible, including the peer's half if the peer waits in its send.
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
                self.indices[peer] += usize::from(meet);
                meet
            }
        }
    }
}
