//! Marks around the answers of a rendered text, where the template has `{% generation %}`.

use std::ops::Range;

/// Two characters before and after an answer.
pub(super) type Marks = [char; 2];

/// Names of the marks in a template. They are empty where no marks are asked for.
pub(super) const MARKS: [&str; 2] = ["plimsoll_answer_start", "plimsoll_answer_end"];
/// Characters without a meaning, of which two are marks that no text of a conversation has.
const CANDIDATES: Range<u32> = 0xF_0000..0xF_FFFE;

/// Replaces `{% generation %}` and `{% endgeneration %}` by marks, and returns whether there are some.
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

/// Returns two characters that are in none of the texts; `None` if they have all of them.
pub(super) fn unused(texts: &[&str]) -> Option<Marks> {
    let is_unused = |mark: &char| !texts.iter().any(|text| text.contains(*mark));
    let mut unused = CANDIDATES.filter_map(char::from_u32).filter(is_unused);
    Some([unused.next()?, unused.next()?])
}

/// Removes the marks of a rendered text, and returns the ranges between them; `None` if they are not pairs.
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
