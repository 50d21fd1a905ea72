//! Identifies a corpus without reading all of it.

use sha2::{Digest, Sha256};
use system::numbers::hexadecimal;

use crate::{Corpus, Error};

/// Number of runs of tokens whose hash identifies a corpus.
const SAMPLES: u64 = 64;
/// Number of tokens in each hashed run.
const SAMPLE: u64 = 16_384;

/// Identity of a corpus: its size, the modification time of its files, and a hash of samples from the start,
/// the end and evenly in between. A corpus of up to 1,048,576 tokens is hashed completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorpusIdentity {
    /// Total number of tokens in all files.
    pub tokens: u64,
    /// Latest modification time of the files, in seconds since 1970; 0 in memory.
    pub modified: i64,
    /// Hexadecimal SHA-256 of the samples, each token as a little-endian u32.
    pub samples_sha256: String,
}

impl CorpusIdentity {
    /// Reads the samples of a corpus and returns its identity.
    pub fn from_corpus(corpus: &Corpus) -> Result<Self, Error> {
        let mut digest = Sha256::new();
        for (start, count) in pieces(corpus.len(), SAMPLES, SAMPLE) {
            corpus.scan(start..start + count, |tokens| {
                tokens.iter().for_each(|token| digest.update(token.to_le_bytes()));
            })?;
        }
        let samples_sha256 = hexadecimal(&digest.finalize());
        Ok(Self { tokens: corpus.len(), modified: corpus.modified(), samples_sha256 })
    }
}

impl CorpusIdentity {
    /// Returns one identity for several corpora in this order.
    pub(crate) fn of_all<'a>(corpora: impl Iterator<Item = &'a Corpus>) -> Result<Self, Error> {
        let mut all = corpora.map(Self::from_corpus).collect::<Result<Vec<_>, _>>()?;
        if all.len() == 1 {
            return Ok(all.remove(0));
        }
        let hashes: Vec<&str> = all.iter().map(|one| one.samples_sha256.as_str()).collect();
        Ok(Self {
            samples_sha256: hexadecimal(&Sha256::digest(hashes.join(" "))),
            tokens: all.iter().map(|one| one.tokens).sum(),
            modified: all.iter().map(|one| one.modified).max().unwrap_or(0),
        })
    }
}

/// Returns (start, length) of up to `count` samples of `size` elements, evenly spread over `all` elements. If
/// `all` is not larger than their total, returns one sample of everything.
pub(crate) fn pieces(all: u64, count: u64, size: u64) -> Vec<(u64, u64)> {
    if all <= count * size {
        return vec![(0, all)];
    }
    let start = |index: u64| {
        let offset = u128::from(all - size) * u128::from(index) / u128::from(count - 1);
        // At most `all`.
        offset as u64
    };
    (0..count).map(|index| (start(index), size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_reach_from_the_start_to_the_end() {
        assert_eq!(pieces(40, 4, 10), [(0, 40)]);
        assert_eq!(pieces(41, 4, 10), [(0, 10), (10, 10), (20, 10), (31, 10)]);
        assert_eq!(pieces(u64::MAX, 3, 1), [(0, 1), ((u64::MAX - 1) / 2, 1), (u64::MAX - 1, 1)]);
    }

    #[test]
    fn a_change_in_a_piece_or_in_the_length_changes_the_identity() {
        let identity_of =
            |bytes: Vec<u8>| CorpusIdentity::from_corpus(&Corpus::in_memory(bytes).unwrap()).unwrap();
        let text: Vec<u8> = (0..2_000_000_u32).map(|index| (index % 251) as u8).collect();
        let changed = |offset: usize| {
            let mut text = text.clone();
            text[offset] ^= 1;
            identity_of(text)
        };
        let identity = identity_of(text.clone());
        assert_eq!(identity_of(text.clone()), identity);
        for offset in [0, 16_383, 1_999_999] {
            assert_ne!(changed(offset), identity, "{offset}");
        }
        assert_eq!(changed(16_384), identity, "between two pieces");
        assert_ne!(identity_of(text[..1_999_999].to_vec()).tokens, identity.tokens);
    }
}
