//! The counts of an accuracy.

/// Rows that were compared, and those whose target is the best class, or among the best five.
pub const COUNTS: usize = 3;
/// The number of classes that the last count looks at.
pub const MOST: u32 = 5;
