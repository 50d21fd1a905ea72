//! Finds the ranges of a conversation's text that are trained on.

use std::ops::Range;

use super::dialogue::{Dialogue, Learnt};
use super::template::ChatTemplate;
use super::train_on::TrainOn;

/// Renders a conversation. Returns its text and the byte ranges to train on.
///
/// # Errors
/// A sentence: the template refuses the messages, or they are not found in its text.
pub(super) fn render(
    dialogue: &Dialogue,
    learnt: &Learnt,
    train_on: &TrainOn,
    template: &ChatTemplate,
) -> Result<(String, Vec<Range<usize>>), String> {
    let Dialogue { messages, input } = dialogue;
    let masks = match learnt {
        Learnt::After(prompt) => {
            let (text, start) = template.answered(messages, input, *prompt)?;
            let answer = start..text.len();
            return Ok((text, vec![answer]));
        }
        Learnt::Messages(masks) => masks,
    };
    let with_mask = |mask: bool| -> Vec<usize> {
        let indices = (0..messages.len()).zip(masks);
        indices.filter(|(_, own)| **own == Some(mask)).map(|(index, _)| index).collect()
    };
    match train_on {
        TrainOn::Answers => {
            let (text, answers) = template.render(messages, input)?;
            let learnt: Vec<bool> = masks.iter().copied().flatten().collect();
            Ok((text, learnt_answers(&learnt, answers)?))
        }
        TrainOn::Roles(_) => template.render_messages(messages, input, &with_mask(true)),
        TrainOn::All => {
            let (text, masked) = template.render_messages(messages, input, &with_mask(false))?;
            let ranges = outside(&masked, text.len());
            Ok((text, ranges))
        }
    }
}

/// Returns the ranges of a text of `length` bytes outside the ordered `ranges`.
fn outside(ranges: &[Range<usize>], length: usize) -> Vec<Range<usize>> {
    let starts = [0].into_iter().chain(ranges.iter().map(|range| range.end));
    let ends = ranges.iter().map(|range| range.start).chain([length]);
    starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| start..end).collect()
}

/// Returns the ranges of the answers that are trained on. `answers` correspond in order to the assistant's
/// messages.
///
/// # Errors
/// The numbers of answers and messages differ, and some messages are not trained on.
fn learnt_answers(learnt: &[bool], answers: Vec<Range<usize>>) -> Result<Vec<Range<usize>>, String> {
    if !learnt.contains(&false) {
        return Ok(answers);
    }
    if learnt.len() != answers.len() {
        return Err(format!(
            "the template marks {} answers, and there are {} messages of the assistant, so it is not known which \
             of them are masked",
            answers.len(),
            learnt.len()
        ));
    }
    Ok(answers.into_iter().zip(learnt).filter(|(_, is_learnt)| **is_learnt).map(|(range, _)| range).collect())
}
