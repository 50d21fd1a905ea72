//! SHA-256 whose state can go on on another rank.

use sha2::compress256;
use sha2::digest::generic_array::GenericArray;

/// Bytes of a block.
const BLOCK: usize = 64;
/// Bytes of the state on the wire: eight words, the number of bytes so far, a block.
const ENCODED: usize = 32 + 8 + BLOCK;

/// The words before the first block.
const INITIAL: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The state of a SHA-256 (FIPS 180-4) in the middle of its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningSha256 {
    words: [u32; 8],
    /// Number of bytes so far.
    bytes: u64,
    /// The bytes after the last whole block, then bytes without meaning.
    block: [u8; BLOCK],
}

impl RunningSha256 {
    /// The state before the first byte.
    pub(crate) fn new() -> Self {
        RunningSha256 { words: INITIAL, bytes: 0, block: [0; BLOCK] }
    }

    /// Adds the next bytes of the message.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let filled = self.filled();
        self.bytes += bytes.len() as u64;
        let (head, rest) = match filled {
            0 => (&[][..], bytes),
            _ => bytes.split_at(bytes.len().min(BLOCK - filled)),
        };
        self.block[filled..filled + head.len()].copy_from_slice(head);
        if filled + head.len() == BLOCK {
            compress(&mut self.words, &self.block);
        }
        let (blocks, tail) = rest.as_chunks::<BLOCK>();
        blocks.iter().for_each(|block| compress(&mut self.words, block));
        if !tail.is_empty() {
            self.block[..tail.len()].copy_from_slice(tail);
        }
    }

    /// Returns the digest in hexadecimal.
    pub(crate) fn finish(mut self) -> String {
        let bits = 8 * self.bytes;
        // A one bit, zeros, and the length of the message fill the last block.
        let zeros = (BLOCK + BLOCK - 9 - self.filled()) % BLOCK;
        let mut padding = vec![0x80];
        padding.resize(1 + zeros, 0);
        padding.extend(bits.to_be_bytes());
        self.update(&padding);
        self.words.iter().map(|word| format!("{word:08x}")).collect()
    }

    /// Returns the state as bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let words = self.words.iter().flat_map(|word| word.to_le_bytes());
        words.chain(self.bytes.to_le_bytes()).chain(self.block).collect()
    }

    /// Returns the state of bytes from [`RunningSha256::encode`]; `None` if they are not.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ENCODED] = bytes.try_into().ok()?;
        let (words, rest) = bytes.split_first_chunk::<32>()?;
        let (length, block) = rest.split_first_chunk::<8>()?;
        let (words, _) = words.as_chunks::<4>();
        let word = |index: usize| words.get(index).map_or(0, |word| u32::from_le_bytes(*word));
        Some(RunningSha256 {
            words: std::array::from_fn(word),
            bytes: u64::from_le_bytes(*length),
            block: block.try_into().ok()?,
        })
    }

    /// Number of bytes after the last whole block.
    fn filled(&self) -> usize {
        (self.bytes % BLOCK as u64) as usize
    }
}

fn compress(words: &mut [u32; 8], block: &[u8; BLOCK]) {
    compress256(words, std::slice::from_ref(GenericArray::from_slice(block)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sha2::{Digest, Sha256};

    use super::*;

    proptest! {
        /// A message in parts, each hashed from the encoded state, has the digest of the message.
        #[test]
        fn parts_have_the_digest_of_the_message(
            message in prop::collection::vec(any::<u8>(), 0..700),
            cuts in prop::collection::vec(0_usize..700, 0..9),
        ) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(message.len())).collect();
            cuts.sort_unstable();
            cuts.push(message.len());
            let (mut digest, mut first) = (RunningSha256::new(), 0);
            for cut in cuts {
                digest.update(&message[first..cut]);
                let encoded = digest.encode();
                prop_assert_eq!(encoded.len(), ENCODED);
                prop_assert_eq!(RunningSha256::decode(&encoded[1..]), None);
                digest = RunningSha256::decode(&encoded).unwrap();
                first = cut;
            }
            prop_assert_eq!(digest.finish(), format!("{:x}", Sha256::digest(&message)));
        }
    }
}
