//! The counted transport: one rank of several, without the others. Nothing is moved, traffic is counted as
//! the host transports count it, and each rank receives its own values. No decision may depend on them. A
//! device that logs its calls has the plane's calls in its log.

use std::cell::RefCell;
use std::rc::Rc;

use device::{Backend, DType, Device, LoggedCall, LoggedCommunication, Region, StreamKind};

use crate::call::{Call, Operation, Plane};
use crate::control::{ControlPlane, Observer, Watch};
use crate::data::DataPlane;
use crate::error::Result;
use crate::group::SplitGroup;
use crate::host::copy;
use crate::operands::{Caller, Membership, Operands, PeerRegion, Reach, check_rank};
use crate::peer_access::{PeerAccess, PeerAccessOptions, SharedSum, SumKernels};
use crate::shards::ByteShards;
use crate::tally::Tally;
use crate::traffic::{Meter, Traffic};

/// Name in logs of exchanges that copy engines make in each other's memory.
pub const PEER_COPIES: &str = "peer copies";
/// Name in logs of sums that kernels make in each other's memory. Their bytes are those of the rank's parts,
/// and once more where every rank gets the whole sum.
pub const PEER_SUMS: &str = "peer sums";

/// Memory to which the ranks would have access.
#[derive(Debug)]
struct CountedWindow {
    /// First and last address of each region.
    ranges: Vec<(u64, u64)>,
    sums: Option<SumKernels>,
}

impl CountedWindow {
    fn range(region: &Region<'_>) -> (u64, u64) {
        let first = region.buffer.address() + region.offset as u64;
        (first, first + region.bytes as u64)
    }

    /// Returns whether ranks would sum there.
    fn adds(&self, sum: &SharedSum<'_>) -> bool {
        let (first, last) = Self::range(&sum.region);
        let is_shared = self.ranges.iter().any(|(begin, end)| *begin <= first && last <= *end);
        let kernel = self.sums.and_then(|sums| (sums.kernel)(sum.dtype, sum.tree.tree()));
        is_shared && kernel.is_some()
    }
}

/// The control plane of one rank without the others.
#[derive(Clone, Debug)]
pub(crate) struct CountedControl {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) calls: u64,
}

impl CountedControl {
    fn check_root(&mut self, operation: Operation, root: usize) -> Result<()> {
        let call = Call { plane: Plane::Control, operation, sequence: self.calls };
        self.calls += 1;
        check_rank(Caller { rank: self.rank, call }, self.world_size, root)
    }
}

impl ControlPlane for CountedControl {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn broadcast(&mut self, root: usize, _message: &mut Vec<u8>) -> Result<()> {
        self.check_root(Operation::Broadcast, root)
    }

    fn gather(&mut self, root: usize, message: &[u8]) -> Result<Option<Vec<Vec<u8>>>> {
        self.check_root(Operation::Gather, root)?;
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

    /// Ignores the observer: a plan has no call to observe.
    fn observe(&mut self, _observer: Observer) {}

    fn watch(&self) -> Watch {
        Watch::new(|| None)
    }
}

/// The data plane of one rank without the others.
#[derive(Debug)]
pub(crate) struct CountedData {
    rank: usize,
    /// World numbers of the ranks, by number in the group.
    members: Vec<usize>,
    calls: u64,
    tally: Tally,
    /// Memory to which the ranks have access, if they do.
    window: Option<CountedWindow>,
    /// The device whose log has the calls; all planes split from one have the same.
    device: Rc<RefCell<Option<Device>>>,
}

impl CountedData {
    pub(crate) fn new(rank: usize, members: Vec<usize>, meter: Meter) -> Self {
        let tally = Tally::new(rank, members.len(), meter);
        CountedData { rank, members, calls: 0, tally, window: None, device: Rc::default() }
    }

    /// Adds a collective with an operand of `bytes` bytes to the device's log.
    fn log(&self, operation: Operation, bytes: usize, stream: StreamKind) {
        self.log_messages(operation.name(), bytes as u64, (&[], &[]), stream);
    }

