//! How much went over the wire.

use std::cell::RefCell;
use std::ops::{AddAssign, Sub};
use std::rc::Rc;

use crate::call::Operation;

/// Calls of one operation and what they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationTraffic {
    /// Calls that completed.
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

    /// What came after an earlier reading.
    fn sub(self, earlier: Self) -> Self {
        OperationTraffic {
            calls: self.calls - earlier.calls,
            bytes_sent: self.bytes_sent - earlier.bytes_sent,
            bytes_received: self.bytes_received - earlier.bytes_received,
        }
    }
}

/// What a data plane has moved since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic([OperationTraffic; Operation::ALL.len()]);

impl Traffic {
    /// What one operation moved.
    pub fn get(&self, operation: Operation) -> OperationTraffic {
        self.0[operation as usize]
    }

    /// What all of them moved.
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

/// Counts what a plane moves, and with it what all planes do that a rank's first one was divided into.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    own: Traffic,
    rank: Rc<RefCell<Traffic>>,
}

impl Meter {
    /// That of a plane which is divided from this one's.
    pub(crate) fn part(&self) -> Meter {
        Meter { own: Traffic::default(), rank: Rc::clone(&self.rank) }
    }

    /// Counts a completed call.
    pub(crate) fn record(&mut self, operation: Operation, bytes_sent: u64, bytes_received: u64) {
        self.own.record(operation, bytes_sent, bytes_received);
        self.rank.borrow_mut().record(operation, bytes_sent, bytes_received);
    }

    /// Of this plane.
    pub(crate) fn own(&self) -> Traffic {
        self.own
    }

    /// Of all planes.
    pub(crate) fn rank(&self) -> Traffic {
        *self.rank.borrow()
    }
}
