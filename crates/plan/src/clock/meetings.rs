//! Messages and collectives among simulated ranks: each rank waits for the others.

use std::collections::BTreeMap;

use device::LoggedCommunication;

/// A message or collective, identified by its participants and a sequence number.
pub(super) struct Meeting {
    kind: MeetingKind,
    number: usize,
    /// Number of simulated ranks that take part.
    ranks: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MeetingKind {
    /// A message between two ranks.
    Message { from: usize, to: usize },
    /// A collective among all ranks of a group.
    Collective(Vec<usize>),
}

/// Counts the communication of one simulated rank.
pub(super) struct Meetings {
    rank: usize,
    simulated: Vec<usize>,
    /// Number of messages and collectives so far, by participants.
    counts: BTreeMap<MeetingKind, usize>,
}

impl Meetings {
    pub(super) fn new(rank: usize, simulated: &[usize]) -> Self {
        Meetings { rank, simulated: simulated.to_vec(), counts: BTreeMap::new() }
    }

    pub(super) fn next_meetings(&mut self, call: &LoggedCommunication) -> Vec<Meeting> {
        let LoggedCommunication { ranks, sends, receives, .. } = call;
        let is_simulated = |rank: &usize| *rank != self.rank && self.simulated.contains(rank);
        let mut kinds = Vec::new();
        if sends.is_empty() && receives.is_empty() {
            let others = ranks.iter().filter(|rank| is_simulated(rank)).count();
            kinds.extend((others > 0).then(|| (MeetingKind::Collective(ranks.clone()), others + 1)));
        }
        let sent = sends.iter().filter(|(to, _)| is_simulated(to));
        kinds.extend(sent.map(|(to, _)| (MeetingKind::Message { from: self.rank, to: *to }, 2)));
        let received = receives.iter().filter(|(from, _)| is_simulated(from));
        kinds.extend(received.map(|(from, _)| (MeetingKind::Message { from: *from, to: self.rank }, 2)));
        kinds.into_iter().map(|(kind, ranks)| self.next(kind, ranks)).collect()
    }

    fn next(&mut self, kind: MeetingKind, ranks: usize) -> Meeting {
        let count = self.counts.entry(kind.clone()).or_default();
        let number = *count;
        *count += 1;
        Meeting { kind, number, ranks }
    }
}

/// For each kind, in order: the number of ranks that have arrived, and the time of the last arrival.
#[derive(Default)]
pub(super) struct Arrivals(BTreeMap<MeetingKind, Vec<(usize, f64)>>);

impl Arrivals {
    /// Records that a rank has arrived.
    pub(super) fn come(&mut self, meeting: &Meeting, time: f64) {
        let meetings = self.0.entry(meeting.kind.clone()).or_default();
        // Each rank arrives in order at messages and collectives of the same kind.
        meetings.resize(meetings.len().max(meeting.number + 1), (0, 0.0));
        let (ranks, last) = &mut meetings[meeting.number];
        *ranks += 1;
        *last = last.max(time);
    }

    /// Returns the time at which the last rank arrived; `None` if ranks are still missing.
    pub(super) fn last_arrival(&self, meeting: &Meeting) -> Option<f64> {
        let (ranks, last) = self.0.get(&meeting.kind)?.get(meeting.number)?;
        (*ranks >= meeting.ranks).then_some(*last)
    }
}
