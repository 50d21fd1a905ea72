//! Bytes and calls between ranks.

use std::cell::RefCell;
use std::ops::{Add, AddAssign, Sub};
use std::rc::Rc;

use crate::call::CallKind;
use crate::grid::{AXES, Axis};

/// Number and bytes of one operation's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationTraffic {
    /// Number of completed calls.
    pub calls: u64,
    /// Operand bytes sent to other ranks, without headers.
    pub bytes_sent: u64,
    /// Operand bytes received from other ranks, without headers.
    pub bytes_received: u64,
}

impl AddAssign for OperationTraffic {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }
}

impl Sub for OperationTraffic {
    type Output = Self;

    /// Returns the traffic since an earlier reading.
    fn sub(self, earlier: Self) -> Self {
        OperationTraffic {
            calls: self.calls - earlier.calls,
            bytes_sent: self.bytes_sent - earlier.bytes_sent,
            bytes_received: self.bytes_received - earlier.bytes_received,
        }
    }
}

impl OperationTraffic {
    /// Returns `times` times this traffic.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        OperationTraffic {
            calls: times * self.calls,
            bytes_sent: times * self.bytes_sent,
            bytes_received: times * self.bytes_received,
        }
    }
}

/// Traffic of a rank along each axis of its grid. Calls of the world's group that belong to no axis are
/// counted for [`Axis::Pipeline`], or for the only axis with several ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AxisTraffic(pub(crate) [OperationTraffic; AXES]);

impl AxisTraffic {
    /// Traffic along an axis.
    pub fn along(&self, axis: Axis) -> OperationTraffic {
        self.0[axis.index()]
    }

    /// Traffic along all axes.
    pub fn total(&self) -> OperationTraffic {
        let mut total = OperationTraffic::default();
        self.0.iter().for_each(|each| total += *each);
        total
    }

    /// Returns `times` times this traffic.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        AxisTraffic(self.0.map(|each| each.times(times)))
    }
}

impl AddAssign for AxisTraffic {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }
}

impl Sub for AxisTraffic {
    type Output = Self;

    /// Returns the traffic since an earlier reading.
    fn sub(mut self, earlier: Self) -> Self {
        self.0.iter_mut().zip(earlier.0).for_each(|(now, before)| *now = *now - before);
        self
    }
}

/// Traffic of a process group since its creation, by kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic([OperationTraffic; CallKind::ALL.len()]);

impl Traffic {
    /// Traffic of one kind of call.
    pub fn get(&self, kind: CallKind) -> OperationTraffic {
        self.0[kind as usize]
    }

    /// Traffic of all kinds of calls.
    pub fn total(&self) -> OperationTraffic {
        let mut total = OperationTraffic::default();
        self.0.iter().for_each(|each| total += *each);
        total
    }

    /// Counts a completed call.
    pub fn record(&mut self, kind: CallKind, bytes_sent: u64, bytes_received: u64) {
        self.0[kind as usize] += OperationTraffic { calls: 1, bytes_sent, bytes_received };
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// Bytes of operands sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl Moved {
    /// Returns the same transfers as seen from the other side.
    pub(crate) fn reversed(self) -> Self {
        Moved { sent: self.received, received: self.sent }
    }
}

impl Add for Moved {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Moved { sent: self.sent + other.sent, received: self.received + other.received }
    }
}

impl AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Counts the traffic of a group, and of all groups split from the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    own: Traffic,
    rank: Rc<RefCell<Traffic>>,
}

impl Meter {
    /// Returns a meter for a group split off this meter's group.
    pub(crate) fn part(&self) -> Meter {
        Meter { own: Traffic::default(), rank: Rc::clone(&self.rank) }
    }

    /// Counts a completed call.
    pub(crate) fn record(&mut self, kind: CallKind, moved: Moved) {
        self.own.record(kind, moved.sent, moved.received);
        self.rank.borrow_mut().record(kind, moved.sent, moved.received);
    }

    /// Traffic of this group.
    pub(crate) fn own(&self) -> Traffic {
        self.own
    }

    /// Traffic of all groups.
    pub(crate) fn rank(&self) -> Traffic {
        *self.rank.borrow()
    }
}
