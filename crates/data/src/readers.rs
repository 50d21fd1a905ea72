//! Readers of other programs' files in this crate, listed for the documentation.

use crate::chat::{ALPACA, COMPLETION, MESSAGE, MESSAGES, PAIR, RECORD, SHARE_GPT, TURN};
use crate::choices::QUESTION;
use crate::tokenizer::{GENERATION_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG};
use system::readers::Reader;

/// Readers of other programs' files in this crate, with the keys they accept.
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
