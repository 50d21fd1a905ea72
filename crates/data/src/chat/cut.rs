//! Figures of conversations or pairs of answers that are longer than a sequence.

use std::ops::AddAssign;

use system::numbers::grouped;

/// Answers that end beyond a sequence, or begin there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutFigures {
    /// Conversations, or pairs of answers.
    pub all: usize,
    /// Conversations or pairs of which the end of an answer is cut.
    pub cut: usize,
    /// Tokens of answers that are cut off these.
    pub cut_tokens: usize,
    /// Conversations without an answer within a sequence, and pairs without both, which are left out.
    pub left_out: usize,
}

impl CutFigures {
    /// Counts one that is kept or left out, of which so many tokens of answers are beyond a sequence.
    pub(super) fn add(&mut self, is_kept: bool, cut: usize) {
        self.all += 1;
        if !is_kept {
            self.left_out += 1;
        } else if cut > 0 {
            self.cut += 1;
            self.cut_tokens += cut;
        }
    }

    /// Returns the figures in a line of the log, of `noun` in sequences of `context` tokens; `None` if
    /// nothing is cut.
    #[must_use]
    pub fn sentence(&self, noun: &str, context: usize) -> Option<String> {
        let Self { all, cut, cut_tokens, left_out } = *self;
        let [all, cut_tokens, context] = [all, cut_tokens, context].map(|count| grouped(count as u64));
        let mut parts = Vec::new();
        if cut > 0 {
            let cut = grouped(cut as u64);
            parts.push(format!("{cut} end beyond it, and {cut_tokens} tokens of their answers are cut"));
        }
        if left_out > 0 {
            parts.push(format!("{} have no answer within it and are left out", grouped(left_out as u64)));
        }
        let parts = parts.join("; ");
        (!parts.is_empty()).then(|| format!("of {all} {noun} in sequences of {context} tokens, {parts}"))
    }
}

impl AddAssign for CutFigures {
    fn add_assign(&mut self, other: Self) {
        self.all += other.all;
        self.cut += other.cut;
        self.cut_tokens += other.cut_tokens;
        self.left_out += other.left_out;
    }
}
