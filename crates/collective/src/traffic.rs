//! How much went over the wire.

use std::ops::AddAssign;

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
