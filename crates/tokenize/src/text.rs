//! Divides texts into units: documents, and pieces of long documents.

use crate::error::Result;
use std::io::Read;
use std::path::Path;
use system::file_error::FileContext;

/// Number of bytes read at once.
const BLOCK: usize = 1 << 20;
/// Minimum length of a piece in bytes; it ends at the next possible cut.
pub(crate) const PIECE: usize = 1 << 18;
/// Bytes at the end of the buffer in which no cut is searched, because a cut needs a space and a complete
/// character.
const TAIL: usize = 5;

/// Rules for dividing a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Division<'a> {
    pub(crate) document_end: Option<&'a [u8]>,
    /// Whether a document may be cut into pieces at spaces.
    pub(crate) at_spaces: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextPiece {
    pub(crate) bytes: Vec<u8>,
    pub(crate) starts_document: bool,
}

/// Divides the first `length` bytes of `input` into pieces and passes them to `take`. Where pieces end does
/// not depend on the sizes of reads. Stops if `take` returns false.
pub(crate) fn divide(
    path: &Path,
    input: &mut dyn Read,
    length: u64,
    division: Division<'_>,
    take: &mut dyn FnMut(TextPiece) -> bool,
) -> Result<bool> {
    let mut input = input.take(length);
    let mut pending = Vec::new();
    let mut starts_document = true;
    let mut ended = false;
    loop {
        let mut searched = 0;
        while let Some(border) = border(&pending, &mut searched, division) {
            let rest = pending.split_off(border.at);
            let bytes = std::mem::replace(&mut pending, rest);
            searched = 0;
            if !take(TextPiece {
                bytes,
                starts_document: std::mem::replace(&mut starts_document, border.ends),
            }) {
                return Ok(false);
            }
        }
        if ended {
            break;
        }
        let before = pending.len();
        pending.resize(before + BLOCK, 0);
        let read = fill(&mut input, &mut pending[before..]).context(path, "read it")?;
        pending.truncate(before + read);
        ended = read == 0;
    }
    // As when splitting a string, the last end is followed by one more document, which may be empty.
    match starts_document || !pending.is_empty() {
        true => Ok(take(TextPiece { bytes: pending, starts_document })),
        false => Ok(true),
    }
}

