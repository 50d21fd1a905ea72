//! Parses evaluation files of llm.c: a header of 256 words, then examples of 16-bit numbers.

use super::question::{Ending, Parsed, Question, check};

const MAGIC: u32 = 20_240_522;
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 1024;
/// The number that begins every example.
const START: u16 = u16::MAX;

/// The unread numbers of an example.
struct Rest<'a> {
    numbers: &'a [[u8; 2]],
    number: usize,
}

impl<'a> Rest<'a> {
    fn number(&mut self) -> Result<u16, (usize, String)> {
        let (first, rest) = self.numbers.split_first().ok_or((self.number, "it is cut short".to_owned()))?;
        self.numbers = rest;
        Ok(u16::from_le_bytes(*first))
    }

    /// Reads a count, and then this many tokens.
    fn tokens(&mut self) -> Result<Vec<u32>, (usize, String)> {
        (0..self.number()?).map(|_| self.number().map(u32::from)).collect()
    }
}

pub(super) fn parse(bytes: &[u8]) -> Parsed {
    let word = |index: usize| {
        bytes.get(4 * index..4 * index + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes)
    };
    let ([Some(magic), Some(version), Some(count)], Some(stream)) =
        ([word(0), word(1), word(2)], bytes.get(HEADER_BYTES..))
    else {
        return Err((1, "it has no header of 1024 bytes".to_owned()));
    };
    if (magic, version) != (MAGIC, VERSION) {
        let text = format!("its header has magic {magic} and version {version}, not {MAGIC} and {VERSION}");
        return Err((1, text));
    }
    let (mut numbers, odd) = stream.as_chunks::<2>();
    let mut questions = Vec::new();
    for number in 1..=count as usize {
        let mut rest = Rest { numbers, number };
        let start = rest.number()?;
        let length = usize::from(rest.number()?);
        if start != START || !length.is_multiple_of(2) || length / 2 > numbers.len() {
            return Err((number, format!("it begins with {start} and has {length} bytes")));
        }
        let index = rest.number()?;
        let label = usize::from(rest.number()?);
        if usize::from(index) != number - 1 {
            return Err((number, format!("its number is {index}")));
        }
        let endings = rest.number()?;
        let context = rest.tokens()?;
        let ending = |_| rest.tokens().map(|tokens| Ending { tokens, lengths: None });
        let endings = (0..endings).map(ending).collect::<Result<Vec<_>, _>>()?;
        if numbers.len() - rest.numbers.len() != length / 2 {
            return Err((number, format!("it has other contents than its {length} bytes")));
        }
        questions.push(check(Question { context, endings, label }, number)?);
        numbers = rest.numbers;
    }
    match numbers.is_empty() && odd.is_empty() {
        true => Ok(questions),
        false => Err((questions.len(), "bytes follow the last example".to_owned())),
    }
}
