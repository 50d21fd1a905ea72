//! The file readers of this crate, for the generated documentation.

use crate::hugging_face::ADAPTER;
use crate::hugging_face::readers::{CONFIG, DELTA, GPT2, ROPE};
use crate::models::llama::folder::reader::{LLAMA, WITH_PARTS};
use system::readers::Reader;

/// The keys of the files that this crate reads.
pub const READERS: &[&Reader] = &[&CONFIG, &GPT2, &LLAMA, &WITH_PARTS, &ROPE, &DELTA, &ADAPTER];
