//! The objects of a JSON file: one on each line, or all in one list.

use crate::Error;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use system::input;

/// The most bytes of a line.
const MOST_LINE: u64 = 64 << 20;
/// The most bytes of a file that is one list, which is read whole.
const MOST_LIST: u64 = 4 << 30;

/// Calls `each` with the text of every object of a file and the line on which it begins, from 1: the lines
/// that are not empty, or the elements of a list.
///
/// # Errors
/// A file that cannot be read, a list without an end, and those of `each`.
pub(super) fn each_object(
    path: &Path,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let unreadable = |source| Error::Unreadable { path: path.to_path_buf(), source };
    let mut lines = BufReader::new(input::open(path).map_err(unreadable)?);
    let start = lines.fill_buf().map_err(unreadable)?;
    if start.trim_ascii_start().starts_with(b"[") {
        let text = input::read(path, MOST_LIST).map_err(unreadable)?;
        return elements(&text, each).unwrap_or_else(|(line, reason)| {
            Err(Error::BadConversation { path: path.to_path_buf(), line, reason: reason.to_owned() })
        });
    }
    for number in 1_u64.. {
        let mut line = Vec::new();
        let read = lines.by_ref().take(MOST_LINE).read_until(b'\n', &mut line).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        if !line.trim_ascii().is_empty() {
            each(number, &line)?;
        }
    }
    Ok(())
}

/// Calls `each` with the text of every element of a JSON list and the line on which it begins.
///
/// # Errors
/// The error of `each`, or the line and the reason of a text that is no list.
fn elements<E>(
    text: &[u8],
    mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<Result<(), E>, (u64, &'static str)> {
    let (mut line, mut depth, mut in_string, mut escaped) = (1, 0_usize, false, false);
    // The start of the current element, and its line.
    let mut element: Option<(usize, u64)> = None;
    let mut is_closed = false;
    for (at, byte) in text.iter().copied().enumerate() {
        line += u64::from(byte == b'\n');
        if byte.is_ascii_whitespace() && !in_string {
            continue;
        }
        if is_closed {
            return Err((line, "there is more after the end of the list"));
        }
        let ends = !in_string && depth == 1 && matches!(byte, b',' | b']');
        if ends
            && let Some((start, line)) = element.take()
            && let Err(error) = each(line, &text[start..at])
        {
            return Ok(Err(error));
        }
        if depth == 1 && !ends && element.is_none() {
            element = Some((at, line));
        }
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                is_closed = depth == 0;
            }
            _ => {}
        }
    }
    if is_closed { Ok(Ok(())) } else { Err((line, "the list has no end")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(u64, String)>, (u64, &'static str)> {
        let mut all = Vec::new();
        let each = |line, text: &[u8]| {
            all.push((line, String::from_utf8_lossy(text.trim_ascii()).into_owned()));
            Ok::<(), ()>(())
        };
        elements(text.as_bytes(), each).map(|done| done.unwrap())?;
        Ok(all)
    }

    #[test]
    fn elements_of_a_list_have_their_lines() {
        let text = "[\n {\"a\": \"],[\\\"}\",\n \"b\": [1, {}]},\n\n{\"c\": 2} ]\n";
        let expected = [(2, "{\"a\": \"],[\\\"}\",\n \"b\": [1, {}]}"), (5, "{\"c\": 2}")];
        assert_eq!(read(text).unwrap(), expected.map(|(line, text)| (line, text.to_owned())));
        assert_eq!(read("[]").unwrap(), []);
        assert_eq!(read("[1,\n2").unwrap_err(), (2, "the list has no end"));
        assert_eq!(read("[1]\n[2]").unwrap_err(), (2, "there is more after the end of the list"));
    }
}
