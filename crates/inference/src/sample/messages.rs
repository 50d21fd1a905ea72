//! Messages of a user, read during a conversation.

use std::fmt;
use std::io::Result;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns the user's next message; `None` at the end.
type Read = Box<dyn FnMut() -> Result<Option<String>> + Send>;

/// Messages of a user. Each is read when first needed, and then available to all ranks of the process.
#[derive(Clone)]
pub struct Messages(Arc<Mutex<State>>);

struct State {
    read: Read,
    messages: Vec<String>,
    is_over: bool,
}

impl Messages {
    /// Creates messages that are read one by one with `read`.
    pub fn new(read: impl FnMut() -> Result<Option<String>> + Send + 'static) -> Self {
        let state = State { read: Box::new(read), messages: Vec::new(), is_over: false };
        Messages(Arc::new(Mutex::new(state)))
    }

    /// Waits for the message of a turn (from 0) and returns it; `None` after the last.
    ///
    /// # Errors
    /// The message cannot be read.
    pub(super) fn of_turn(&self, turn: usize) -> Result<Option<String>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while state.messages.len() <= turn && !state.is_over {
            match (state.read)()? {
                Some(message) => state.messages.push(message),
                None => state.is_over = true,
            }
        }
        Ok(state.messages.get(turn).cloned())
    }
}

/// Prints only the type's name, because options are printed to compare them between ranks.
impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Messages")
    }
}
