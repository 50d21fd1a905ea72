//! Conversations: JSON objects of messages, rendered by a chat template, of which the answers are learnt.

mod conversation;
mod jinja;
mod json;
mod layout;
mod objects;
mod pair_source;
mod pairs;
mod renderer;
mod source;
mod template;

pub use conversation::{Conversation, read_conversations, read_messages};
pub use pair_source::{PairOptions, PairSource};
pub use pairs::{Answered, Pair, read_pairs};
pub use renderer::CHAT_TASK;
pub use source::{ChatOptions, ChatSource};
pub use template::ChatTemplate;
