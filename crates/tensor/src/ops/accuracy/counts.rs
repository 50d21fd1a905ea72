//! The counts of an accuracy.

/// Number of counts: rows compared, rows whose target ranks first (top-1), and rows whose target is in the
/// top five.
pub const COUNTS: usize = 3;
/// Classes considered by the last count: top-5.
pub const MOST: u32 = 5;
