//! Shortens input that a message quotes.

use std::borrow::Cow;

/// Maximum number of quoted characters.
const MOST: usize = 120;

/// Returns `text`, or its start followed by the number of omitted characters.
#[must_use]
pub fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MOST) {
        None => Cow::Borrowed(text),
        Some((end, _)) => {
            let rest = text[end..].chars().count();
            Cow::Owned(format!(
                "{}… and {} more characters",
                &text[..end],
                crate::numbers::grouped(rest as u64)
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_input_is_shortened() {
        assert_eq!(shortened(&"é".repeat(MOST)), "é".repeat(MOST));
        assert_eq!(shortened(&"é".repeat(34_000)), "é".repeat(MOST) + "… and 33,880 more characters");
    }
}
