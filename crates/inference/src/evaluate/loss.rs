//! The mean loss of tokens, computed from losses of micro-batches.

use data::{IGNORED, MicroBatch, Source, TokenSource};

use run::Result;

/// Numbers of targets that are not ignored, over all validation micro-batches.
pub(super) struct Targets {
    /// Number of targets in each micro-batch.
    pub(super) counts: Vec<u64>,
    /// Bytes of the targets' text; `None` if tokens do not consist of bytes, or some are not in the
    /// tokenizer.
    pub(super) bytes: Option<u64>,
}

/// Counts the targets of all validation micro-batches of `source`. `tokens` maps tokens to text.
pub(super) fn targets(source: &dyn Source, tokens: Option<&TokenSource>) -> Result<Targets> {
    let lengths = tokens.and_then(|tokens| tokens.tokenizer().byte_lengths());
    let mut batch = MicroBatch::default();
    let mut targets = Targets { counts: Vec::new(), bytes: lengths.as_ref().map(|_| 0) };
    for index in 0..source.validation_micro_batches() {
        source.validation(index, &mut batch)?;
        let counted = || batch.targets.tokens().map(|all| all.iter().filter(|target| **target != IGNORED));
        targets.counts.push(counted()?.count() as u64);
        let length = |target: &u32| lengths.as_ref()?.get(*target as usize).copied().map(u64::from);
        let here = counted()?.map(length).sum::<Option<u64>>();
        targets.bytes = targets.bytes.zip(here).map(|(bytes, here)| bytes + here);
    }
    Ok(targets)
}

/// Returns the number of tokens and their mean loss. Each micro-batch's loss is weighted by its number of
/// targets.
pub(super) fn mean(losses: &[f32], counts: &[u64]) -> (u64, f64) {
    let losses = losses.iter().map(|loss| f64::from(*loss));
    (counts.iter().sum(), worker::weighted_mean(losses, counts.iter().copied()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn micro_batches_weigh_by_their_tokens() {
        assert_eq!(super::mean(&[1.0, 4.0, 0.0], &[2, 1, 0]), (3, 2.0));
    }
}
