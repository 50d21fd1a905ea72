//! Messages of a user that are read while a conversation goes on.

use std::fmt;
use std::io::Result;
use std::sync::{Arc, Mutex, PoisonError};

/// A function that returns the user's next message; `None` when there is no further one.
type Read = Box<dyn FnMut() -> Result<Option<String>> + Send>;

/// Messages of a user, each read when it is needed and then known to all ranks of the process.
#[derive(Clone)]
pub struct Messages(Arc<Mutex<State>>);

struct State {
    read: Read,
    messages: Vec<String>,
    is_over: bool,
}

impl Messages {
    /// Creates messages that `read` returns one by one.
    pub fn new(read: impl FnMut() -> Result<Option<String>> + Send + 'static) -> Self {
        let state = State { read: Box::new(read), messages: Vec::new(), is_over: false };
        Messages(Arc::new(Mutex::new(state)))
    }

    /// Returns the message of a turn, counted from 0, after waiting for it; `None` after the last one.
    ///
    /// # Errors
    /// A message that cannot be read.
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

/// Prints the name of the type: options are printed to compare those of all ranks.
impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Messages")
    }
}
