//! Conversations: JSON lines of messages, rendered by a chat template, of which the answers are learnt.

mod conversation;
mod jinja;
mod json;
mod renderer;
mod source;
mod template;

pub use conversation::{Conversation, read_conversations};
pub use renderer::CHAT_TASK;
pub use source::{ChatOptions, ChatSource};
pub use template::ChatTemplate;
