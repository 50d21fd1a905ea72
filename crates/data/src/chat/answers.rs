//! Finding the answers in the text of a conversation.

use serde_json::Value;
use std::ops::Range;

use super::renderer::Part;

/// Renders parts of some messages.
pub(super) type Render<'a> = &'a dyn Fn(&[Value], Vec<Part>) -> Result<Vec<String>, String>;

/// Returns the text of a conversation and the byte ranges of its answers: what each message of the assistant
/// adds to the text before it. Where the text of the whole conversation is another one there, as that of
/// templates that drop earlier reasoning, an answer is the text of its message in the whole, and of its end.
///
/// # Errors
/// Messages that the template refuses; an answer that is not found. The error is a sentence.
pub(super) fn find(render: Render<'_>, messages: &[Value]) -> Result<(String, Vec<Range<usize>>), String> {
    let is_answer = |(_, message): &(usize, &Value)| message["role"] == "assistant";
    let answers: Vec<usize> = messages.iter().enumerate().filter(is_answer).map(|(index, _)| index).collect();
    let parts = answers.iter().flat_map(|index| [Part::question(*index), Part::text(index + 1)]);
    let mut texts = render(messages, parts.chain([Part::text(messages.len())]).collect())?;
    let whole = texts.pop().unwrap_or_default();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (index, texts) in answers.into_iter().zip(texts.chunks_exact(2)) {
        let (before, after) = (&texts[0], &texts[1]);
        let range = match after.starts_with(&**before) && whole.starts_with(&**after) {
            true => Some(before.len()..after.len()),
            false => in_whole(render, messages, index, &whole, before)?,
        };
        let follows = |range: &Range<usize>| ranges.last().is_none_or(|last| last.end <= range.start);
        ranges.push(range.filter(follows).ok_or_else(|| {
            format!(
                "message {} (\"assistant\") changes the text before it and is not found in the text of all \
                 messages: mark answers in the template by {{% generation %}}",
                index + 1
            )
        })?);
    }
    Ok((whole, ranges))
}

/// Returns the range of message `index` in the text of all messages, found by putting another text into its
/// stead. `before` is the text of the messages before it, with the words after which the assistant answers.
fn in_whole(
    render: Render<'_>,
    messages: &[Value],
    index: usize,
    whole: &str,
    before: &str,
) -> Result<Option<Range<usize>>, String> {
    let Some(other) = (0..).map(|number| format!("answer-{number}-here")).find(|text| !whole.contains(text))
    else {
        return Ok(None);
    };
    let mut changed = messages.to_vec();
    changed[index]["content"] = other.clone().into();
    let texts = render(&changed, vec![Part::text(messages.len()), Part::text(index + 1)])?;
    let around = |text: &str| {
        let (start, end) = text.split_once(&*other)?;
        (!end.contains(&*other)).then(|| [start.to_owned(), end.to_owned()])
    };
    let (Some([start, end]), Some([alone_start, alone_end])) = (around(&texts[0]), around(&texts[1])) else {
        return Ok(None);
    };
    // The text that ends the message, which is all that follows it where it is the last one.
    if !whole.ends_with(&*end) || !end.starts_with(&*alone_end) {
        return Ok(None);
    }
    // An empty message may have white space around its stand-in that is not there otherwise.
    let end = whole.len() - end.len() + alone_end.len();
    let start = if whole.starts_with(before) {
        before.len()
    } else if whole.starts_with(&*start) {
        // Text that the template puts between the prompt and the message belongs to the answer.
        let opening = alone_start.strip_prefix(before).unwrap_or_default();
        start.strip_suffix(opening).map_or(start.len(), str::len)
    } else {
        return Ok(None);
    };
    Ok((start <= end).then_some(start..end))
}
