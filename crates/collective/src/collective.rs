//! Collectives and transfers as values that a process group runs.

mod check;
mod count;
mod logged;

use std::convert::Infallible;

use device::{DType, Region};

use crate::call::{Call, CallKind, Signature};
use crate::peer_access::SharedSum;
use crate::rank_tree::RankTree;

pub use check::Reach;
pub(crate) use check::{Membership, check_groups, check_rank, check_reach};
pub use logged::{PEER_COPIES, PEER_SUMS};

/// A peer, and the region sent to it or received from it.
pub type PeerRegion<'a> = (usize, Region<'a>);

/// A collective or transfer among the ranks of a group, with its operands.
///
/// `R` is the operand type: [`Region`] for a call, `()` in a list of collectives to prepare for
/// ([`ProcessGroup::warm_up`](crate::ProcessGroup::warm_up)).
///
/// Sums are in f32, bf16 or f16. They follow a balanced binary tree over ranks, whose left subtree has the
/// largest power of two below the number of ranks; each node is rounded to the dtype. A backend whose library
/// chooses the order documents this. Lengths are in bytes and a multiple of the element size (2 if there is
/// no dtype).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collective<R> {
    /// Sums over ranks; every rank gets the whole sum.
    AllReduce {
        /// The values, which the sum replaces.
        region: R,
        /// Type of the elements.
        dtype: DType,
    },
    /// Sums over ranks; each rank gets a shard of the sum.
    ReduceScatter {
        /// This rank's addends, for all shards.
        input: R,
        /// Shard `rank` of the sum, `1 / world_size` as long as `input`; may alias that shard of `input`.
        output: R,
        /// Type of the elements.
        dtype: DType,
    },
    /// Collects every rank's values on all ranks.
    AllGather {
        /// This rank's values; may alias this rank's shard of `output`.
        input: R,
        /// All ranks' values in rank order, `world_size` times as long as `input`.
        output: R,
    },
    /// Copies the values of one rank to all ranks.
    Broadcast {
        /// The rank whose values are copied.
        root: usize,
        /// The root's values, and the memory for them on other ranks.
        region: R,
    },
    /// Sends values to one rank. May wait for the receive.
    Send {
        /// The receiving rank, whose region has the same length.
        to: usize,
        /// The values to send.
        region: R,
    },
    /// Receives values from one rank.
    Receive {
        /// The sending rank.
        from: usize,
        /// Memory for the received values.
        region: R,
    },
    /// Runs several sends and receives as one call, so that they cannot deadlock each other. Messages between
    /// two ranks in one direction match in order. The peer may use a single [`Collective::Receive`] or
    /// [`Collective::Send`] instead.
    Exchange {
        /// Peers and the values to send to each.
        sends: Vec<(usize, R)>,
        /// Peers and the memory to receive from each.
        receives: Vec<(usize, R)>,
    },
    /// Blocks later work on the stream until all ranks have reached the barrier.
    Barrier,
    /// Sums regions in memory shared by [`ProcessGroup::share`](crate::ProcessGroup::share), always in the
    /// order of `tree`. Ranks synchronise before the first sum and after the last.
    SumShared {
        /// The sums to run; they may use the same scratch.
        sums: Vec<SharedSum<R>>,
        /// The order of additions and each rank's number of parts.
        tree: RankTree,
        /// Whether the device has no other work meanwhile. Affects speed, never results.
        alone: bool,
    },
    /// A [`Collective::Exchange`] between shared regions. Values arrive at the offset from which they were
    /// sent.
    ExchangeShared {
        /// Peers and the values to send to each.
        sends: Vec<(usize, R)>,
        /// Peers and the memory to receive from each.
        receives: Vec<(usize, R)>,
    },
}

impl<R> Collective<R> {
    /// The kind of call.
    pub fn kind(&self) -> CallKind {
        match self {
            Collective::AllReduce { .. } => CallKind::AllReduce,
            Collective::ReduceScatter { .. } => CallKind::ReduceScatter,
            Collective::AllGather { .. } => CallKind::AllGather,
            Collective::Broadcast { .. } => CallKind::Broadcast,
            Collective::Send { .. } => CallKind::Send,
            Collective::Receive { .. } => CallKind::Receive,
            Collective::Exchange { .. } | Collective::ExchangeShared { .. } => CallKind::Exchange,
            Collective::Barrier => CallKind::Barrier,
            Collective::SumShared { sums, .. } => match sums.iter().any(|sum| sum.everywhere) {
                true => CallKind::AllReduce,
                false => CallKind::ReduceScatter,
            },
        }
    }

    /// Returns whether the collective runs in memory shared by
    /// [`ProcessGroup::share`](crate::ProcessGroup::share).
    pub fn is_shared(&self) -> bool {
        matches!(self, Collective::SumShared { .. } | Collective::ExchangeShared { .. })
    }

    /// Returns whether the call sends messages between pairs of ranks, numbered per peer.
    pub(crate) fn is_transfer(&self) -> bool {
        self.kind().is_point_to_point() && !self.is_shared()
    }

    /// Returns the same collective with each operand mapped by `operand`.
    pub(crate) fn map<'a, S>(&'a self, mut operand: impl FnMut(&'a R) -> S) -> Collective<S> {
        let Ok(mapped) = self.try_map(|own| Ok::<_, Infallible>(operand(own)));
        mapped
    }

