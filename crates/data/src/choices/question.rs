//! A multiple-choice question.

/// A context with several possible endings.
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
    /// The lengths of its text, if the file contains texts.
    pub lengths: Option<TextLengths>,
}

/// Lengths of an ending's text, without the leading space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLengths {
    /// Number of characters.
    pub characters: usize,
    /// Number of bytes in UTF-8.
    pub bytes: usize,
}

/// The questions, or (line or example from 1, error).
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
