//! The data plane: regions of device memory moved between ranks.

use device::{DType, Device, Region, StreamKind};

use crate::control::Observer;
use crate::error::Result;
use crate::peer_access::{PeerAccess, PeerAccessOptions, SharedSum};
use crate::traffic::Traffic;

/// Moves and sums device regions among the ranks of a group.
///
/// Calls are enqueued on a stream. A transport may return before they are done; other streams must not touch
/// a region before they have waited for that stream's work. Host transports are done on return.
///
/// Any two ranks make the calls in which both take part in the same order, on any streams. Sums are in f32,
/// bf16 or f16, over ranks in the order of a balanced binary tree whose left subtree has the largest power of
/// two below the number of ranks; each node is rounded to the dtype. A transport that leaves the order to a
/// library says so.
///
/// Lengths are in bytes and a multiple of the element's size (of 2 without a dtype).
pub trait DataPlane {
    /// This rank's number in the group, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn world_size(&self) -> usize;

    /// Replaces `region` on every rank by the sum over ranks.
    fn all_reduce(&mut self, region: Region<'_>, dtype: DType, stream: StreamKind) -> Result<()>;

    /// Writes shard `rank` of the sum of `input` over ranks to `output`; `input` is `world_size` times as
    /// long. `output` may be that shard of `input` itself.
    fn reduce_scatter(
        &mut self,
        input: Region<'_>,
        output: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()>;

    /// Writes every rank's `input`, in rank order, to `output`, which is `world_size` times as long.
    /// `input` may be this rank's shard of `output` itself.
    fn all_gather(&mut self, input: Region<'_>, output: Region<'_>, stream: StreamKind) -> Result<()>;

    /// Replaces `region` on every rank by the one of `root`.
    fn broadcast(&mut self, root: usize, region: Region<'_>, stream: StreamKind) -> Result<()>;

    /// Sends `region` to rank `to`, which receives into a region of the same length. May wait for the
    /// receive.
    fn send(&mut self, to: usize, region: Region<'_>, stream: StreamKind) -> Result<()>;

    /// Receives `region` from rank `from`.
    fn receive(&mut self, from: usize, region: Region<'_>, stream: StreamKind) -> Result<()>;

    /// Runs several sends and receives (peer, region) as one call, so they cannot deadlock each other.
    /// Messages of one pair of ranks in one direction match in the order of the slices; the other rank may
    /// also use a single [`DataPlane::receive`] or [`DataPlane::send`].
    fn exchange(
        &mut self,
        sends: &[(usize, Region<'_>)],
        receives: &[(usize, Region<'_>)],
        stream: StreamKind,
    ) -> Result<()>;

    /// Blocks later work on `stream` until all ranks have reached the barrier.
    fn barrier(&mut self, stream: StreamKind) -> Result<()>;

    /// Waits on the host until this plane's work on `stream` is done, a peer fails, or the deadline passes.
    fn synchronize(&mut self, stream: StreamKind) -> Result<()>;

    /// Splits the ranks of this plane into groups, as [`Communicator::divide`](crate::Communicator::divide)
    /// does for the world. Groups are lists of this plane's own rank numbers.
    fn split(&mut self, groups: &[Vec<usize>]) -> Result<Box<dyn DataPlane>>;

    /// Makes the connections that a transport would otherwise make in the first call that needs them, and
    /// waits for them. All ranks of the group call it with the same uses, and peers name each other. Other
    /// calls work too, but wait on the host for the other ranks the first time. Transports over host memory
    /// have nothing to connect.
    fn warm_up(&mut self, _uses: &[CollectiveUse]) -> Result<()> {
        Ok(())
    }

    /// Gives the ranks of the group access to these regions of each other's memory, if their devices can.
    ///
    /// All ranks call it with the same number of regions of the same lengths, while no work is running, and
    /// all get the same result. The regions must stay allocated until the plane is dropped. A later call
    /// replaces an earlier one.
    fn share(&mut self, _regions: &[Region<'_>], _options: PeerAccessOptions) -> Result<PeerAccess> {
        Ok(PeerAccess::Denied("this transport does not support it".to_owned()))
    }

    /// Sums shared regions over ranks in the documented order, even if the transport's own order differs.
    ///
    /// Ranks synchronise before the first sum and after the last. Sums may use the same scratch. `alone` says
    /// that the device has no other work meanwhile; it affects speed, never results. Returns false, on all
    /// ranks, if one of the sums is impossible; then none was done.
    fn sum_shared(&mut self, _sums: &[SharedSum<'_>], _alone: bool, _stream: StreamKind) -> Result<bool> {
        Ok(false)
    }

    /// Runs a [`DataPlane::exchange`] of parts of shared regions; each is received at the same offset from
    /// which it is sent. Returns false, on all ranks, if nothing is shared; then nothing was done.
    fn exchange_shared(
        &mut self,
        _sends: &[(usize, Region<'_>)],
        _receives: &[(usize, Region<'_>)],
        _stream: StreamKind,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Gives a plane that only counts the device in whose log its calls belong. Other planes ignore it, since
    /// their own device has their work.
    fn log_on(&mut self, _device: &Device) {}

    /// The device that captures work between calls of this plane, if there is one.
    fn capturing_device(&self) -> Option<Device> {
        None
    }

    /// Registers `observer` for every call that begins from now on, also in groups split off later.
    fn observe(&mut self, observer: Observer);

    /// Traffic of this plane so far.
    fn traffic(&self) -> Traffic;

    /// Traffic of this rank so far, over this plane and all planes split from the same one.
    fn rank_traffic(&self) -> Traffic;
}

/// A collective or a peer that a run uses on a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveUse {
    /// [`DataPlane::all_reduce`] of a type.
    AllReduce(DType),
    /// [`DataPlane::reduce_scatter`] of a type.
    ReduceScatter(DType),
    /// [`DataPlane::all_gather`].
    AllGather,
    /// [`DataPlane::broadcast`].
    Broadcast,
    /// Sends and receives, alone or in an exchange, with this rank of the group. The caller's own number is
    /// ignored.
    Peer(usize),
}

impl CollectiveUse {
    /// Returns all collectives and peers of a group of `world_size` ranks.
    pub fn everything(world_size: usize) -> Vec<CollectiveUse> {
        let sums = [DType::F32, DType::Bf16, DType::F16];
        let sums = sums
            .into_iter()
            .flat_map(|dtype| [CollectiveUse::AllReduce(dtype), CollectiveUse::ReduceScatter(dtype)]);
        sums.chain([CollectiveUse::AllGather, CollectiveUse::Broadcast])
            .chain((0..world_size).map(CollectiveUse::Peer))
            .collect()
    }
}
