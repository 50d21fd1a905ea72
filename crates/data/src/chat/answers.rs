//! Finds the messages in the rendered text of a conversation.

use serde_json::Value;
use std::ops::Range;

use super::renderer::MessagePrefix;

/// Function that renders the text of parts of a conversation.
pub(super) type Render<'a> = &'a dyn Fn(&[Value], Vec<MessagePrefix>) -> Result<Vec<String>, String>;

/// Returns the text of a conversation and the byte ranges of the messages `chosen`, in increasing order. The
/// range of a message is the text it adds to the messages before it. An assistant's answer begins after the
/// generation prompt. If the whole conversation is rendered differently there, because the template for
/// example drops earlier reasoning, the range is the message's text in the whole.
///
/// # Errors
/// A sentence: the template refuses the messages, or a message is not found; then with `advice`.
pub(super) fn find(
    render: Render<'_>,
    messages: &[Value],
    chosen: &[usize],
    advice: &str,
) -> Result<(String, Vec<Range<usize>>), String> {
    let parts =
        chosen.iter().flat_map(|index| [before(messages, *index), Some(MessagePrefix::text(index + 1))]);
    let parts = parts.flatten().chain([MessagePrefix::text(messages.len())]).collect();
    let mut texts = render(messages, parts)?;
    let whole = texts.pop().unwrap_or_default();
    let mut texts = texts.into_iter();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for index in chosen {
        let before = before(messages, *index).and_then(|_| texts.next()).unwrap_or_default();
        let after = texts.next().unwrap_or_default();
        let range = match after.starts_with(&*before) && whole.starts_with(&*after) {
            true => Some(before.len()..after.len()),
            false => in_whole(render, messages, *index, &whole, &before)?,
        };
        let follows = |range: &Range<usize>| ranges.last().is_none_or(|last| last.end <= range.start);
        ranges.push(range.filter(follows).ok_or_else(|| {
            format!(
                "message {} (\"{}\") changes the text before it and is not found in the text of all messages: \
                 {advice}",
                index + 1,
                role(&messages[*index])
            )
        })?);
    }
    Ok((whole, ranges))
}

/// Returns the part before a message. `None` before a first message that is not the assistant's, because
/// templates may refuse an empty conversation.
fn before(messages: &[Value], index: usize) -> Option<MessagePrefix> {
    match role(&messages[index]) {
        "assistant" => Some(MessagePrefix::question(index)),
        _ if index == 0 => None,
        _ => Some(MessagePrefix::text(index)),
    }
}

fn role(message: &Value) -> &str {
    message["role"].as_str().unwrap_or_default()
}

/// Returns the byte range of message `index` in the text of all messages, found by rendering with another
/// text in its place. `before` is the text of the earlier messages with the generation prompt.
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
    let texts = render(&changed, vec![MessagePrefix::text(messages.len()), MessagePrefix::text(index + 1)])?;
    let around = |text: &str| {
        let (start, end) = text.split_once(&*other)?;
        (!end.contains(&*other)).then(|| [start.to_owned(), end.to_owned()])
    };
    let (Some([start, end]), Some([alone_start, alone_end])) = (around(&texts[0]), around(&texts[1])) else {
        return Ok(None);
    };
    // The text that ends the message, which is all that follows it where it is the last one. Results of tools
    // one after the other may have an end in common, which only the last one's message has whole.
    let closing = match role(&messages[index]) {
        "tool" => common_start(&end, &alone_end),
        _ => alone_end.len(),
    };
    if !whole.ends_with(&*end) || !end.starts_with(&alone_end[..closing]) {
        return Ok(None);
    }
    // An empty message may have white space around its stand-in that is not there otherwise.
    let end = whole.len() - end.len() + closing;
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

/// Returns the length in bytes of the common beginning of both texts.
fn common_start(one: &str, other: &str) -> usize {
    let same = one.chars().zip(other.chars()).take_while(|(one, other)| one == other);
    same.map(|(character, _)| character.len_utf8()).sum()
}
