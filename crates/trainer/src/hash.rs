//! The identity of a set of weights.

use nn::Parameters;
use sha2::{Digest, Sha256};

use crate::error::Result;

/// Elements copied to the host at a time.
const PIECE: usize = 1 << 18;

/// SHA-256 in hexadecimal over the parameters sorted by the bytes of their names: of each its name in UTF-8, then its
/// f32 values, little-endian. Copies to the host in pieces and allocates nothing on the device.
pub(crate) fn weights_sha256(parameters: &Parameters) -> Result<String> {
    let mut sorted: Vec<_> = parameters.list().iter().collect();
    sorted.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    let mut digest = Sha256::new();
    let mut values = Vec::new();
    for parameter in sorted {
        digest.update(parameter.name.as_bytes());
        let elements = parameter.tensor.elements();
        for start in (0..elements).step_by(PIECE) {
            let len = PIECE.min(elements - start);
            values.resize(len, 0.0_f32);
            let piece = parameter.tensor.view(start, [len])?;
            parameters.device().copy_to_host(piece.region(), &mut values)?;
            values.iter().for_each(|value| digest.update(value.to_le_bytes()));
        }
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
