//! The readers of this crate, for the documentation.

use crate::choices::QUESTION;
use system::readers::Reader;

/// The keys of the files that this crate reads.
pub const READERS: &[&Reader] = &[&QUESTION];
