//! Statistics of conversations or preference pairs longer than a sequence.

use std::ops::AddAssign;

use system::numbers::grouped;

/// Statistics of answers that exceed a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutFigures {
    /// Number of conversations or pairs.
    pub all: usize,
    /// Number of conversations or pairs with an answer that was cut.
    pub cut: usize,
    /// Number of answer tokens that were cut off.
    pub cut_tokens: usize,
    /// Number of conversations without any answer within a sequence, and of pairs lacking one, which are
    /// skipped.
    pub left_out: usize,
}

impl CutFigures {
    /// Adds a conversation or pair that is kept or skipped, with `cut` answer tokens beyond a sequence.
    pub(super) fn add(&mut self, is_kept: bool, cut: usize) {
        self.all += 1;
        if !is_kept {
            self.left_out += 1;
        } else if cut > 0 {
            self.cut += 1;
            self.cut_tokens += cut;
        }
    }

    /// Formats the statistics as a log line about `noun` in sequences of `context` tokens; `None` if nothing
    /// was cut.
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
