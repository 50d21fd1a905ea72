//! A question with several endings.

/// A context and its endings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Tokens before the endings, at least one.
    pub context: Vec<u32>,
    /// The endings, at least one.
    pub endings: Vec<Ending>,
    /// Index of the correct ending.
    pub label: usize,
}

/// An ending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Tokens, at least one.
    pub tokens: Vec<u32>,
    /// The lengths of its text, if the file has texts.
    pub lengths: Option<TextLengths>,
}

/// Lengths of an ending's text, without the space before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLengths {
    /// Characters.
    pub characters: usize,
    /// Bytes.
    pub bytes: usize,
}

/// Questions, or the error with its line or example from 1.
pub(super) type Parsed = Result<Vec<Question>, (usize, String)>;

/// Refuses a question that cannot be scored.
pub(super) fn check(question: Question, number: usize) -> Result<Question, (usize, String)> {
    let Question { context, endings, label } = &question;
    if context.is_empty() {
        return Err((number, "its context has no token".to_owned()));
    }
    if let Some(empty) = endings.iter().position(|ending| ending.tokens.is_empty()) {
        return Err((number, format!("ending {} has no token after the context", empty + 1)));
    }
    if *label >= endings.len() {
        return Err((number, format!("its label names ending {}, and it has {}", label + 1, endings.len())));
    }
    Ok(question)
}
