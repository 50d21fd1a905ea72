//! Marks around the answers in a rendered text, for templates with `{% generation %}`.

use std::ops::Range;

/// The characters before and after an answer.
pub(super) type Marks = [char; 2];

/// Names of the marks' variables in a template. They are empty if no marks are requested.
pub(super) const MARKS: [&str; 2] = ["plimsoll_answer_start", "plimsoll_answer_end"];
/// Private-use characters; two that occur in no text of a conversation serve as marks.
const CANDIDATES: Range<u32> = 0xF_0000..0xF_FFFE;

/// Replaces `{% generation %}` and `{% endgeneration %}` by marks. Returns whether there were any.
pub(super) fn with_marks(text: &str) -> (String, bool) {
    let mut rest = text;
    let mut marked = String::new();
    let mut is_marked = false;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let end = start + length + 2;
        let tag = &rest[start + 2..end - 2];
        let words = tag.trim_matches(['-', '+']).trim();
        let mark = ["generation", "endgeneration"].iter().position(|name| *name == words);
        marked.push_str(&rest[..start]);
        match mark {
            None => marked.push_str(&rest[start..end]),
            Some(mark) => {
                is_marked = true;
                // A statement keeps the tag's treatment of white space around it.
                let [open, close] = [("-", tag.starts_with('-')), ("-", tag.ends_with('-'))]
                    .map(|(sign, is_there)| if is_there { sign } else { "" });
                let name = MARKS[mark];
                marked.push_str(&format!("{{%{open} if true %}}{{{{ {name} }}}}{{% endif {close}%}}"));
            }
        }
        rest = &rest[end..];
    }
    marked.push_str(rest);
    (marked, is_marked)
}

/// Returns two characters that occur in none of the texts; `None` if all candidates occur.
pub(super) fn unused(texts: &[&str]) -> Option<Marks> {
    let is_unused = |mark: &char| !texts.iter().any(|text| text.contains(*mark));
    let mut unused = CANDIDATES.filter_map(char::from_u32).filter(is_unused);
    Some([unused.next()?, unused.next()?])
}

/// Removes the marks from a rendered text, and returns it with the ranges between paired marks; `None` if
/// they are not paired.
pub(super) fn without_marks(text: &str, marks: Marks) -> Option<(String, Vec<Range<usize>>)> {
    let mut plain = String::with_capacity(text.len());
    let mut answers = Vec::new();
    let mut start = None;
    for character in text.chars() {
        match marks.iter().position(|mark| *mark == character) {
            Some(0) if start.is_some() => return None,
            Some(0) => start = Some(plain.len()),
            Some(_) => answers.push(start.take()?..plain.len()),
            None => plain.push(character),
        }
    }
    start.is_none().then_some((plain, answers))
}
