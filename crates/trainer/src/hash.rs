//! The identity of a set of weights.

use optim::Optimizer;
use sha2::{Digest, Sha256};

use crate::error::Result;

/// Elements copied to the host at a time.
const PIECE: usize = 1 << 18;

/// SHA-256 in hexadecimal over the parameters sorted by the bytes of their names: of each its name in UTF-8, then its
/// f32 master weights, little-endian. Copies to the host in pieces and allocates nothing on the device.
pub(crate) fn weights_sha256(optimizer: &Optimizer) -> Result<String> {
    let mut sorted: Vec<_> = optimizer.slots().iter().zip(optimizer.states()).collect();
    sorted.sort_by(|a, b| a.0.name.as_bytes().cmp(b.0.name.as_bytes()));
    let mut digest = Sha256::new();
    let mut values = Vec::new();
    for (slot, state) in sorted {
        digest.update(slot.name.as_bytes());
        let elements = state.master.elements();
        for start in (0..elements).step_by(PIECE) {
            let len = PIECE.min(elements - start);
            values.resize(len, 0.0_f32);
            let piece = state.master.view(start, [len])?;
            piece.device().copy_to_host(piece.region(), &mut values)?;
            values.iter().for_each(|value| digest.update(value.to_le_bytes()));
        }
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use device::{Category, Device, DeviceOptions};
    use optim::{Kind, Optimizer, Slot};
    use tensor::Tensor;

    #[test]
    fn names_in_the_order_of_their_bytes_each_with_its_values() {
        let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
        let slot = |name: &str, values: &[f32]| {
            let weight = Tensor::from_host(&device, values, [values.len()], Category::Parameter).unwrap();
            Slot { name: name.to_owned(), weight, decay: false }
        };
        let slots = [slot("é", &[-1.0]), slot("a", &[0.5, 1.5, 2.5])];
        let optimizer = Optimizer::new(&device, &slots, Kind::Sgd { momentum: 0.0 }, 0.0).unwrap();
        // sha256 of "a", 0.5, 1.5, 2.5, "é", -1, as Python's hashlib and struct give it.
        let expected = "e4802aa3a0ea12851d885f660946bd5f7924bdc37ad6ac417ec069b7b960721d";
        assert_eq!(super::weights_sha256(&optimizer).unwrap(), expected);
    }
}
