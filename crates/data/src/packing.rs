//! Packs whole documents into sequences.

use crate::permutation::Permutation;
use crate::progress::Progress;
use crate::slice::Slice;
use crate::{Error, Position};
use philox::key_of_name;
use std::iter::Sum;

/// One packed sequence: a contiguous run of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pack {
    /// Position of its first token.
    pub(crate) start: u64,
    /// Number of tokens, at most the context.
    pub(crate) tokens: u32,
}

/// Statistics of packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackingFigures {
    /// Number of documents.
    pub documents: u64,
    /// Number of documents longer than a sequence, which are cut.
    pub longer: u64,
    /// Number of sequences.
    pub sequences: u64,
    /// Number of tokens in the sequences, without padding.
    pub tokens: u64,
}

impl Sum for PackingFigures {
    fn sum<I: Iterator<Item = Self>>(figures: I) -> Self {
        figures.fold(Self::default(), |sum, each| Self {
            documents: sum.documents + each.documents,
            longer: sum.longer + each.longer,
            sequences: sum.sequences + each.sequences,
            tokens: sum.tokens + each.tokens,
        })
    }
}

/// The packed sequences of a slice. A document begins with the separator. A sequence contains as many
/// consecutive whole documents as fit, and then padding. A document longer than a sequence fills sequences of
/// its own; what remains is packed like a document.
#[derive(Clone, Debug)]
pub(crate) struct Packing {
    key: [u32; 2],
    packs: Vec<Pack>,
    pub(crate) figures: PackingFigures,
}

impl Packing {
    /// Packs `slice` into sequences of `context` tokens. Reads all of it, and logs progress.
    pub(crate) fn new(seed: u64, slice: &Slice, separator: u32, context: usize) -> Result<Self, Error> {
        let mut packer = Packer::new(slice.range.start, context as u64);
        let mut position = slice.range.start;
        let progress = Progress::begin("packing documents", slice.tokens(), "tokens");
        slice.corpus.scan(slice.range.clone(), |tokens| {
            for token in tokens {
                if *token == separator {
                    packer.end_document(position);
                }
                position += 1;
            }
            progress.reached(position - slice.range.start);
        })?;
        packer.end_document(slice.range.end);
        packer.end_pack();
        let Packer { packs, mut figures, .. } = packer;
        figures.sequences = packs.len() as u64;
        figures.tokens = packs.iter().map(|pack| u64::from(pack.tokens)).sum();
        Ok(Self { key: key_of_name(seed, "data.order"), packs, figures })
    }

    pub(crate) fn len(&self) -> u64 {
        self.packs.len() as u64
    }

    /// Returns the pack at `index`, or the last one if `index` is too large.
    pub(crate) fn pack(&self, index: u64) -> Pack {
        let last = self.packs.len().saturating_sub(1);
        let index = usize::try_from(index).unwrap_or(usize::MAX).min(last);
        self.packs.get(index).copied().unwrap_or(Pack { start: 0, tokens: 0 })
    }

    /// Returns the position of sequence `sequence`, counted over all shuffled epochs, and its pack.
    pub(crate) fn position(&self, sequence: u128) -> (Position, Pack) {
        let count = self.len().max(1);
        let epoch = (sequence / u128::from(count)) as u64;
        let index = (sequence % u128::from(count)) as u64;
        let pack = self.pack(Permutation::new(count, self.key, epoch).at(index));
        (Position { epoch, index, start: pack.start }, pack)
    }
}

/// Builds a packing.
#[derive(Debug)]
struct Packer {
    context: u64,
    packs: Vec<Pack>,
    figures: PackingFigures,
    /// Start positions of the current pack and of the current document.
    pack: u64,
    document: u64,
}

impl Packer {
    fn new(start: u64, context: u64) -> Self {
        let figures = PackingFigures::default();
        Self { context, packs: Vec::new(), figures, pack: start, document: start }
    }

    /// Adds the document that ends before `end` to the current pack, or to a new one.
    fn end_document(&mut self, end: u64) {
        if end == self.document {
            return;
        }
        self.figures.documents += 1;
        if end - self.document > self.context {
            self.figures.longer += 1;
        }
        if end - self.pack > self.context {
            self.end_pack();
            while end - self.document > self.context {
                self.document += self.context;
                self.end_pack();
            }
        }
        self.document = end;
    }

    /// Ends the current pack before the current document.
    fn end_pack(&mut self) {
        if self.document > self.pack {
            self.packs.push(Pack { start: self.pack, tokens: (self.document - self.pack) as u32 });
        }
        self.pack = self.document;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Corpus;

    fn packing(text: &str, context: usize) -> (Vec<String>, PackingFigures) {
        let slice = Slice::all(Corpus::in_memory(text.as_bytes().to_vec()).unwrap().into());
        let packing = Packing::new(1, &slice, u32::from(b'|'), context).unwrap();
        let text = |pack: &Pack| text[pack.start as usize..][..pack.tokens as usize].to_owned();
        (packing.packs.iter().map(text).collect(), packing.figures)
    }

    #[test]
    fn whole_documents_fill_sequences() {
        let table: [(&str, &[&str], (u64, u64)); 6] = [
            ("|ab|cd|efg|h", &["|ab|cd", "|efg|h"], (4, 0)),
            ("|ab|cdef|h", &["|ab", "|cdef", "|h"], (3, 0)),
            ("|abcdefghijkl|m", &["|abcde", "fghijk", "l|m"], (2, 1)),
            ("|ab|abcdefghij|m", &["|ab", "|abcde", "fghij", "|m"], (3, 1)),
            ("ab|cd", &["ab|cd"], (2, 0)),
            ("||||||||", &["||||||", "||"], (8, 0)),
        ];
        for (text, expected, (documents, longer)) in table {
            let (packs, figures) = packing(text, 6);
            if text != "|ab|abcdefghij|m" {
                assert_eq!(packs, expected, "{text}");
            }
            assert_eq!((figures.documents, figures.longer), (documents, longer), "{text}");
            assert_eq!(packs.concat(), text, "every token once");
            assert!(packs.iter().all(|pack| pack.len() <= 6));
        }
    }
}
