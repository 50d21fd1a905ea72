//! The data plane of a group of GPUs.

mod direct;

use std::rc::Rc;

use device::{Backend, Buffer, DType, Device, Region, StreamKind};

use crate::call::{Call, Operation, Plane};
use crate::control::Observer;
use crate::data::{DataPlane, PeerOptions, SharedSum, Sharing, Use};
use crate::error::{CollectiveError, Result};
use crate::host::{
    Group, Operand, check_gather, check_groups, check_point_to_point, check_regions, check_root, check_sum,
    my_group,
};
use crate::nccl::NAME;
use crate::nccl::raw::{self, Comm, Order, Queue, Work};
use crate::nccl::shared::Shared;
use crate::nccl::window::Gpus;
use crate::peers::Window;
use crate::tally::Tally;
use crate::traffic::{Meter, Traffic};

/// Bytes of what ranks send each other when they first meet.
const MEETING_BYTES: usize = 4;
/// Where in the first half of the scratch buffer that arrives; what is sent, and barriers, lie before.
const MEETINGS: usize = 512;
/// The size of a small operand, for NCCL's ways with those.
const SMALL_BYTES: usize = 1 << 10;

/// [`DataPlane`] over a communicator of its own.
pub(super) struct NcclPlane {
    shared: Rc<Shared>,
    device: Device,
    /// The communicator's place among the rank's; a rank alone has none.
    place: Option<usize>,
    rank: usize,
    /// Numbers in the world, by number in the group.
    members: Vec<usize>,
    /// The same without this rank.
    others: Rc<[usize]>,
    collectives: u64,
    /// Messages sent to and received from each peer.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Peers with which there are connections both ways.
    met: Vec<bool>,
    /// Of all planes of the rank: what is in it does not matter.
    scratch: Rc<Buffer>,
    /// The memory that the group's ranks reach directly.
    window: Option<Window<Gpus>>,
    tally: Tally,
    observer: Observer,
}

impl NcclPlane {
    pub(super) fn new(
        shared: Rc<Shared>,
        device: Device,
        place: Option<usize>,
        rank: usize,
        members: Vec<usize>,
        scratch: Rc<Buffer>,
        meter: Meter,
    ) -> Self {
        let world_size = members.len();
        let others = members.iter().copied().filter(|member| *member != members[rank]).collect();
        NcclPlane {
            shared,
            device,
            place,
            rank,
            members,
            others,
            collectives: 0,
            sent: vec![0; world_size],
            received: vec![0; world_size],
            met: vec![false; world_size],
            scratch,
            window: None,
            tally: Tally::new(rank, world_size, meter),
            observer: Observer::default(),
        }
    }

    fn next(&mut self, operation: Operation) -> Operand {
        let call = Call { plane: Plane::Data, operation, sequence: self.collectives };
        self.collectives += 1;
        self.begin(call)
    }

    fn begin(&self, call: Call) -> Operand {
        self.observer.begins(call);
        self.shared.begins(call, &self.others);
        Operand { rank: self.shared.rank, call }
    }

