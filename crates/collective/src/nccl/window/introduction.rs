//! Messages with which ranks set up peer access, and their encoding.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

use device::Region;
use device::cuda::Extent;

/// A rank's host, process, GPU and shared regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Introduction {
    /// Identifier of the running host, equal on all of its processes.
    pub(super) host: Vec<u8>,
    /// Identifier of the process.
    pub(super) process: u64,
    /// UUID of the GPU.
    pub(super) gpu: [u8; 16],
    /// Socket address on which the rank accepts files.
    pub(super) address: Vec<u8>,
    /// Address and bytes of each region.
    pub(super) regions: Vec<(u64, u64)>,
    /// Reason why the rank cannot share; empty if it can.
    pub(super) trouble: String,
}

/// Returns a random 64-bit number.
pub(super) fn unique() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Introduction {
    pub(super) fn new(gpu: [u8; 16], address: &[u8], regions: &[Region<'_>]) -> Self {
        static PROCESS: LazyLock<u64> = LazyLock::new(unique);
        // The boot identifier changes with every start of a system; without it, ranks count as being on
        // different hosts.
        let host = std::fs::read("/proc/sys/kernel/random/boot_id");
        let host = host.unwrap_or_else(|_| PROCESS.to_le_bytes().to_vec());
        let region =
            |region: &Region<'_>| (region.buffer.address() + region.offset as u64, region.bytes as u64);
        let unaligned =
            regions.iter().any(|region| !(region.buffer.address() + region.offset as u64).is_multiple_of(16));
        let trouble =
            if unaligned { "a region does not begin on 16 bytes".to_owned() } else { String::new() };
        Introduction {
            host,
            process: *PROCESS,
            gpu,
            address: address.to_vec(),
            regions: regions.iter().map(region).collect(),
            trouble,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, &self.host);
        out.extend(self.process.to_le_bytes());
        out.extend(self.gpu);
        put(&mut out, &self.address);
        out.extend((self.regions.len() as u64).to_le_bytes());
        for (address, bytes) in &self.regions {
            out.extend(address.to_le_bytes());
            out.extend(bytes.to_le_bytes());
        }
        put(&mut out, self.trouble.as_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let host = take(&mut rest)?.to_vec();
        let process = number(&mut rest)?;
        let gpu = *fixed(&mut rest)?;
        let address = take(&mut rest)?.to_vec();
        let count = number(&mut rest)?;
        let region = |_| Some((number(&mut rest)?, number(&mut rest)?));
        let regions = (0..count).map(region).collect::<Option<Vec<_>>>()?;
        let trouble = text(&mut rest)?;
        Some(Introduction { host, process, gpu, address, regions, trouble })
    }
}

/// An extent and the handle from which other ranks map it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offered {
    pub(super) extent: Extent,
    /// Number of a page within its process.
    pub(super) number: u64,
    /// Inter-process handle of an allocation.
    pub(super) name: Option<[u8; 64]>,
}

/// The extents that a rank offers, or the reason for offering none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) offered: Vec<Offered>,
    pub(super) trouble: String,
}

impl Offer {
    /// Creates an offer without extents. An empty reason means no refusal.
    pub(super) fn refusal(trouble: String) -> Self {
        Offer { offered: Vec::new(), trouble }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend((self.offered.len() as u64).to_le_bytes());
        for Offered { extent, number, name } in &self.offered {
            for value in [extent.address, extent.bytes, u64::from(extent.is_page), *number] {
                out.extend(value.to_le_bytes());
            }
            put(&mut out, name.as_ref().map_or(&[], |name| name.as_slice()));
        }
        put(&mut out, self.trouble.as_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let count = number(&mut rest)?;
        let offered = |_| {
            let address = number(&mut rest)?;
            let bytes = number(&mut rest)?;
            let is_page = number(&mut rest)? != 0;
            let number = number(&mut rest)?;
            let name = take(&mut rest)?;
            let name = if name.is_empty() { None } else { Some(name.try_into().ok()?) };
            Some(Offered { extent: Extent { address, bytes, is_page }, number, name })
        };
        let offered = (0..count).map(offered).collect::<Option<Vec<_>>>()?;
        Some(Offer { offered, trouble: text(&mut rest)? })
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn fixed<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, others) = rest.split_first_chunk::<N>()?;
    *rest = others;
    Some(first)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    fixed(rest).map(|bytes| u64::from_le_bytes(*bytes))
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(number(rest)?).ok()?;
    let (first, others) = rest.split_at_checked(length)?;
    *rest = others;
    Some(first)
}

fn text(rest: &mut &[u8]) -> Option<String> {
    take(rest).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn introduction() -> impl Strategy<Value = Introduction> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        let regions = prop::collection::vec(any::<(u64, u64)>(), 0..5);
        let all = (bytes(), any::<u64>(), any::<[u8; 16]>(), bytes(), regions, "[a-z ]{0,20}");
        all.prop_map(|(host, process, gpu, address, regions, trouble)| Introduction {
            host,
            process,
            gpu,
            address,
            regions,
            trouble,
        })
    }

    fn offer() -> impl Strategy<Value = Offer> {
        let name = prop::option::of(prop::collection::vec(any::<u8>(), 64));
        let one = (any::<(u64, u64, bool, u64)>(), name);
        let offered = one.prop_map(|((address, bytes, is_page, number), name)| Offered {
            extent: Extent { address, bytes, is_page },
            number,
            name: name.map(|name| name.try_into().unwrap()),
        });
        (prop::collection::vec(offered, 0..5), "[a-z ]{0,20}")
            .prop_map(|(offered, trouble)| Offer { offered, trouble })
    }

    proptest! {
        #[test]
        fn messages_round_trip_and_truncated_ones_are_refused(
            introduction in introduction(), offer in offer(), cut in 1_usize..400,
        ) {
            let first = introduction.encode();
            let second = offer.encode();
            prop_assert_eq!(Introduction::decode(&first).unwrap(), introduction);
            prop_assert_eq!(Offer::decode(&second).unwrap(), offer);
            prop_assert!(Introduction::decode(&first[..first.len().saturating_sub(cut)]).is_none());
            prop_assert!(Offer::decode(&second[..second.len().saturating_sub(cut)]).is_none());
        }
    }
}
