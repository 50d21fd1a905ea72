//! Splits a JSON list, read in chunks, into its elements.

use std::ops::ControlFlow;

/// Maximum size of an object in bytes.
pub(super) const MOST_OBJECT: u64 = 64 << 20;

/// (line, reason) of an invalid list.
type Fault = (u64, &'static str);

/// A list that is being read.
#[derive(Debug)]
pub(super) struct List {
    line: u64,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    is_closed: bool,
    /// Text of the current element so far, and the line on which it begins.
    element: Option<(Vec<u8>, u64)>,
}

impl List {
    pub(super) fn new(line: u64) -> Self {
        Self { line, depth: 0, in_string: false, is_escaped: false, is_closed: false, element: None }
    }

    /// Reads more of the text. Passes each element that ends in it to `each`, with the line on which it
    /// begins. Breaks when `each` does.
    pub(super) fn feed<B>(
        &mut self,
        text: &[u8],
        mut each: impl FnMut(u64, &[u8]) -> ControlFlow<B>,
    ) -> ControlFlow<B, Result<(), Fault>> {
        for byte in text.iter().copied() {
            let is_space = byte.is_ascii_whitespace() && !self.in_string;
            if self.is_closed && !is_space {
                return ControlFlow::Continue(Err((self.line, "there is more after the end of the list")));
            }
            let ends = !self.in_string && self.depth == 1 && matches!(byte, b',' | b']');
            if ends && let Some((element, line)) = self.element.take() {
                each(line, &element)?;
            }
            if self.depth == 1 && !ends && !is_space && self.element.is_none() {
                self.element = Some((Vec::new(), self.line));
            }
            if let Some((element, line)) = &mut self.element {
                if element.len() as u64 >= MOST_OBJECT {
                    return ControlFlow::Continue(Err((*line, "an element of the list is too long")));
                }
                element.push(byte);
            }
            if !is_space {
                self.step(byte);
            }
            self.line += u64::from(byte == b'\n');
        }
        ControlFlow::Continue(Ok(()))
    }

    /// Updates the state of strings and brackets by one byte.
    fn step(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.in_string => self.is_escaped = true,
            b'"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'[' | b'{' => self.depth += 1,
            b']' | b'}' => {
                self.depth = self.depth.saturating_sub(1);
                self.is_closed = self.depth == 0;
            }
            _ => {}
        }
    }

    /// Checks that the list is complete.
    ///
    /// # Errors
    /// The last line of a list that does not end.
    pub(super) fn end(self) -> Result<(), Fault> {
        if self.is_closed { Ok(()) } else { Err((self.line, "the list has no end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(u64, String)>, Fault> {
        let mut all = Vec::new();
        let mut list = List::new(1);
        // Pieces of any length.
        for piece in text.as_bytes().chunks(3) {
            let fed = list.feed(piece, |line, text| {
                all.push((line, String::from_utf8_lossy(text.trim_ascii()).into_owned()));
                ControlFlow::<()>::Continue(())
            });
            match fed {
                ControlFlow::Continue(fed) => fed?,
                ControlFlow::Break(()) => break,
            }
        }
        list.end().map(|()| all)
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
