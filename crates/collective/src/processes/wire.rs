//! The wire format of message headers and notices, and the identifiers (contexts) of groups.

use bytemuck::{Pod, Zeroable};
use device::DType;

use crate::call::{Call, CallKind, Channel, Signature};

/// Size of a header in bytes.
pub(crate) const HEADER_BYTES: usize = size_of::<Header>();
/// Context of the world's control channel; [`DATA`] of its process group.
pub(crate) const CONTROL: u64 = 0;
pub(crate) const DATA: u64 = 1;

const HAS_BYTES: u8 = 1;
const HAS_ROOT: u8 = 2;
const DTYPES: [DType; 4] = [DType::F32, DType::Bf16, DType::F16, DType::U32];

/// The header of a message. All processes of a job must have the same byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    /// Context of the receiving group, to detect coinciding tags.
    pub(crate) context: u64,
    /// Bytes of the payload, which follows in this message or the next.
    pub(crate) payload: u64,
    sequence: u64,
    bytes: u64,
    root: u64,
    channel: u8,
    kind: u8,
    /// Index of the dtype in [`DTYPES`], from 1; 0 for none.
    dtype: u8,
    has: u8,
    padding: u32,
}

impl Header {
    pub(crate) fn new(context: u64, signature: &Signature, payload: usize) -> Self {
        let Signature { call, bytes, dtype, root } = *signature;
        let index =
            |dtype| DTYPES.iter().position(|other| *other == dtype).map_or(0, |index| index as u8 + 1);
        Header {
            context,
            payload: payload as u64,
            sequence: call.sequence,
            bytes: bytes.unwrap_or(0),
            root: root.unwrap_or(0) as u64,
            channel: u8::from(call.channel == Channel::Data),
            kind: call.kind as u8,
            dtype: dtype.map_or(0, index),
            has: bytes.map_or(0, |_| HAS_BYTES) | root.map_or(0, |_| HAS_ROOT),
            padding: 0,
        }
    }

    /// Parses the header at the start of a message; `None` if it is invalid.
    pub(crate) fn read(message: &[u8]) -> Option<Self> {
        let header: Header = bytemuck::pod_read_unaligned(message.get(..HEADER_BYTES)?);
        (usize::from(header.kind) < CallKind::ALL.len()).then_some(header)
    }

    pub(crate) fn signature(&self) -> Signature {
        let channel = if self.channel == 0 { Channel::Control } else { Channel::Data };
        let kind = CallKind::ALL.get(usize::from(self.kind)).copied().unwrap_or(CallKind::Barrier);
        let dtype = usize::from(self.dtype).checked_sub(1).and_then(|index| DTYPES.get(index)).copied();
        Signature {
            call: Call { channel, kind, sequence: self.sequence },
            bytes: (self.has & HAS_BYTES != 0).then_some(self.bytes),
            dtype,
            root: (self.has & HAS_ROOT != 0).then_some(self.root as usize),
        }
    }
}

/// Derives a group's context from its parent's, with the mixing function of SplitMix64. Equal on all ranks of
/// the group; collides with another group's with probability 2⁻⁶².
pub(crate) fn child(context: u64, sequence: u64, group: usize) -> u64 {
    let mixed = [sequence, group as u64].iter().fold(context, |state, value| {
        let mut z = (state ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    });
    mixed.max(DATA + 1)
}

/// Largest size of a notice in bytes.
pub(crate) const NOTICE_BYTES: usize = 2048;

/// A message between ranks outside of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A rank has failed: the sender, or a rank that can no longer announce it.
    Failed { rank: usize, reason: String },
    /// The sender has made all its calls.
    Ended { rank: usize },
    /// The sender has waited for its whole timeout and queries all ranks.
    Asked { rank: usize },
    /// Answer to a query: the sender is in the collective of this header, or after it.
    Answered { rank: usize, header: Option<Header> },
    /// Answer to a query: the sender waits for something other than ranks.
    Delayed { rank: usize },
}

impl Notice {
    /// Encodes the notice in at most [`NOTICE_BYTES`] bytes, truncating a long reason.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, rank, more) = match self {
            Notice::Failed { rank, reason } => (0, rank, cut(reason).as_bytes()),
            Notice::Ended { rank } => (1, rank, [].as_slice()),
            Notice::Asked { rank } => (2, rank, [].as_slice()),
            Notice::Answered { rank, header } => {
                (3, rank, header.as_ref().map_or([].as_slice(), |header| bytemuck::bytes_of(header)))
            }
            Notice::Delayed { rank } => (4, rank, [].as_slice()),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(*rank as u64).to_le_bytes());
        bytes.extend_from_slice(more);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (rank, more) = rest.split_first_chunk::<8>()?;
        let rank = usize::try_from(u64::from_le_bytes(*rank)).ok()?;
        Some(match kind {
            0 => Notice::Failed { rank, reason: String::from_utf8_lossy(more).into_owned() },
            1 => Notice::Ended { rank },
            2 => Notice::Asked { rank },
            3 => Notice::Answered { rank, header: Header::read(more) },
            4 => Notice::Delayed { rank },
            _ => return None,
        })
    }
}

/// Truncates a text so that it fits a notice.
fn cut(text: &str) -> &str {
    let room = text.len().min(NOTICE_BYTES - 1 - size_of::<u64>());
    let end = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_round_trip() {
        for (index, kind) in CallKind::ALL.into_iter().enumerate() {
            for channel in [Channel::Control, Channel::Data] {
                let call = Call { channel, kind, sequence: 1 << 40 | index as u64 };
                let plain = Signature::new(call);
                for signature in
                    [plain, plain.root(0), plain.bytes(0).dtype(DType::F16), plain.root(3).bytes(9)]
                {
                    let header = Header::new(7, &signature, 5);
                    let read = Header::read(bytemuck::bytes_of(&header)).unwrap();
                    assert_eq!((read.context, read.payload, read.signature()), (7, 5, signature));
                }
            }
        }
        assert!(Header::read(&[0; HEADER_BYTES - 1]).is_none());
        assert!(Header::read(&[0xff; HEADER_BYTES]).is_none());
    }

    #[test]
    fn notices_round_trip_and_are_truncated_to_fit() {
        let long = "é".repeat(NOTICE_BYTES);
        let notices = [
            Notice::Failed { rank: 3, reason: "disk full".to_owned() },
            Notice::Ended { rank: 0 },
            Notice::Asked { rank: 70_000 },
            Notice::Answered { rank: 1, header: None },
            Notice::Answered { rank: 1, header: Header::read(&[1; HEADER_BYTES]) },
        ];
        for notice in notices {
            assert_eq!(Notice::decode(&notice.encode()), Some(notice));
        }
        let bytes = Notice::Failed { rank: 1, reason: long.clone() }.encode();
        assert!(bytes.len() <= NOTICE_BYTES && bytes.len() > NOTICE_BYTES - 4);
        let Some(Notice::Failed { rank: 1, reason }) = Notice::decode(&bytes) else {
            panic!("another notice")
        };
        assert!(long.starts_with(&reason));
        assert_eq!(Notice::decode(&[9; 9]), None);
        assert_eq!(Notice::decode(&[0; 8]), None);
    }
}
