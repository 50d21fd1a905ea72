//! Messages and collectives in which several simulated ranks take part: each waits for the others.

use std::collections::BTreeMap;

use device::LoggedCommunication;

/// A message or a collective, by its number among those of the same ranks.
pub(super) struct Meeting {
    kind: MeetingKind,
    number: usize,
    /// Number of simulated ranks that take part.
    ranks: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MeetingKind {
    /// A message from a rank to another.
    Message { from: usize, to: usize },
    /// A collective of all ranks of a group.
    Collective(Vec<usize>),
}

/// The communication of one simulated rank so far.
pub(super) struct Meetings {
    rank: usize,
    simulated: Vec<usize>,
    /// Number of meetings of each kind so far.
    counts: BTreeMap<MeetingKind, usize>,
}

impl Meetings {
    pub(super) fn new(rank: usize, simulated: &[usize]) -> Self {
        Meetings { rank, simulated: simulated.to_vec(), counts: BTreeMap::new() }
    }

    pub(super) fn of(&mut self, call: &LoggedCommunication) -> Vec<Meeting> {
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

/// For each kind the meetings in order: the number of ranks that have come, and when the last has.
#[derive(Default)]
pub(super) struct Arrivals(BTreeMap<MeetingKind, Vec<(usize, f64)>>);

impl Arrivals {
    /// Notes that a rank has come to a meeting.
    pub(super) fn come(&mut self, meeting: &Meeting, time: f64) {
        let meetings = self.0.entry(meeting.kind.clone()).or_default();
        // Each rank comes to the meetings of a kind in order.
        meetings.resize(meetings.len().max(meeting.number + 1), (0, 0.0));
        let (ranks, last) = &mut meetings[meeting.number];
        *ranks += 1;
        *last = last.max(time);
    }

    /// Returns the time at which the last rank has come; `None` before.
    pub(super) fn of(&self, meeting: &Meeting) -> Option<f64> {
        let (ranks, last) = self.0.get(&meeting.kind)?.get(meeting.number)?;
        (*ranks >= meeting.ranks).then_some(*last)
    }
}