    /// Makes these one call, and waits until all of it is enqueued.
    fn enqueue(&self, call: Call, works: &[Work<'_>], stream: StreamKind) -> Result<()> {
        let Some(place) = self.place else {
            self.shared.alive(call)?;
            return works.iter().try_for_each(|work| self.alone(call, work, stream));
        };
        let comm = self.shared.comm(place, call)?;
        if works.is_empty() {
            return Ok(());
        }
        let refused = CollectiveError::device(self.shared.rank, call);
        let queue = Queue::of(&self.device, stream).map_err(refused)?;
        let orders: raw::Result<Vec<Order>> = works.iter().map(Order::of).collect();
        let orders = orders.map_err(|fault| self.shared.broken(fault, call))?;
        let span = self.device.span(stream, "nccl", call.operation.name());
        self.shared.make(comm, call, move || comm.enqueue(&orders, queue))?;
        span.end().map_err(CollectiveError::device(self.shared.rank, call))
    }

    /// What a call comes to in a group of one: its operand is where it belongs, or is copied there.
    fn alone(&self, call: Call, work: &Work<'_>, stream: StreamKind) -> Result<()> {
        match work {
            Work::ReduceScatter { input, output, .. } | Work::AllGather { input, output }
                if input.buffer.address() + input.offset as u64
                    != output.buffer.address() + output.offset as u64 =>
            {
                let copied = self.device.copy_on(*input, *output, stream);
                copied.map_err(CollectiveError::device(self.shared.rank, call))
            }
            _ => Ok(()),
        }
    }

    /// A call of all ranks, which has nothing to do where nothing is moved.
    fn collective(&self, at: Operand, bytes: usize, work: Work<'_>, stream: StreamKind) -> Result<()> {
        self.enqueue(at.call, if bytes == 0 { &[] } else { std::slice::from_ref(&work) }, stream)
    }

    /// Makes connections with peers that are met for the first time. NCCL makes those of one call together,
    /// and where two ranks meet that want different ones of each other, it fails: so all are made both ways,
    /// by an exchange.
    fn meet(&mut self, call: Call, peers: impl Iterator<Item = usize>, stream: StreamKind) -> Result<()> {
        let mut strangers: Vec<usize> = peers.filter(|peer| !self.met[*peer]).collect();
        strangers.sort_unstable();
        strangers.dedup();
        let scratch = Rc::clone(&self.scratch);
        let slots = (scratch.bytes() / 2 - MEETINGS) / MEETING_BYTES;
        let works: Vec<Work<'_>> = strangers
            .iter()
            .flat_map(|peer| {
                let slot = MEETINGS + peer % slots * MEETING_BYTES;
                let receive = Work::Receive { from: *peer, region: scratch.region(slot, MEETING_BYTES) };
                [Work::Send { to: *peer, region: scratch.region(0, MEETING_BYTES) }, receive]
            })
            .collect();
        if works.is_empty() {
            return Ok(());
        }
        self.enqueue(call, &works, stream)?;
        strangers.into_iter().for_each(|peer| self.met[peer] = true);
        Ok(())
    }

    fn point_to_point(
        &mut self,
        operation: Operation,
        sends: &[(usize, Region<'_>)],
        receives: &[(usize, Region<'_>)],
        stream: StreamKind,
    ) -> Result<()> {
        let first = match (sends.first(), receives.first()) {
            (Some((to, _)), _) => self.sent.get(*to),
            (None, Some((from, _))) => self.received.get(*from),
            (None, None) => None,
        };
        let call = Call { plane: Plane::Data, operation, sequence: first.copied().unwrap_or(0) };
        let at = self.begin(call);
        check_point_to_point(at, self.rank, self.members.len(), sends, receives)?;
        sends.iter().chain(receives).try_for_each(|(_, region)| check_on_gpu(at, &[*region]))?;
        sends.iter().for_each(|(to, _)| self.sent[*to] += 1);
        receives.iter().for_each(|(from, _)| self.received[*from] += 1);
        let sends_of = sends.iter().map(|(to, region)| Work::Send { to: *to, region: *region });
        let receives_of =
            receives.iter().map(|(from, region)| Work::Receive { from: *from, region: *region });
        let moves = sends_of.chain(receives_of);
        let works: Vec<Work<'_>> =
            moves.filter(|work| work.peer().is_some_and(|(_, bytes)| bytes > 0)).collect();
        let peers: Vec<usize> = works.iter().filter_map(|work| work.peer().map(|(peer, _)| peer)).collect();
        if let [first, rest @ ..] = &*peers
            && rest.iter().all(|peer| peer == first)
        {
            self.shared.begins(call, &[self.members[*first]].into());
        }
        self.meet(call, peers.into_iter(), stream)?;
        self.enqueue(call, &works, stream)?;
        self.tally.point_to_point(operation, sends, receives);
        Ok(())
    }

    /// Compares the groups of a split with those that the other ranks gave, by a number that stands for them.
    fn same_groups(&mut self, at: Operand, groups: &[Vec<usize>]) -> Result<()> {
        let mine = digest(groups);
        let all = self.gather_bytes(at, &mine)?;
        let other = all.iter().position(|theirs| theirs[..] != mine);
        other.map_or(Ok(()), |other| {
            at.refuse(format!("groups {groups:?}, but rank {} has others", self.members[other]))
        })
    }

    /// The place of the communicator of a group; a group of one has none.
    fn split_off(&self, call: Call, place: usize, group: &Group) -> Result<Option<usize>> {
        let comm = self.shared.comm(place, call)?;
        let several = group.members.len() > 1;
        let (part, colour) = (Comm::empty(), several.then_some((group.number, group.place)));
        // Before it is made, so that it can be given up.
        let place = several.then(|| self.shared.keep(part));
        self.shared.patiently(|| {
            self.shared.make(comm, call, move || comm.split(colour, part))?;
            if several { self.shared.settle(part, call) } else { Ok(()) }
        })?;
        Ok(place)
    }

    /// The answer of a wait for the device: where it was given up, why.
    fn host_wait<T>(&self, call: Call, waited: device::Result<T>) -> Result<T> {
        waited.or_else(|source| {
            self.shared.alive(call)?;
            Err(CollectiveError::device(self.shared.rank, call)(source))
        })
    }

    fn wait(&self, call: Call, stream: StreamKind) -> Result<()> {
        let waited = self.device.record(stream).and_then(|event| self.device.wait_on_host(&event));
        self.host_wait(call, waited)
    }

    /// These collectives once, on a small operand and on one of the whole scratch buffer.
    fn rehearse(&self, at: Operand, uses: &[Use], stream: StreamKind) -> Result<()> {
        let scratch = Rc::clone(&self.scratch);
        let ranks = self.members.len();
        for bytes in [SMALL_BYTES, scratch.bytes()] {
            let part = bytes / ranks / 4 * 4;
            let (whole, own) = (scratch.region(0, part * ranks), scratch.region(part * self.rank, part));
            for using in uses {
                let work = match *using {
                    Use::AllReduce(dtype) => Work::AllReduce { region: whole, dtype },
                    Use::ReduceScatter(dtype) => Work::ReduceScatter { input: whole, output: own, dtype },
                    Use::AllGather => Work::AllGather { input: own, output: whole },
                    Use::Broadcast => Work::Broadcast { root: 0, region: whole },
                    Use::Peer(_) => continue,
                };
                self.collective(at, part, work, stream)?;
            }
        }
        Ok(())
    }
}

impl DataPlane for NcclPlane {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn all_reduce(&mut self, region: Region<'_>, dtype: DType, stream: StreamKind) -> Result<()> {
        let at = self.next(Operation::AllReduce);
        check_sum(at, dtype, &[region])?;
        check_on_gpu(at, &[region])?;
        self.collective(at, region.bytes, Work::AllReduce { region, dtype }, stream)?;
        self.tally.all_reduce(region.bytes, dtype);
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        input: Region<'_>,
        output: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()> {
        let at = self.next(Operation::ReduceScatter);
        check_sum(at, dtype, &[input, output])?;
        check_gather(at, self.members.len(), output, input)?;
        check_on_gpu(at, &[input, output])?;
        self.collective(at, output.bytes, Work::ReduceScatter { input, output, dtype }, stream)?;
        self.tally.reduce_scatter(output.bytes);
        Ok(())
    }

    fn all_gather(&mut self, input: Region<'_>, output: Region<'_>, stream: StreamKind) -> Result<()> {
        let at = self.next(Operation::AllGather);
        check_regions(at, 2, &[input, output])?;
        check_gather(at, self.members.len(), input, output)?;
        check_on_gpu(at, &[input, output])?;
        self.collective(at, input.bytes, Work::AllGather { input, output }, stream)?;
        self.tally.all_gather(input.bytes);
        Ok(())
    }

    fn broadcast(&mut self, root: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        let at = self.next(Operation::Broadcast);
        check_root(at, self.members.len(), root)?;
        check_regions(at, 2, &[region])?;
        check_on_gpu(at, &[region])?;
        self.collective(at, region.bytes, Work::Broadcast { root, region }, stream)?;
        self.tally.broadcast(root, region.bytes);
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
        sends: &[(usize, Region<'_>)],
        receives: &[(usize, Region<'_>)],
        stream: StreamKind,
    ) -> Result<()> {
        self.point_to_point(Operation::Exchange, sends, receives, stream)
    }

    fn barrier(&mut self, stream: StreamKind) -> Result<()> {
        let at = self.next(Operation::Barrier);
        let scratch = Rc::clone(&self.scratch);
        let region = scratch.region(0, DType::F32.bytes());
        self.collective(at, region.bytes, Work::AllReduce { region, dtype: DType::F32 }, stream)?;
        self.tally.nothing(Operation::Barrier);
        Ok(())
    }

    fn synchronize(&mut self, stream: StreamKind) -> Result<()> {
        let call = Call { plane: Plane::Data, operation: Operation::Synchronize, sequence: self.collectives };
        self.shared.alive(call)?;
        self.wait(call, stream)
    }

    fn split(&mut self, groups: &[Vec<usize>]) -> Result<Box<dyn DataPlane>> {
        let at = self.next(Operation::Split);
        check_groups(at, self.members.len(), groups)?;
        self.same_groups(at, groups)?;
        let group = my_group(groups, self.rank);
        let place = match self.place {
            Some(place) => self.split_off(at.call, place, &group)?,
            None => None,
        };
        let members = group.members.iter().map(|member| self.members[*member]).collect();
        self.tally.nothing(Operation::Split);
        let (shared, scratch) = (Rc::clone(&self.shared), Rc::clone(&self.scratch));
        let (device, meter) = (self.device.clone(), self.tally.meter().part());
        let mut plane = NcclPlane::new(shared, device, place, group.place, members, scratch, meter);
        plane.observe(self.observer.clone());
        Ok(Box::new(plane))
    }

    fn warm_up(&mut self, uses: &[Use]) -> Result<()> {
        let stream = StreamKind::Compute;
        let call = Call { plane: Plane::Data, operation: Operation::Connect, sequence: self.collectives };
        let at = self.begin(call);
        let (shared, own) = (Rc::clone(&self.shared), self.rank);
        let peer = |using: &Use| if let Use::Peer(peer) = using { Some(*peer) } else { None };
        let peers: Vec<usize> = uses.iter().filter_map(peer).collect();
        peers.iter().try_for_each(|peer| check_root(at, self.members.len(), *peer))?;
        shared.patiently(|| {
            self.rehearse(at, uses, stream)?;
            self.meet(call, peers.into_iter().filter(|peer| *peer != own), stream)?;
            self.wait(call, stream)
        })
    }

    fn share(&mut self, regions: &[Region<'_>], options: PeerOptions) -> Result<Sharing> {
        self.open_window(regions, options)
    }

    fn sum_shared(&mut self, sums: &[SharedSum<'_>], alone: bool, stream: StreamKind) -> Result<bool> {
        self.sum_in_window(sums, alone, stream)
    }

    fn exchange_shared(
        &mut self,
        sends: &[(usize, Region<'_>)],
        receives: &[(usize, Region<'_>)],
        stream: StreamKind,
    ) -> Result<bool> {
        self.exchange_in_window(sends, receives, stream)
    }

    fn observe(&mut self, observer: Observer) {
        self.observer = observer;
    }

    fn traffic(&self) -> Traffic {
        self.tally.meter().own()
    }

    fn rank_traffic(&self) -> Traffic {
        self.tally.meter().rank()
    }
}

impl Drop for NcclPlane {
    fn drop(&mut self) {
        self.close_window();
        if let Some(place) = self.place {
            self.shared.leave(place, &self.device);
        }
    }
}

/// All regions are a GPU's.
fn check_on_gpu(at: Operand, regions: &[Region<'_>]) -> Result<()> {
    if regions.iter().all(|region| region.buffer.backend() == Backend::Cuda) {
        return Ok(());
    }
    at.refuse(format!("{NAME} moves regions of GPUs, and this one is on another device"))
}

/// A number for a list of groups: FNV-1a (Fowler, Noll and Vo) over their text.
fn digest(groups: &[Vec<usize>]) -> [u8; 8] {
    let text = format!("{groups:?}");
    let mixed = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mixed).to_le_bytes()
}
