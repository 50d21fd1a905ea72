//! The data plane: regions of device memory between ranks.

use device::{DType, Function, Region, StreamKind};

use crate::control::Observer;
use crate::error::Result;
use crate::traffic::Traffic;

/// Tuning of sums between ranks that reach each other's memory. Affects speed, never results.
#[derive(Clone, Copy, Debug)]
pub struct PeerOptions {
    /// Blocks of the kernel that reads the others' memory: how many multiprocessors it takes at most.
    pub blocks: u32,
    /// How values get from rank to rank beside other work.
    pub way: Way,
    /// The kernels that add; without them, ranks do not share memory.
    pub sums: Option<SumKernels>,
}

impl Default for PeerOptions {
    fn default() -> Self {
        PeerOptions { blocks: 16, way: Way::Kernel, sums: None }
    }
}

/// Kernels that add several ranks' values as a balanced binary tree in rank order, each node rounded to the type. Their
/// parameters: each rank's values, where the sum goes, the number of vectors of 16 bytes (u64), and 1 to write the sum over
/// every rank's values or 0 (u32).
#[derive(Clone, Copy, Debug)]
pub struct SumKernels {
    /// The kernel for values of a type from so many ranks; `None` if there is none.
    pub kernel: fn(DType, usize) -> Option<Function>,
    /// Blocks of a launch over so many vectors from so many ranks, at most the third number.
    pub blocks: fn(usize, usize, u32) -> u32,
    /// Threads of a block.
    pub threads: u32,
}

/// How values get from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One kernel reads what all have, adds, and writes the sum to all.
    Kernel,
    /// The kernel reads and adds, and copy engines move the sum.
    Copies,
    /// Copy engines move everything, and a kernel adds what they brought.
    Engines,
}

impl Way {
    /// Its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Kernel => "kernel",
            Way::Copies => "copies",
            Way::Engines => "engines",
        }
    }
}

/// A sum over ranks of what lies at one part of a shared region, the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct SharedSum<'a> {
    /// The part.
    pub region: Region<'a>,
    /// As long, on the same device, and not shared: it may be overwritten.
    pub scratch: Region<'a>,
    /// The elements' type.
    pub dtype: DType,
    /// Whether every rank gets all of the sum, or each its own of the equal shards while the rest stays.
    pub everywhere: bool,
}

/// Whether ranks reach each other's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// They do.
    Direct,
    /// They do not, and why.
    Apart(String),
}

/// Device regions between the ranks of a group.
///
/// Calls are enqueued on a stream: a transport may return before they are done, and a region must not be
/// touched elsewhere until that stream's work has been waited for. Host transports are done on return.
///
/// Any two ranks make their calls in which both take part in the same order, whatever the streams.
/// Sums are in f32, bf16 or f16: over ranks in the order of a balanced binary tree whose left subtree
/// has the largest power of two of ranks below the whole, each node rounded to the dtype. A transport that
/// leaves the order to a library says so.
///
/// Lengths are in bytes and a multiple of the element's size (of 2 where no dtype is given).
pub trait DataPlane {
    /// This rank's number in the group, from 0.
    fn rank(&self) -> usize;

    /// How many ranks the group has.
    fn world_size(&self) -> usize;

