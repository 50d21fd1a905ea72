//! Conversations: JSON objects of messages that a chat template renders as text, and of which the answers are
//! trained on.

mod answers;
mod conversation;
mod cut;
mod dialogue;
mod figures;
mod format;
mod hold_out;
mod invalid;
mod jinja;
mod keys;
mod layout;
mod learnt;
mod marks;
mod message;
mod pair_source;
mod pairs;
mod python;
mod renderer;
mod source;
mod template;
mod train_on;

pub use conversation::{ChatReading, Conversation, read_messages};
pub use cut::CutFigures;
pub use dialogue::{Dialogue, TemplateInput};
pub use format::ChatFormat;
pub(crate) use format::check_keys;
pub use hold_out::{HoldOut, ValidationSplit};
pub(crate) use keys::{ALPACA, COMPLETION, MESSAGE, MESSAGES, PAIR, RECORD, SHARE_GPT, TURN};
pub use pair_source::{PairOptions, PairSource};
pub use pairs::{Answered, Pair, PairReading};
pub use renderer::CHAT_TASK;
pub use source::{ChatOptions, ChatSource};
pub use template::ChatTemplate;
pub use train_on::{Role, TrainOn};
