//! Collectives as entries of a device's call log.

use device::{LoggedCall, LoggedCommunication, Region, StreamKind};

use super::{Collective, PeerRegion};

/// Log name of exchanges by copy engines between GPUs with peer access.
pub const PEER_COPIES: &str = "peer copies";
/// Log name of sums by kernels between GPUs with peer access. Counts the bytes of the rank's parts, and as
/// many again if every rank gets the whole sum.
pub const PEER_SUMS: &str = "peer sums";

impl Collective<Region<'_>> {
    /// Returns the log entry of this call on rank `rank`. `members` are the world numbers of the group's
    /// ranks.
    pub(crate) fn logged(&self, rank: usize, members: &[usize], stream: StreamKind) -> LoggedCall {
        let (sends, receives) = self.messages();
        let in_world = |peers: &[PeerRegion<'_>]| -> Vec<(usize, u64)> {
            peers.iter().map(|(peer, region)| (members[*peer], region.bytes as u64)).collect()
        };
        let sends = in_world(&sends);
        let receives = in_world(&receives);
        let is_own_or_peer = |other: &usize| {
            *other == members[rank] || sends.iter().chain(&receives).any(|(peer, _)| peer == other)
        };
        let mut ranks = members.to_vec();
        if !(sends.is_empty() && receives.is_empty()) {
            ranks.retain(is_own_or_peer);
        }
        let total = |peers: &[(usize, u64)]| peers.iter().map(|(_, bytes)| *bytes).sum::<u64>();
        let bytes = match self {
            Collective::AllReduce { region, .. } | Collective::Broadcast { region, .. } => {
                region.bytes as u64
            }
            Collective::ReduceScatter { input: whole, .. } | Collective::AllGather { output: whole, .. } => {
                whole.bytes as u64
            }
            Collective::SumShared { sums, tree, .. } => {
                let own = tree.parts_of(rank).len();
                sums.iter().map(|sum| (sum.region.bytes * (own + usize::from(sum.everywhere))) as u64).sum()
            }
            _ => total(&sends).max(total(&receives)),
        };
        let operation = match self {
            Collective::SumShared { .. } => PEER_SUMS,
            Collective::ExchangeShared { .. } => PEER_COPIES,
            _ => self.kind().name(),
        };
        LoggedCall::Communication(LoggedCommunication { operation, bytes, ranks, sends, receives, stream })
    }
}
