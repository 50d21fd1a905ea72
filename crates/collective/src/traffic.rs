//! Counts of bytes and calls between ranks.

use std::cell::RefCell;
use std::ops::{AddAssign, Sub};
use std::rc::Rc;

use crate::call::Operation;
use crate::grid::{AXES, Axis};

/// Calls of one operation, and the bytes they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationTraffic {
    /// Number of completed calls.
    pub calls: u64,
    /// Bytes of operands that this rank sent to others, without headers.
    pub bytes_sent: u64,
    /// Bytes of operands that this rank received from others, without headers.
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

/// Traffic of a rank along each axis of its grid. Calls of the world's plane that belong to no axis count for
/// [`Axis::Pipeline`], as its transfers do, or for the only axis with several ranks.
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

/// Traffic of a data plane since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic([OperationTraffic; Operation::ALL.len()]);

impl Traffic {
    /// Traffic of one operation.
    pub fn get(&self, operation: Operation) -> OperationTraffic {
        self.0[operation as usize]
    }

    /// Traffic of all operations.
    pub fn total(&self) -> OperationTraffic {
        let mut total = OperationTraffic::default();
        self.0.iter().for_each(|each| total += *each);
        total
    }

    /// Counts a completed call.
    pub fn record(&mut self, operation: Operation, bytes_sent: u64, bytes_received: u64) {
        self.0[operation as usize] += OperationTraffic { calls: 1, bytes_sent, bytes_received };
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// A counter of the traffic of a plane and of all planes split from the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    own: Traffic,
    rank: Rc<RefCell<Traffic>>,
}

impl Meter {
    /// Returns a meter for a plane that is split from this meter's plane.
    pub(crate) fn part(&self) -> Meter {
        Meter { own: Traffic::default(), rank: Rc::clone(&self.rank) }
    }

    /// Counts a completed call.
    pub(crate) fn record(&mut self, operation: Operation, bytes_sent: u64, bytes_received: u64) {
        self.own.record(operation, bytes_sent, bytes_received);
        self.rank.borrow_mut().record(operation, bytes_sent, bytes_received);
    }

    /// Traffic of this plane.
    pub(crate) fn own(&self) -> Traffic {
        self.own
    }

    /// Traffic of all planes.
    pub(crate) fn rank(&self) -> Traffic {
        *self.rank.borrow()
    }
}