    fn log_messages(
        &self,
        operation: &'static str,
        bytes: u64,
        (sends, receives): (&[PeerRegion<'_>], &[PeerRegion<'_>]),
        stream: StreamKind,
    ) {
        let Some(device) = &*self.device.borrow() else { return };
        device.log(|| {
            let of = |peers: &[PeerRegion<'_>]| -> Vec<(usize, u64)> {
                peers.iter().map(|(peer, region)| (self.members[*peer], region.bytes as u64)).collect()
            };
            let (sends, receives) = (of(sends), of(receives));
            let mut ranks = self.members.clone();
            if !(sends.is_empty() && receives.is_empty()) {
                let own = self.members[self.rank];
                ranks.retain(|rank| {
                    *rank == own || sends.iter().chain(&receives).any(|(peer, _)| peer == rank)
                });
            }
            let total = |peers: &[(usize, u64)]| peers.iter().map(|(_, bytes)| *bytes).sum::<u64>();
            LoggedCall::Communication(LoggedCommunication {
                operation,
                bytes: bytes.max(total(&sends)).max(total(&receives)),
                ranks,
                sends,
                receives,
                stream,
            })
        });
    }

    fn next(&mut self, operation: Operation) -> Caller {
        let call = Call { plane: Plane::Data, operation, sequence: self.calls };
        self.calls += 1;
        Caller { rank: self.members[self.rank], call }
    }

    fn check(&self, caller: Caller, operands: &Operands<'_>) -> Result<()> {
        let group = Membership { rank: self.rank, size: self.members.len(), reach: Reach::Any };
        operands.check(caller, group)
    }

