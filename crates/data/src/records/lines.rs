//! Reads the objects of JSON text, with one object per line or all in one list.

use std::io::{self, BufRead, Read};
use std::ops::ControlFlow;

use super::list::{List, MOST_OBJECT};

/// The byte order mark of UTF-8, with which some programs begin a text.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Why a text could not be read to its end.
#[derive(Debug)]
pub enum TextError {
    /// The file could not be read.
    Unreadable(io::Error),
    /// The text is neither JSON lines nor a JSON list.
    Invalid {
        /// Line number, from 1.
        line: u64,
        /// A sentence about the error.
        reason: &'static str,
    },
}

/// Passes the text of every object to `take` with the line on which it begins, from 1, until `take` breaks.
/// Objects are the non-empty lines, or the elements of a list. A byte order mark is skipped.
///
/// # Errors
/// Reading fails, or a list does not end.
pub fn each_object<B>(
    text: &mut dyn BufRead,
    mut take: impl FnMut(u64, &[u8]) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, TextError> {
    let invalid = |(line, reason)| TextError::Invalid { line, reason };
    let mut list: Option<List> = None;
    let mut line = Vec::new();
    let mut has_object = false;
    for number in 1_u64.. {
        line.clear();
        if text.take(MOST_OBJECT).read_until(b'\n', &mut line).map_err(TextError::Unreadable)? == 0 {
            break;
        }
        if number == 1 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        let first = line.trim_ascii().first();
        if list.is_none() && !has_object && first == Some(&b'[') {
            list = Some(List::new(number));
        }
        let flow = match &mut list {
            Some(list) => match list.feed(&line, &mut take) {
                ControlFlow::Continue(fed) => {
                    fed.map_err(invalid)?;
                    ControlFlow::Continue(())
                }
                ControlFlow::Break(end) => ControlFlow::Break(end),
            },
            None if first.is_some() => {
                has_object = true;
                take(number, &line)
            }
            None => ControlFlow::Continue(()),
        };
        if flow.is_break() {
            return Ok(flow);
        }
    }
    list.map_or(Ok(()), List::end).map_err(invalid)?;
    Ok(ControlFlow::Continue(()))
}
