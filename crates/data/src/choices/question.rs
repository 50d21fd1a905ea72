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
    /// Bytes of its text without a space before it, if the file has texts.
    pub bytes: Option<usize>,
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
        return Err((number, format!("ending {} has no token", empty + 1)));
    }
    if *label >= endings.len() {
        return Err((number, format!("its label is {label}, and it has {} endings", endings.len())));
    }
    Ok(question)
}
