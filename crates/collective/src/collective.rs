//! Collectives as values.

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
/// `R` is the form of the operands: a [`Region`] to run it, nothing in a list of the collectives that a run
/// uses ([`ProcessGroup::warm_up`](crate::ProcessGroup::warm_up)).
///
/// Sums are in f32, bf16 or f16, over ranks in the order of a balanced binary tree whose left subtree has the
/// largest power of two below the number of ranks; each node is rounded to the dtype. A backend that leaves
/// the order to a library says so. Lengths are in bytes and a multiple of the element's size (of 2 without a
/// dtype).
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
        /// The values.
        input: R,
        /// Shard `rank` of the sum, of which `input` has `world_size`; may be that shard of `input` itself.
        output: R,
        /// Type of the elements.
        dtype: DType,
    },
    /// Collects every rank's values on all ranks.
    AllGather {
        /// This rank's values; may be its shard of `output` itself.
        input: R,
        /// The values of all ranks, in their order, `world_size` times as long.
        output: R,
    },
    /// Copies the values of one rank to all ranks.
    Broadcast {
        /// The rank whose values are copied.
        root: usize,
        /// The values.
        region: R,
    },
    /// Sends values to one rank. May wait for the receive.
    Send {
        /// The rank, which receives into a region of the same length.
        to: usize,
        /// The values.
        region: R,
    },
    /// Receives values from one rank.
    Receive {
        /// The rank.
        from: usize,
        /// The values.
        region: R,
    },
    /// Runs several sends and receives as one call, so they cannot deadlock each other. Messages of one pair
    /// of ranks in one direction match in order; the other rank may also use a single [`Collective::Receive`]
    /// or [`Collective::Send`].
    Exchange {
        /// Peers, with the values for them.
        sends: Vec<(usize, R)>,
        /// Peers, with the regions into which their values are received.
        receives: Vec<(usize, R)>,
    },
    /// Blocks later work on the stream until all ranks have reached the barrier.
    Barrier,
    /// Sums regions to which the ranks have access ([`ProcessGroup::share`](crate::ProcessGroup::share)),
    /// even if the backend's own sums have another order. Ranks synchronise before the first sum and after
    /// the last.
    SumShared {
        /// The sums, which may use the same scratch.
        sums: Vec<SharedSum<R>>,
        /// The parts of all ranks, and the order of additions.
        tree: RankTree,
        /// The device has no other work meanwhile. Affects speed, never results.
        alone: bool,
    },
    /// An [`Collective::Exchange`] of parts of shared regions; each is received at the same offset from which
    /// it is sent.
    ExchangeShared {
        /// Peers, with the values for them.
        sends: Vec<(usize, R)>,
        /// Peers, with the regions into which their values are received.
        receives: Vec<(usize, R)>,
    },
}

impl<R> Collective<R> {
    /// The kind of its calls.
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

    /// Returns whether it is made in memory to which the ranks have access.
    pub fn is_shared(&self) -> bool {
        matches!(self, Collective::SumShared { .. } | Collective::ExchangeShared { .. })
    }

    /// Returns whether its messages are between pairs of ranks, numbered by peer.
    pub(crate) fn is_transfer(&self) -> bool {
        self.kind().is_point_to_point() && !self.is_shared()
    }

    /// Returns the same collective with operands of another form.
    pub(crate) fn map<'a, S>(&'a self, mut operand: impl FnMut(&'a R) -> S) -> Collective<S> {
        let Ok(mapped) = self.try_map(|own| Ok::<_, Infallible>(operand(own)));
        mapped
    }

    /// Returns the same collective with operands of another form.
    ///
    /// # Errors
    /// The first that `operand` returns.
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
    /// Returns the same transfer, with peers that `number` numbers.
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
    /// The messages that it sends to and receives from single peers.
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

    /// Returns the signature on which all ranks of the call must agree.
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
    /// Sends and receives, alone or in an exchange, with a rank of the group. The caller's own number is
    /// ignored.
    pub const fn peer(rank: usize) -> Self {
        Collective::Send { to: rank, region: () }
    }

    /// The sum of a type.
    pub const fn all_reduce(dtype: DType) -> Self {
        Collective::AllReduce { region: (), dtype }
    }

    /// The sum of a type in shards.
    pub const fn reduce_scatter(dtype: DType) -> Self {
        Collective::ReduceScatter { input: (), output: (), dtype }
    }

    /// The gather of all ranks' values.
    pub const fn all_gather() -> Self {
        Collective::AllGather { input: (), output: () }
    }

    /// The rank with which it communicates; `None` if with all.
    pub const fn peer_rank(&self) -> Option<usize> {
        match self {
            Collective::Send { to: rank, .. } | Collective::Receive { from: rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// Returns all collectives and peers of a group of `world_size` ranks.
    pub fn everything(world_size: usize) -> Vec<Self> {
        let sums = [DType::F32, DType::Bf16, DType::F16];
        let sums = sums.into_iter().flat_map(|dtype| [Self::all_reduce(dtype), Self::reduce_scatter(dtype)]);
        sums.chain([Self::all_gather(), Collective::Broadcast { root: 0, region: () }])
            .chain((0..world_size).map(Self::peer))
            .collect()
    }
}
