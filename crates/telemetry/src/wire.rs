//! Messages between ranks, encoded by bincode.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, TelemetryError};

/// Maximum bytes that decoding a message may allocate.
const MESSAGE_LIMIT: usize = 1 << 16;

pub(crate) fn encode(rank: usize, value: &impl Serialize) -> Result<Vec<u8>> {
    bincode::serde::encode_to_vec(value, format())
        .map_err(|error| TelemetryError::Encode { rank, reason: error.to_string() })
}

/// Decodes a message received from rank `from`.
///
/// # Errors
/// The message has another form.
pub(crate) fn decode<T: DeserializeOwned>(from: usize, message: &[u8]) -> Result<T> {
    let refuse = |reason: String| TelemetryError::Decode { rank: from, reason };
    let (value, read) =
        bincode::serde::decode_from_slice(message, format()).map_err(|error| refuse(error.to_string()))?;
    match message.len() - read {
        0 => Ok(value),
        left => Err(refuse(format!("{left} bytes are left over"))),
    }
}

fn format() -> Configuration<LittleEndian, Varint, Limit<MESSAGE_LIMIT>> {
    bincode::config::standard().with_limit::<MESSAGE_LIMIT>()
}
