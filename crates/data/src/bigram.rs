//! A bigram model of bytes: the bar that a language model must clear.

const BYTES: usize = 256;

/// Weight of the unigram counts against the bigram counts, in occurrences.
const PRIOR: f64 = 1.0;

/// Counts of each byte after each other byte in a text.
///
/// The probability of byte b after byte a is interpolated between what followed a, and how frequent b is on
/// its own, which in turn is smoothed by adding one to every count:
///
/// p(b | a) = (n(a b) + k · p(b)) / (n(a ·) + k), p(b) = (n(b) + 1) / (n + 256), k = 1
///
/// where n(a b) counts the pair, n(a ·) all pairs that begin with a, n(b) the byte and n all bytes. So
/// every pair has a probability and those of all b add up to 1. Source: D. MacKay, L. Peto, *A hierarchical
/// Dirichlet language model*, 1995, with a fixed k.
///
/// ```
/// let model = data::Bigrams::count([b"abababababab".as_slice()]);
/// assert!(model.probability(b'a', b'b') > 0.8);
/// assert!((0..=255).map(|b| model.probability(b'a', b)).sum::<f64>() - 1.0 < 1e-9);
/// ```
#[derive(Clone, Debug)]
pub struct Bigrams {
    /// Row a, column b.
    pairs: Vec<u64>,
    /// The sum of each row.
    rows: Vec<u64>,
    bytes: Vec<u64>,
    total: u64,
}

impl Bigrams {
    /// Counts a text, which may come in pieces: a pair across the border of two counts too.
    pub fn count<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut pairs = vec![0_u64; BYTES * BYTES];
        let mut bytes = vec![0_u64; BYTES];
        let mut total = 0_u64;
        let mut previous = None;
        for &byte in pieces.into_iter().flatten() {
            if let Some(before) = previous.replace(byte) {
                pairs[pair(before, byte)] += 1;
            }
            bytes[usize::from(byte)] += 1;
            total += 1;
        }
        let rows = pairs.chunks_exact(BYTES).map(|row| row.iter().sum()).collect();
        Self { pairs, rows, bytes, total }
    }

    /// The probability of `byte` after `previous`: never 0.
    #[must_use]
    pub fn probability(&self, previous: u8, byte: u8) -> f64 {
        let alone = (self.bytes[usize::from(byte)] as f64 + 1.0) / (self.total as f64 + BYTES as f64);
        let together = self.pairs[pair(previous, byte)] as f64;
        (together + PRIOR * alone) / (self.rows[usize::from(previous)] as f64 + PRIOR)
    }

    /// The mean of −ln p over all bytes but the first of every sequence, in nats a byte. Each sequence may
    /// come in pieces. NaN if no sequence has two bytes.
    pub fn entropy<'a, P: IntoIterator<Item = &'a [u8]>>(
        &self,
        sequences: impl IntoIterator<Item = P>,
    ) -> f64 {
        let (mut sum, mut count) = (0.0, 0_u64);
        for sequence in sequences {
            let mut previous = None;
            for &byte in sequence.into_iter().flatten() {
                if let Some(before) = previous.replace(byte) {
                    sum -= libm::log(self.probability(before, byte));
                    count += 1;
                }
            }
        }
        sum / count as f64
    }
}

fn pair(previous: u8, byte: u8) -> usize {
    usize::from(previous) * BYTES + usize::from(byte)
}
