//! Statistics of records that were read from conversation or pair files, and of skipped ones, for the log.

use std::collections::BTreeMap;

use system::numbers::grouped;
use system::tally::Tally;

use super::dialogue::Learnt;
use super::format::ChatFormat;

/// Counts of formats, ignored keys, and messages that are not trained on.
#[derive(Debug, Default)]
pub(super) struct Figures {
    formats: BTreeMap<ChatFormat, u64>,
    unread: Tally,
    /// Answers that are not trained on, in conversations with others that are.
    masked: u64,
    /// Conversations without any answer to train on.
    unlearnt: u64,
}

impl Figures {
    /// Counts an object of this format, with its ignored keys.
    pub(super) fn add(&mut self, format: ChatFormat, unread: &[String]) {
        *self.formats.entry(format).or_default() += 1;
        self.add_unread(unread);
    }

    /// Counts ignored keys.
    pub(super) fn add_unread(&mut self, unread: &[String]) {
        self.unread.add_all(unread.iter().map(String::as_str));
    }

    /// Counts the masked answers of a conversation. Returns whether all its answers are masked, so that it is
    /// skipped.
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

    /// Logs the statistics: the formats in one line, skipped data in another.
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
