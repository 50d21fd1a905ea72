//! A bigram model over bytes, whose loss a language model must beat.

const BYTES: usize = 256;

/// Weight of the unigram probability relative to the bigram counts, as a number of occurrences.
const PRIOR: f64 = 1.0;

/// Counts of each byte after each other byte in a text.
///
/// The probability of byte b after byte a is interpolated between b's frequency after a and b's overall
/// frequency, which is smoothed by adding one to every count:
///
/// p(b | a) = (n(a b) + k · p(b)) / (n(a ·) + k), p(b) = (n(b) + 1) / (n + 256), k = 1
///
/// where n(a b) counts the pair, n(a ·) all pairs that begin with a, n(b) the byte and n all bytes. Every
/// pair has a probability, and those of all b add up to 1. Source: D. MacKay, L. Peto, *A hierarchical
/// Dirichlet language model*, 1995, with a fixed k.
///
/// ```
/// let mut model = data::Bigrams::default();
/// model.count(*b"abababababab");
/// assert!(model.probability(b'a', b'b') > 0.8);
/// assert!((0..=255).map(|b| model.probability(b'a', b)).sum::<f64>() - 1.0 < 1e-9);
/// ```
#[derive(Clone, Debug)]
pub struct Bigrams {
    /// Pair counts: the first byte selects the row, the second the column.
    pairs: Vec<u64>,
    rows: Vec<u64>,
    bytes: Vec<u64>,
    total: u64,
    /// The byte counted last.
    last: Option<u8>,
}

impl Default for Bigrams {
    fn default() -> Self {
        let pairs = vec![0; BYTES * BYTES];
        let rows = vec![0; BYTES];
        let bytes = vec![0; BYTES];
        Self { pairs, rows, bytes, total: 0, last: None }
    }
}

impl Bigrams {
    /// Counts the next bytes of a text, including the pair that spans two calls.
    pub fn count(&mut self, text: impl IntoIterator<Item = u8>) {
        for byte in text {
            if let Some(before) = self.last.replace(byte) {
                self.pairs[pair(before, byte)] += 1;
                self.rows[usize::from(before)] += 1;
            }
            self.bytes[usize::from(byte)] += 1;
            self.total += 1;
        }
    }

    /// Returns the probability of `byte` after `previous`; never 0.
    #[must_use]
    pub fn probability(&self, previous: u8, byte: u8) -> f64 {
        let alone = (self.bytes[usize::from(byte)] as f64 + 1.0) / (self.total as f64 + BYTES as f64);
        let together = self.pairs[pair(previous, byte)] as f64;
        (together + PRIOR * alone) / (self.rows[usize::from(previous)] as f64 + PRIOR)
    }

    /// Returns the sum of −ln p, in nats, over all bytes of a sequence except the first.
    #[must_use]
    pub fn surprise(&self, sequence: &[u8]) -> f64 {
        sequence.windows(2).map(|pair| -libm::log(self.probability(pair[0], pair[1]))).sum()
    }
}

fn pair(previous: u8, byte: u8) -> usize {
    usize::from(previous) * BYTES + usize::from(byte)
}