    /// Returns the same collective with each operand mapped by `operand`.
    ///
    /// # Errors
    /// The first error of `operand`.
    pub(crate) fn try_map<'a, S, E>(
        &'a self,
        mut operand: impl FnMut(&'a R) -> Result<S, E>,
    ) -> Result<Collective<S>, E> {
        let mut peers = |list: &'a [(usize, R)]| -> Result<Vec<(usize, S)>, E> {
            list.iter().map(|(peer, own)| Ok((*peer, operand(own)?))).collect()
        };
        Ok(match self {
            Collective::Exchange { sends, receives } => {
                Collective::Exchange { sends: peers(sends)?, receives: peers(receives)? }
            }
            Collective::ExchangeShared { sends, receives } => {
                Collective::ExchangeShared { sends: peers(sends)?, receives: peers(receives)? }
            }
            Collective::AllReduce { region, dtype } => {
                Collective::AllReduce { region: operand(region)?, dtype: *dtype }
            }
            Collective::ReduceScatter { input, output, dtype } => {
                Collective::ReduceScatter { input: operand(input)?, output: operand(output)?, dtype: *dtype }
            }
            Collective::AllGather { input, output } => {
                Collective::AllGather { input: operand(input)?, output: operand(output)? }
            }
            Collective::Broadcast { root, region } => {
                Collective::Broadcast { root: *root, region: operand(region)? }
            }
            Collective::Send { to, region } => Collective::Send { to: *to, region: operand(region)? },
            Collective::Receive { from, region } => {
                Collective::Receive { from: *from, region: operand(region)? }
            }
            Collective::Barrier => Collective::Barrier,
            Collective::SumShared { sums, tree, alone } => {
                let sum = |sum: &'a SharedSum<R>| -> Result<SharedSum<S>, E> {
                    let region = operand(&sum.region)?;
                    let scratch = operand(&sum.scratch)?;
                    Ok(SharedSum { region, scratch, dtype: sum.dtype, everywhere: sum.everywhere })
                };
                let sums = sums.iter().map(sum).collect::<Result<Vec<_>, E>>()?;
                Collective::SumShared { sums, tree: tree.clone(), alone: *alone }
            }
        })
    }
}

impl<R: Copy> Collective<R> {
    /// Returns the same transfer with peers renumbered by `number`; other collectives are unchanged.
    pub(crate) fn with_peers(self, number: impl Fn(usize) -> usize) -> Self {
        let all = |list: Vec<(usize, R)>| list.into_iter().map(|(peer, own)| (number(peer), own)).collect();
        match self {
            Collective::Send { to, region } => Collective::Send { to: number(to), region },
            Collective::Receive { from, region } => Collective::Receive { from: number(from), region },
            Collective::Exchange { sends, receives } => {
                Collective::Exchange { sends: all(sends), receives: all(receives) }
            }
            other => other,
        }
    }
}

impl<'a> Collective<Region<'a>> {
    /// Returns the point-to-point messages as (sends, receives).
    pub(crate) fn messages(&self) -> (Vec<PeerRegion<'a>>, Vec<PeerRegion<'a>>) {
        match self {
            Collective::Send { to, region } => (vec![(*to, *region)], Vec::new()),
            Collective::Receive { from, region } => (Vec::new(), vec![(*from, *region)]),
            Collective::Exchange { sends, receives } | Collective::ExchangeShared { sends, receives } => {
                (sends.clone(), receives.clone())
            }
            _ => (Vec::new(), Vec::new()),
        }
    }

    /// Returns the properties of the call that must be equal on all ranks.
    pub(crate) fn signature(&self, call: Call) -> Signature {
        let signature = Signature::new(call);
        match self {
            Collective::AllReduce { region, dtype } => signature.bytes(region.bytes).dtype(*dtype),
            Collective::ReduceScatter { output, dtype, .. } => signature.bytes(output.bytes).dtype(*dtype),
            Collective::AllGather { input, .. } => signature.bytes(input.bytes),
            Collective::Broadcast { root, region } => signature.bytes(region.bytes).root(*root),
            _ => signature,
        }
    }
}

impl Collective<()> {
    /// Transfers of any kind with one rank of the group, for warm-up. The caller's own rank is ignored.
    pub const fn peer(rank: usize) -> Self {
        Collective::Send { to: rank, region: () }
    }

    /// An all-reduce of this dtype, for warm-up.
    pub const fn all_reduce(dtype: DType) -> Self {
        Collective::AllReduce { region: (), dtype }
    }

    /// A reduce-scatter of this dtype, for warm-up.
    pub const fn reduce_scatter(dtype: DType) -> Self {
        Collective::ReduceScatter { input: (), output: (), dtype }
    }

    /// An all-gather, for warm-up.
    pub const fn all_gather() -> Self {
        Collective::AllGather { input: (), output: () }
    }

    /// The peer of a send or receive; `None` for other collectives.
    pub const fn peer_rank(&self) -> Option<usize> {
        match self {
            Collective::Send { to: rank, .. } | Collective::Receive { from: rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// Returns every collective and every peer of a group of `world_size` ranks, for warm-up.
    pub fn everything(world_size: usize) -> Vec<Self> {
        let sums = [DType::F32, DType::Bf16, DType::F16];
        let sums = sums.into_iter().flat_map(|dtype| [Self::all_reduce(dtype), Self::reduce_scatter(dtype)]);
        sums.chain([Self::all_gather(), Collective::Broadcast { root: 0, region: () }])
            .chain((0..world_size).map(Self::peer))
            .collect()
    }
}
