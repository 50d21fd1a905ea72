//! The counted transport: counts the bytes that one rank would move, without other ranks. Nothing is moved,
//! and each rank receives its own values, so that no decision may depend on them. Calls are logged if the
//! device logs calls.

use std::cell::RefCell;
use std::rc::Rc;

use device::{Backend, Device, Region, StreamKind};

use crate::backend::{GroupBackend, GroupCall};
use crate::call::{Call, CallKind, Channel};
use crate::caller::Caller;
use crate::collective::{Collective, Reach, check_rank};
use crate::control::{ControlChannel, Observer, Watch};
use crate::error::Result;
use crate::host::copy;
use crate::peer_access::{PeerAccess, PeerAccessOptions, SharedSum, SumKernels};
use crate::rank_tree::RankTree;
use crate::shards::ByteShards;
use crate::split::SplitGroup;

/// Control channel of a counted rank, which has no peers.
#[derive(Clone, Debug)]
pub(crate) struct CountedControl {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) calls: u64,
}

impl CountedControl {
    fn check_root(&mut self, kind: CallKind, root: usize) -> Result<()> {
        let call = Call { channel: Channel::Control, kind, sequence: self.calls };
        self.calls += 1;
        check_rank(Caller { rank: self.rank, call }, self.world_size, root)
    }
}

impl ControlChannel for CountedControl {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn broadcast(&mut self, root: usize, _message: &mut Vec<u8>) -> Result<()> {
        self.check_root(CallKind::Broadcast, root)
    }

    fn gather(&mut self, root: usize, message: &[u8]) -> Result<Option<Vec<Vec<u8>>>> {
        self.check_root(CallKind::Gather, root)?;
        Ok((self.rank == root).then(|| vec![message.to_vec(); self.world_size]))
    }

    fn all_gather(&mut self, message: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.calls += 1;
        Ok(vec![message.to_vec(); self.world_size])
    }

    fn barrier(&mut self) -> Result<()> {
        self.calls += 1;
        Ok(())
    }

    fn fail(&mut self, _reason: &str) {}

    /// Ignores the observer, because no call waits.
    fn observe(&mut self, _observer: Observer) {}

    fn watch(&self) -> Watch {
        Watch::new(|| None)
    }
}

/// Memory that the ranks would share.
#[derive(Debug)]
struct CountedWindow {
    /// First and last address of each shared region.
    ranges: Vec<(u64, u64)>,
    sums: Option<SumKernels>,
}

impl CountedWindow {
    fn range(region: &Region<'_>) -> (u64, u64) {
        let first = region.buffer.address() + region.offset as u64;
        (first, first + region.bytes as u64)
    }

    /// Returns whether ranks would sum in shared memory: the region is shared and a kernel exists.
    fn adds(&self, sum: &SharedSum<Region<'_>>, tree: &RankTree) -> bool {
        let (first, last) = Self::range(&sum.region);
        let is_shared = self.ranges.iter().any(|(begin, end)| *begin <= first && last <= *end);
        let kernel = self.sums.and_then(|sums| (sums.kernel)(sum.dtype, tree.tree()));
        is_shared && kernel.is_some()
    }
}

/// Backend of a counted rank, which has no peers.
#[derive(Debug)]
pub(crate) struct CountedBackend {
    rank: usize,
    ranks: usize,
    /// Memory that the ranks would share, if any.
    window: Option<CountedWindow>,
    /// Device whose log records the calls; shared by all groups split from one.
    device: Rc<RefCell<Option<Device>>>,
}

impl CountedBackend {
    pub(crate) fn new(rank: usize, ranks: usize) -> Self {
        CountedBackend { rank, ranks, window: None, device: Rc::default() }
    }
}

/// Copies a rank's own values to the result. Does nothing on a GPU, where only allocations are counted.
fn own_values(caller: Caller, from: Region<'_>, to: Region<'_>) -> Result<()> {
    match from.buffer.backend() {
        Backend::Cuda => Ok(()),
        _ => copy(caller, from, to),
    }
}

impl GroupBackend for CountedBackend {
    fn reach(&self) -> Reach {
        Reach::Any
    }

    fn enqueue(&mut self, call: &GroupCall<'_>) -> Result<()> {
        let caller = call.caller;
        match call.collective {
            Collective::ReduceScatter { input, output, .. } => {
                let shards = ByteShards::equal(output.bytes, self.ranks);
                own_values(caller, input.part(shards.range(self.rank).start, output.bytes), *output)
            }
            Collective::AllGather { input, output } => {
                let shards = ByteShards::equal(input.bytes, self.ranks);
                (0..self.ranks).try_for_each(|rank| {
                    own_values(caller, *input, output.part(shards.range(rank).start, input.bytes))
                })
            }
            Collective::Exchange { sends, receives } => {
                let pairs = sends.iter().zip(receives).filter(|((_, from), (_, to))| from.bytes == to.bytes);
                pairs.into_iter().try_for_each(|((_, from), (_, to))| own_values(caller, *from, *to))
            }
            _ => Ok(()),
        }
    }

    fn supports(&self, collective: &Collective<Region<'_>>) -> bool {
        match (collective, &self.window) {
            (Collective::SumShared { sums, tree, .. }, Some(window)) => {
                sums.iter().all(|sum| window.adds(sum, tree))
            }
            (collective, window) => !collective.is_shared() || window.is_some(),
        }
    }

    fn synchronize(&mut self, _caller: Caller, _stream: StreamKind) -> Result<()> {
        Ok(())
    }

    fn split(&mut self, _: Caller, _: &[Vec<usize>], own: &SplitGroup) -> Result<Box<dyn GroupBackend>> {
        let device = Rc::clone(&self.device);
        Ok(Box::new(CountedBackend { device, ..CountedBackend::new(own.rank, own.members.len()) }))
    }

    fn connects(&self) -> bool {
        true
    }

    fn share(&mut self, _: Caller, regions: &[Region<'_>], options: PeerAccessOptions) -> Result<PeerAccess> {
        let ranges = regions.iter().map(CountedWindow::range).collect();
        self.window = Some(CountedWindow { ranges, sums: options.sums });
        Ok(PeerAccess::Granted)
    }

    fn device(&self) -> Option<Device> {
        self.device.borrow().clone()
    }

    fn log_on(&mut self, device: &Device) {
        *self.device.borrow_mut() = Some(device.clone());
    }
}
