//! Accuracy on multiple-choice questions.

use std::fmt;

use data::{Ending, Question};
use serde::Serialize;

/// Fractions of questions whose correct ending had the best score. Among equal scores, the first ending is
/// chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choices {
    /// Number of questions.
    pub questions: usize,
    /// Scored by the sum of log probabilities of the ending's tokens: `acc` of lm-evaluation-harness.
    pub accuracy: f64,
    /// Scored by this sum divided by the number of tokens, as llm.c does.
    pub accuracy_per_token: f64,
    /// Scored by this sum divided by the number of characters: `acc_norm` of lm-evaluation-harness. `None`
    /// for token files, which have no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy_per_character: Option<f64>,
    /// Scored by this sum divided by the number of bytes: `acc_bytes` of lm-evaluation-harness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy_per_byte: Option<f64>,
}

impl fmt::Display for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choices { questions, accuracy, accuracy_per_token, .. } = self;
        write!(f, "{questions} questions, accuracy {accuracy:.4}, by token {accuracy_per_token:.4}")?;
        let of_texts = [("character", self.accuracy_per_character), ("byte", self.accuracy_per_byte)];
        of_texts.iter().try_for_each(|(unit, share)| match share {
            Some(share) => write!(f, ", by {unit} {share:.4}"),
            None => Ok(()),
        })
    }
}

/// Scores questions, with the mean loss and number of tokens of every ending in order.
pub(super) fn score(questions: &[Question], losses: &[f32], counts: &[u64]) -> Choices {
    let mut sums = losses.iter().zip(counts).map(|(loss, count)| f64::from(*loss) * *count as f64);
    let mut right = [0_usize; 4];
    let mut has_texts = true;
    for question in questions {
        let scored: Vec<(f64, &Ending)> =
            sums.by_ref().zip(&question.endings).take(question.endings.len()).collect();
        has_texts &= question.endings.iter().all(|ending| ending.lengths.is_some());
        // As in lm-evaluation-harness, an ending without text is never the best; no loss is infinite.
        let divisors: [fn(&Ending) -> usize; 4] = [
            |_| 1,
            |ending| ending.tokens.len(),
            |ending| ending.lengths.map_or(1, |lengths| lengths.characters),
            |ending| ending.lengths.map_or(1, |lengths| lengths.bytes),
        ];
        for (right, divisor) in right.iter_mut().zip(divisors) {
            let scores = scored.iter().map(|(sum, ending)| sum / divisor(ending) as f64);
            *right += usize::from(least(scores) == question.label);
        }
    }
    let [accuracy, accuracy_per_token, per_character, per_byte] =
        right.map(|right| right as f64 / questions.len() as f64);
    Choices {
        questions: questions.len(),
        accuracy,
        accuracy_per_token,
        accuracy_per_character: has_texts.then_some(per_character),
        accuracy_per_byte: has_texts.then_some(per_byte),
    }
}

/// Returns the index of the smallest value, the first of equals.
fn least(values: impl Iterator<Item = f64>) -> usize {
    let smaller = |best: (usize, f64), next: (usize, f64)| if next.1 < best.1 { next } else { best };
    values.enumerate().fold((0, f64::INFINITY), smaller).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use data::TextLengths;

    #[test]
    fn lengths_decide_between_scores() {
        let ending = |tokens: usize, characters: usize, bytes: usize| Ending {
            tokens: vec![0; tokens],
            lengths: Some(TextLengths { characters, bytes }),
        };
        let endings = vec![ending(1, 2, 9), ending(2, 2, 2), ending(4, 5, 5), ending(5, 10, 10)];
        let question = |label| Question { context: vec![0], endings: endings.clone(), label };
        // Sums of 2, 3, 4 and 7: smallest sum, and smallest mean over tokens (1), characters (0.7) and bytes
        // (0.22).
        let losses = [2.0, 1.5, 1.0, 1.4];
        let counts = [1, 2, 4, 5];
        for (label, expected) in
            [(0, [1.0, 0.0, 0.0, 1.0]), (1, [0.0; 4]), (2, [0.0, 1.0, 0.0, 0.0]), (3, [0.0, 0.0, 1.0, 0.0])]
        {
            let choices = score(&[question(label)], &losses, &counts);
            let of_texts = [choices.accuracy_per_character, choices.accuracy_per_byte].map(Option::unwrap);
            let shares = [choices.accuracy, choices.accuracy_per_token, of_texts[0], of_texts[1]];
            assert_eq!((shares, choices.questions), (expected, 1), "{label}");
        }
        // An ending without text is the likeliest only by its sum.
        let empty = Question { endings: vec![ending(1, 0, 0), ending(1, 1, 1)], ..question(0) };
        let choices = score(&[empty], &[1.0, 2.0], &[1, 1]);
        assert_eq!((choices.accuracy, choices.accuracy_per_character), (1.0, Some(0.0)));
        let mut tokens_only = question(0);
        tokens_only.endings[1].lengths = None;
        let choices = score(&[tokens_only], &losses, &counts);
        assert_eq!((choices.accuracy_per_character, choices.accuracy_per_byte), (None, None));
    }
}