    /// Replaces `region` on every rank by the sum over ranks.
    fn all_reduce(&mut self, region: Region<'_>, dtype: DType, stream: StreamKind) -> Result<()>;

    /// Shard `rank` of the sum of `input` over ranks into `output`; `input` is `world_size` times as long.
    /// `output` may be that shard of `input` itself.
    fn reduce_scatter(
        &mut self,
        input: Region<'_>,
        output: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()>;

    /// Every rank's `input`, in rank order, into `output`, which is `world_size` times as long.
    /// `input` may be this rank's part of `output` itself.
    fn all_gather(&mut self, input: Region<'_>, output: Region<'_>, stream: StreamKind) -> Result<()>;

    /// Replaces `region` on every rank by that of `root`.
    fn broadcast(&mut self, root: usize, region: Region<'_>, stream: StreamKind) -> Result<()>;

    /// `region` to rank `to`, which receives it with a region of the same length. May wait for that.
    fn send(&mut self, to: usize, region: Region<'_>, stream: StreamKind) -> Result<()>;

    /// `region` from rank `from`.
    fn receive(&mut self, from: usize, region: Region<'_>, stream: StreamKind) -> Result<()>;

    /// Several sends and receives (peer, region) as one, which cannot deadlock each other. What one pair
    /// of ranks exchanges in one direction matches in the order of the slices, and may be received by
    /// [`DataPlane::receive`] or sent by [`DataPlane::send`].
    fn exchange(
        &mut self,
        sends: &[(usize, Region<'_>)],
        receives: &[(usize, Region<'_>)],
        stream: StreamKind,
    ) -> Result<()>;

    /// Work on `stream` after it begins when all ranks have come to it.
    fn barrier(&mut self, stream: StreamKind) -> Result<()>;

    /// Waits on the host until this plane's work on `stream` is done, a peer fails or the deadline passes.
    fn synchronize(&mut self, stream: StreamKind) -> Result<()>;

    /// Divides the ranks of this plane further, as [`Communicator::divide`](crate::Communicator::divide) does
    /// those of the world. Groups are lists of this plane's own numbers.
    fn split(&mut self, groups: &[Vec<usize>]) -> Result<Box<dyn DataPlane>>;

    /// Makes the connections that a transport would otherwise make in the first call that needs them, and
    /// waits until they stand; all ranks of the group call it with the same uses, and peers name each other.
    /// Whatever is used and was not named works all the same, but its first call waits on the host for the
    /// other ranks to come to it. Transports over host memory have nothing to make.
    fn warm_up(&mut self, _uses: &[Use]) -> Result<()> {
        Ok(())
    }

    /// Lets the ranks of the group reach these regions of each other's memory from now on, where their
    /// devices can; all ranks call it, with as many regions of the same lengths, when no work is under way.
    /// The regions stay allocated until the plane is dropped; it allocates nothing beside them. A later call
    /// takes the place of an earlier one. All ranks get the same answer.
    fn share(&mut self, _regions: &[Region<'_>], _options: PeerOptions) -> Result<Sharing> {
        Ok(Sharing::Apart("this transport has no way to".to_owned()))
    }

    /// Takes sums in the documented order, whatever the transport's own is: ranks meet before the first and
    /// after the last. They may have their scratch in common. `alone` says that the device has nothing else
    /// to do meanwhile: no bit depends on it. False, on all ranks, where that cannot be done for all of them
    /// and nothing was.
    fn sum_shared(&mut self, _sums: &[SharedSum<'_>], _alone: bool, _stream: StreamKind) -> Result<bool> {
        Ok(false)
    }

    /// [`DataPlane::exchange`] of parts of shared regions each of which is received in the same place as it
    /// is sent from. False, on all ranks, where nothing is shared and nothing was done.
    fn exchange_shared(
        &mut self,
        _sends: &[(usize, Region<'_>)],
        _receives: &[(usize, Region<'_>)],
        _stream: StreamKind,
    ) -> Result<bool> {
        Ok(false)
    }

    /// From now on tells `observer` of every call that begins, also in groups that are split off later.
    fn observe(&mut self, observer: Observer);

    /// What this plane has moved so far.
    fn traffic(&self) -> Traffic;

    /// What this rank has moved so far over all planes that were divided from the same one as this, itself
    /// included.
    fn rank_traffic(&self) -> Traffic;
}

/// Something that a run does over a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// [`DataPlane::all_reduce`] of a type.
    AllReduce(DType),
    /// [`DataPlane::reduce_scatter`] of a type.
    ReduceScatter(DType),
    /// [`DataPlane::all_gather`].
    AllGather,
    /// [`DataPlane::broadcast`].
    Broadcast,
    /// Sends and receives, alone or in an exchange, with this rank of the group; the caller's own number says
    /// nothing.
    Peer(usize),
}

impl Use {
    /// Everything that can be done in a group of so many ranks.
    pub fn everything(world_size: usize) -> Vec<Use> {
        let sums = [DType::F32, DType::Bf16, DType::F16];
        let sums = sums.into_iter().flat_map(|dtype| [Use::AllReduce(dtype), Use::ReduceScatter(dtype)]);
        sums.chain([Use::AllGather, Use::Broadcast]).chain((0..world_size).map(Use::Peer)).collect()
    }
}
