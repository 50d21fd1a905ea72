//! The mean loss of tokens, from those of micro-batches.

use data::{IGNORED, MicroBatch, Source};

use crate::error::Result;

/// Returns the number of targets that count in each validation micro-batch.
pub(super) fn counts(source: &dyn Source) -> Result<Vec<u64>> {
    let mut batch = MicroBatch::default();
    let count = |index: u64| {
        source.validation(index, &mut batch)?;
        let targets = batch.targets.tokens()?.iter();
        Ok(targets.filter(|target| **target != IGNORED).count() as u64)
    };
    (0..source.validation_micro_batches()).map(count).collect()
}

/// Returns the number of tokens and their mean loss: that of micro-batches, weighted by their targets.
pub(super) fn mean(losses: &[f32], counts: &[u64]) -> (u64, f64) {
    let most = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let weights: Vec<f64> = counts.iter().map(|count| *count as f64 / most).collect();
    let sum: f64 = losses.iter().zip(&weights).map(|(loss, weight)| f64::from(*loss) * weight).sum();
    (counts.iter().sum(), sum / weights.iter().sum::<f64>())
}

#[cfg(test)]
mod tests {
    #[test]
    fn micro_batches_weigh_by_their_tokens() {
        assert_eq!(super::mean(&[1.0, 4.0, 0.0], &[2, 1, 0]), (3, 2.0));
    }
}
