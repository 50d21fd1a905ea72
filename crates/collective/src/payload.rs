//! The bytes of one message: of bounded length, and aligned so that they can be summed without a copy.

/// Maximum bytes of one message; a multiple of every element size.
pub(crate) const PAYLOAD_BYTES: usize = 256 << 10;
/// Number of idle payloads that a pool keeps.
const KEPT: usize = 16;

/// Bytes of a message, aligned to 4.
#[derive(Debug, Default)]
pub(crate) struct Payload {
    words: Vec<u32>,
    len: usize,
}

/// Host bytes that a rank keeps for reusing messages, if its longest operand has `longest` bytes: a full pool
/// and one message in use.
#[must_use]
pub fn kept_bytes(longest: u64) -> u64 {
    (1 + KEPT as u64) * longest.min(PAYLOAD_BYTES as u64)
}

impl Payload {
    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }

    fn resize(&mut self, len: usize) {
        self.words.resize(len.div_ceil(4), 0);
        self.len = len;
    }
}

/// Idle payloads kept for reuse.
#[derive(Debug, Default)]
pub(crate) struct PayloadPool(Vec<Payload>);

impl PayloadPool {
    /// Takes a payload of `len` bytes with arbitrary contents.
    pub(crate) fn take(&mut self, len: usize) -> Payload {
        let mut payload = self.0.pop().unwrap_or_default();
        payload.resize(len);
        payload
    }

    /// Returns a payload to the pool.
    pub(crate) fn put(&mut self, payload: Payload) {
        if self.0.len() < KEPT {
            self.0.push(payload);
        }
    }
}
