//! The readers of this crate, for the documentation.

use crate::chat::{ALPACA, COMPLETION, MESSAGE, MESSAGES, PAIR, RECORD, SHARE_GPT, TURN};
use crate::choices::QUESTION;
use crate::tokenizer::{GENERATION_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG};
use system::readers::Reader;

/// The keys of the files that this crate reads.
pub const READERS: &[&Reader] = &[
    &RECORD,
    &MESSAGES,
    &MESSAGE,
    &SHARE_GPT,
    &TURN,
    &ALPACA,
    &COMPLETION,
    &PAIR,
    &QUESTION,
    &TOKENIZER_CONFIG,
    &SPECIAL_TOKENS_MAP,
    &GENERATION_CONFIG,
];
