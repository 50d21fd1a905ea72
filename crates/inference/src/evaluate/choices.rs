//! Scores of multiple choice.

use std::fmt;

use data::{Ending, Question};
use serde::Serialize;

/// Shares of questions whose correct ending had the best score. Of equal scores, the first is the best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choices {
    /// Questions.
    pub questions: usize,
    /// By the sum of the log probabilities of an ending's tokens: `acc` of lm-evaluation-harness.
    pub accuracy: f64,
    /// By their mean over the ending's tokens, as reported by llm.c.
    pub accuracy_per_token: f64,
    /// By their sum over the bytes of the ending's text: `acc_norm` of lm-evaluation-harness. Token files
    /// have no texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy_per_byte: Option<f64>,
}

impl fmt::Display for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choices { questions, accuracy, accuracy_per_token, accuracy_per_byte } = self;
        write!(f, "{questions} questions, accuracy {accuracy:.4}, by token {accuracy_per_token:.4}")?;
        match accuracy_per_byte {
            Some(share) => write!(f, ", by byte {share:.4}"),
            None => Ok(()),
        }
    }
}

/// Scores questions by the mean losses and numbers of tokens of all endings, in order.
pub(super) fn score(questions: &[Question], losses: &[f32], counts: &[u64]) -> Choices {
    let mut sums = losses.iter().zip(counts).map(|(loss, count)| f64::from(*loss) * *count as f64);
    let (mut right, mut has_bytes) = ([0_usize; 3], true);
    for question in questions {
        let scored: Vec<(f64, &Ending)> =
            sums.by_ref().zip(&question.endings).take(question.endings.len()).collect();
        has_bytes &= question.endings.iter().all(|ending| ending.bytes.is_some());
        let divisors: [fn(&Ending) -> usize; 3] =
            [|_| 1, |ending| ending.tokens.len(), |ending| ending.bytes.unwrap_or(1).max(1)];
        for (right, divisor) in right.iter_mut().zip(divisors) {
            let scores = scored.iter().map(|(sum, ending)| sum / divisor(ending) as f64);
            *right += usize::from(least(scores) == question.label);
        }
    }
    let [accuracy, accuracy_per_token, per_byte] = right.map(|right| right as f64 / questions.len() as f64);
    let accuracy_per_byte = has_bytes.then_some(per_byte);
    Choices { questions: questions.len(), accuracy, accuracy_per_token, accuracy_per_byte }
}

/// The index of the least value, the first of several.
fn least(values: impl Iterator<Item = f64>) -> usize {
    let smaller = |best: (usize, f64), next: (usize, f64)| if next.1 < best.1 { next } else { best };
    values.enumerate().fold((0, f64::INFINITY), smaller).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_decide_between_scores() {
        let ending = |tokens: usize, bytes: usize| Ending { tokens: vec![0; tokens], bytes: Some(bytes) };
        let endings = vec![ending(1, 9), ending(2, 2), ending(4, 20)];
        let question = |label| Question { context: vec![0], endings: endings.clone(), label };
        // Sums of 2, 3 and 5: the least sum, mean of tokens (1.25) and of bytes (0.22) are of 0, 2 and 0.
        let (losses, counts) = ([2.0, 1.5, 1.25], [1, 2, 4]);
        for (label, expected) in [(0, [1.0, 0.0, 1.0]), (1, [0.0; 3]), (2, [0.0, 1.0, 0.0])] {
            let choices = score(&[question(label)], &losses, &counts);
            let shares = [choices.accuracy, choices.accuracy_per_token, choices.accuracy_per_byte.unwrap()];
            assert_eq!((shares, choices.questions), (expected, 1), "{label}");
        }
        let mut tokens_only = question(0);
        tokens_only.endings[1].bytes = None;
        assert_eq!(score(&[tokens_only], &losses, &counts).accuracy_per_byte, None);
    }
}