    fn point_to_point(
        &mut self,
        operation: Operation,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<()> {
        let call = Call { plane: Plane::Data, operation, sequence: 0 };
        let caller = Caller { rank: self.members[self.rank], call };
        self.check(caller, &Operands::PointToPoint { sends, receives })?;
        self.tally.point_to_point(operation, sends, receives);
        self.log_messages(operation.name(), 0, (sends, receives), stream);
        Ok(())
    }
}

/// Copies a rank's own values to the result. On a GPU it does nothing: there the transport only counts what
/// is allocated.
fn own_values(caller: Caller, from: Region<'_>, to: Region<'_>) -> Result<()> {
    match from.buffer.backend() {
        Backend::Cuda => Ok(()),
        _ => copy(caller, from, to),
    }
}

impl DataPlane for CountedData {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn all_reduce(&mut self, region: Region<'_>, dtype: DType, stream: StreamKind) -> Result<()> {
        let caller = self.next(Operation::AllReduce);
        self.check(caller, &Operands::AllReduce { region, dtype })?;
        self.tally.all_reduce(region.bytes, dtype);
        self.log(Operation::AllReduce, region.bytes, stream);
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        input: Region<'_>,
        output: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()> {
        let caller = self.next(Operation::ReduceScatter);
        self.check(caller, &Operands::ReduceScatter { input, output, dtype })?;
        let shards = ByteShards::equal(output.bytes, self.members.len());
        self.tally.reduce_scatter(output.bytes);
        self.log(Operation::ReduceScatter, input.bytes, stream);
        own_values(caller, input.part(shards.range(self.rank).start, output.bytes), output)
    }

    fn all_gather(&mut self, input: Region<'_>, output: Region<'_>, stream: StreamKind) -> Result<()> {
        let caller = self.next(Operation::AllGather);
        self.check(caller, &Operands::AllGather { input, output })?;
        let shards = ByteShards::equal(input.bytes, self.members.len());
        self.tally.all_gather(input.bytes);
        self.log(Operation::AllGather, output.bytes, stream);
        (0..self.members.len()).try_for_each(|rank| {
            own_values(caller, input, output.part(shards.range(rank).start, input.bytes))
        })
    }

    fn broadcast(&mut self, root: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        let caller = self.next(Operation::Broadcast);
        self.check(caller, &Operands::Broadcast { root, region })?;
        self.tally.broadcast(root, region.bytes);
        self.log(Operation::Broadcast, region.bytes, stream);
        Ok(())
    }

    fn send(&mut self, to: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.point_to_point(Operation::Send, &[(to, region)], &[], stream)
    }

    fn receive(&mut self, from: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.point_to_point(Operation::Receive, &[], &[(from, region)], stream)
    }

    fn exchange(
        &mut self,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<()> {
        self.point_to_point(Operation::Exchange, sends, receives, stream)?;
        let call = Call { plane: Plane::Data, operation: Operation::Exchange, sequence: 0 };
        let caller = Caller { rank: self.members[self.rank], call };
        let mut pairs = sends.iter().zip(receives).filter(|((_, from), (_, to))| from.bytes == to.bytes);
        pairs.try_for_each(|((_, from), (_, to))| own_values(caller, *from, *to))
    }

    fn barrier(&mut self, stream: StreamKind) -> Result<()> {
        self.next(Operation::Barrier);
        self.tally.nothing(Operation::Barrier);
        self.log(Operation::Barrier, 0, stream);
        Ok(())
    }

    fn synchronize(&mut self, _stream: StreamKind) -> Result<()> {
        Ok(())
    }

    fn split(&mut self, groups: &[Vec<usize>]) -> Result<Box<dyn DataPlane>> {
        let caller = self.next(Operation::Split);
        self.check(caller, &Operands::Split { groups })?;
        self.tally.nothing(Operation::Split);
        let group = SplitGroup::of(groups, self.rank);
        let members = group.members.iter().map(|member| self.members[*member]).collect();
        let mut part = CountedData::new(group.rank, members, self.tally.meter().part());
        part.device = Rc::clone(&self.device);
        Ok(Box::new(part))
    }

    fn share(&mut self, regions: &[Region<'_>], options: PeerAccessOptions) -> Result<PeerAccess> {
        let ranges = regions.iter().map(CountedWindow::range).collect();
        self.window = Some(CountedWindow { ranges, sums: options.sums });
        Ok(PeerAccess::Granted)
    }

    fn sum_shared(&mut self, sums: &[SharedSum<'_>], _alone: bool, stream: StreamKind) -> Result<bool> {
        if !self.window.as_ref().is_some_and(|window| sums.iter().all(|sum| window.adds(sum))) {
            return Ok(false);
        }
        let everywhere = sums.iter().any(|sum| sum.everywhere);
        let caller = self.next(if everywhere { Operation::AllReduce } else { Operation::ReduceScatter });
        self.check(caller, &Operands::SharedSums(sums))?;
        let mut moved = 0;
        for sum in sums {
            self.tally.sum_shared(sum.region.bytes / self.members.len(), sum.tree, sum.everywhere);
            moved += sum.region.bytes * (sum.tree.parts_of(self.rank).len() + usize::from(sum.everywhere));
        }
        self.log_messages(PEER_SUMS, moved as u64, (&[], &[]), stream);
        Ok(true)
    }

    fn exchange_shared(
        &mut self,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<bool> {
        if self.window.is_some() {
            let caller = self.next(Operation::Exchange);
            self.check(caller, &Operands::SharedExchange { sends, receives })?;
            self.tally.point_to_point(Operation::Exchange, sends, receives);
            self.log_messages(PEER_COPIES, 0, (sends, receives), stream);
        }
        Ok(self.window.is_some())
    }

    fn capturing_device(&self) -> Option<Device> {
        self.device.borrow().clone()
    }

    fn log_on(&mut self, device: &Device) {
        *self.device.borrow_mut() = Some(device.clone());
    }

    /// Ignores the observer: a plan has no call to observe.
    fn observe(&mut self, _observer: Observer) {}

    fn traffic(&self) -> Traffic {
        self.tally.meter().own()
    }

    fn rank_traffic(&self) -> Traffic {
        self.tally.meter().rank()
    }
}
