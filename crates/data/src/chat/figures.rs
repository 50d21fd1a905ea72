//! Figures of what was read from files of conversations or pairs, and what was left out, for the log.

use std::collections::BTreeMap;

use system::numbers::grouped;
use system::tally::Tally;

use super::dialogue::Learnt;
use super::format::ChatFormat;

/// Counts of formats, keys that are not read, and messages that are not learnt.
#[derive(Debug, Default)]
pub(super) struct Figures {
    formats: BTreeMap<ChatFormat, u64>,
    unread: Tally,
    /// Answers that are not learnt in conversations with others that are.
    masked: u64,
    /// Conversations of which no answer is learnt.
    unlearnt: u64,
}

impl Figures {
    /// Counts an object of a format.
    pub(super) fn add(&mut self, format: ChatFormat, unread: &[String]) {
        *self.formats.entry(format).or_default() += 1;
        self.add_unread(unread);
    }

    /// Counts keys that are not read.
    pub(super) fn add_unread(&mut self, unread: &[String]) {
        self.unread.add_all(unread.iter().map(String::as_str));
    }

    /// Counts the masked answers of a conversation, and returns whether all its answers are masked, so that
    /// it is left out.
    pub(super) fn leaves_out(&mut self, learnt: &Learnt) -> bool {
        let Learnt::Messages(masks) = learnt else { return false };
        let answers: Vec<bool> = masks.iter().copied().flatten().collect();
        let leaves_out = !answers.is_empty() && !answers.contains(&true);
        if leaves_out {
            self.unlearnt += 1;
        } else {
            self.masked += answers.iter().filter(|is_learnt| !**is_learnt).count() as u64;
        }
        leaves_out
    }

    /// Logs the figures: formats in one line, and what is left out in another.
    pub(super) fn log(&self, noun: &str) {
        let formats = self.formats.iter();
        let formats: Vec<String> =
            formats.map(|(format, count)| format!("\"{}\" ({})", format.name(), grouped(*count))).collect();
        if !formats.is_empty() {
            tracing::info!("data.format: {noun} of {}", formats.join(" and "));
        }
        let mut left_out = Vec::new();
        if self.masked > 0 {
            left_out.push(format!("{} answers are masked and not learnt", grouped(self.masked)));
        }
        if self.unlearnt > 0 {
            left_out.push(format!(
                "{} {noun} of which all answers are masked are left out",
                grouped(self.unlearnt)
            ));
        }
        left_out.extend(self.unread.list().map(|keys| format!("keys that are not read: {keys}")));
        if !left_out.is_empty() {
            tracing::info!("{noun}: {}", left_out.join("; "));
        }
    }
}
