//! Counts skipped items by name, for one line of the log.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::numbers::grouped;
use crate::quoted::shortened;

/// Maximum number of names that are counted, and that are shown.
const MOST_KEPT: usize = 1000;
const MOST_SHOWN: usize = 8;

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    counts: BTreeMap<String, u64>,
    /// Count of all names beyond the maximum.
    others: u64,
}

impl Tally {
    /// Counts one occurrence of a name.
    pub fn add(&mut self, name: &str) {
        if let Some(count) = self.counts.get_mut(name) {
            *count += 1;
        } else if self.counts.len() < MOST_KEPT {
            self.counts.insert(name.to_owned(), 1);
        } else {
            self.others += 1;
        }
    }

    /// Counts one occurrence of each name.
    pub fn add_all<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        names.into_iter().for_each(|name| self.add(name));
    }

    /// Lists names with their counts, as in "a (2), b (1)", the most frequent first, and combines infrequent
    /// ones; `None` if nothing was counted.
    #[must_use]
    pub fn list(&self) -> Option<String> {
        let mut all: Vec<_> = self.counts.iter().collect();
        all.sort_by_key(|(_, count)| Reverse(**count));
        let (shown, rest) = all.split_at(all.len().min(MOST_SHOWN));
        let shown = shown.iter().map(|(name, count)| format!("{} ({})", shortened(name), grouped(**count)));
        let mut names: Vec<String> = shown.collect();
        let rest = rest.iter().map(|(_, count)| **count).sum::<u64>() + self.others;
        if rest > 0 {
            names.push(format!("others ({})", grouped(rest)));
        }
        (!names.is_empty()).then(|| names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_names_come_first_and_the_rest_together() {
        let mut tally = Tally::default();
        assert_eq!(tally.list(), None);
        tally.add_all(["b", "a", "b"]);
        assert_eq!(tally.list().unwrap(), "b (2), a (1)");
        (0..2000).for_each(|index| tally.add(&format!("name{index}")));
        let list = tally.list().unwrap();
        assert!(list.starts_with("b (2), a (1), name0 (1)") && list.ends_with(", others (1,994)"), "{list}");
    }
}