/// Reads until `out` is full or the input ends. Returns the number of bytes read.
fn fill(input: &mut dyn Read, out: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < out.len() {
        match input.read(&mut out[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The end of the first piece in a text.
#[derive(Clone, Copy, Debug)]
struct Border {
    at: usize,
    ends: bool,
}

/// Returns the first end of a piece in `text`. Its first `searched` bytes contain none.
fn border(text: &[u8], searched: &mut usize, division: Division<'_>) -> Option<Border> {
    let end = division.document_end.and_then(|end| {
        let from = searched.saturating_sub(end.len());
        let offset = text.get(from..)?.windows(end.len()).position(|window| window == end)?;
        Some(Border { at: from + offset + end.len(), ends: true })
    });
    let cut = if division.at_spaces { cut(text, (*searched).max(PIECE)) } else { None };
    *searched = text.len().saturating_sub(TAIL);
    match (end, cut.map(|at| Border { at, ends: false })) {
        (Some(end), Some(cut)) => Some(if end.at <= cut.at { end } else { cut }),
        (end, cut) => end.or(cut),
    }
}

/// Returns the first offset at or after `from` where a text may be cut: before a single space, or after a
/// single line feed, between two non-space characters.
fn cut(text: &[u8], from: usize) -> Option<usize> {
    // The characters on both sides must be complete.
    let last = text.len().checked_sub(TAIL)?;
    (from..=last).find_map(|at| {
        let number = match text[at] {
            b' ' => at,
            b'\n' => at + 1,
            _ => return None,
        };
        (is_visible(char_before(text, at)) && is_visible(char_after(text, at + 1))).then_some(number)
    })
}

fn is_visible(character: Option<char>) -> bool {
    character.is_some_and(|character| !character.is_whitespace())
}

/// Returns the character that ends before `at`; `None` if there is none.
fn char_before(text: &[u8], at: usize) -> Option<char> {
    let before = &text[at.saturating_sub(4)..at];
    (1..=before.len())
        .find_map(|count| std::str::from_utf8(&before[before.len() - count..]).ok()?.chars().next())
}

/// Returns the character that begins at `at`; `None` if there is none.
fn char_after(text: &[u8], at: usize) -> Option<char> {
    let after = &text[at..(at + 4).min(text.len())];
    (1..=after.len()).find_map(|count| std::str::from_utf8(&after[..count]).ok()?.chars().next())
}

/// Returns the byte offset of character ⌊count · (1 − `fraction`)⌋ of a text, or of that byte if `in_bytes`.
/// `open` opens the text from its start.
pub(crate) fn split_at<'a>(
    path: &Path,
    fraction: f64,
    in_bytes: bool,
    open: &dyn Fn() -> Result<Box<dyn Read + 'a>>,
) -> Result<u64> {
    let starts = |byte: &u8| in_bytes || byte & 0xC0 != 0x80;
    let mut count = 0_u64;
    each_block(path, &mut *open()?, &mut |block| {
        count += block.iter().filter(|byte| starts(byte)).count() as u64;
        true
    })?;
    let wanted = (count as f64 * (1.0 - fraction)) as u64;
    let (mut seen, mut offset) = (0_u64, 0_u64);
    each_block(path, &mut *open()?, &mut |block| {
        let mut characters = block.iter().enumerate().filter(|(_, byte)| starts(byte));
        match characters.nth(usize::try_from(wanted - seen).unwrap_or(usize::MAX)) {
            Some((index, _)) => {
                offset += index as u64;
                false
            }
            None => {
                seen += block.iter().filter(|byte| starts(byte)).count() as u64;
                offset += block.len() as u64;
                true
            }
        }
    })?;
    Ok(offset)
}

/// Passes the blocks of `input` to `see` until it returns false.
fn each_block(path: &Path, input: &mut dyn Read, see: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        let read = fill(input, &mut block).context(path, "read it")?;
        if read == 0 || !see(&block[..read]) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use data::Tokenizer;

    fn pieces(text: &[u8], division: Division<'_>) -> Vec<TextPiece> {
        let mut pieces = Vec::new();
        let mut take = |piece| {
            pieces.push(piece);
            true
        };
        divide(Path::new("a"), &mut &text[..], u64::MAX, division, &mut take).unwrap();
        pieces
    }

    #[test]
    fn documents_are_split_like_a_string() {
        let table: [(&str, &[&str]); 5] = [
            ("a\n\nb\n\n\nc", &["a\n\n", "b\n\n", "\nc"]),
            ("a\n\n", &["a\n\n", ""]),
            ("\n\n\n\na", &["\n\n", "\n\n", "a"]),
            ("a", &["a"]),
            ("", &[""]),
        ];
        for (text, expected) in table {
            let division = Division { document_end: Some(b"\n\n"), at_spaces: true };
            let parts = pieces(text.as_bytes(), division);
            assert!(parts.iter().all(|piece| piece.starts_document));
            let texts: Vec<&[u8]> = parts.iter().map(|piece| piece.bytes.as_slice()).collect();
            assert_eq!(texts, expected.iter().map(|text| text.as_bytes()).collect::<Vec<_>>(), "{text:?}");
        }
    }

    #[test]
    fn pieces_have_the_same_tokens_as_the_whole() {
        let line =
            "the quick  brown fox,\njumps\n\nover é\u{3000}世界 the lazy\tdog's 12 345 ...\r\n  and\n世界 ";
        let text = line.repeat(3 * PIECE / line.len() + 1);
        let parts = pieces(text.as_bytes(), Division { document_end: None, at_spaces: true });
        assert!(parts.len() >= 3 && parts[0].starts_document && !parts[1].starts_document);
        let encode = |bytes: &[u8]| Tokenizer::Gpt2.encode(std::str::from_utf8(bytes).unwrap()).unwrap();
        let apart: Vec<u32> = parts.iter().flat_map(|piece| encode(&piece.bytes)).collect();
        assert_eq!(apart, encode(text.as_bytes()));
    }

    #[test]
    fn a_text_is_split_by_characters() {
        for (text, fraction, expected) in [("0123456789", 0.1, 9), ("ééééé56789", 0.5, 10), ("ab", 0.9, 0)]
        {
            let open = || Ok(Box::new(std::io::Cursor::new(text.to_owned())) as Box<dyn Read>);
            assert_eq!(split_at(Path::new("a"), fraction, false, &open).unwrap(), expected);
        }
    }
}
