//! The data plane of a group of GPUs.

mod calls;
mod peer_access;

use std::rc::Rc;

use device::{Buffer, Device, StreamKind};

use crate::call::{Call, Operation, Plane};
use crate::control::Observer;
use crate::data::CollectiveUse;
use crate::error::{CollectiveError, Result};
use crate::group::SplitGroup;
use crate::nccl::fault;
use crate::nccl::order::{Order, Work};
use crate::nccl::raw::{Comm, Queue};
use crate::nccl::shared::Shared;
use crate::nccl::window::gpus::Gpus;
use crate::operands::{Caller, Membership, Operands, PeerRegion, Reach};
use crate::peer_access::PeerWindow;
use crate::tally::Tally;
use crate::traffic::Meter;

/// Bytes that two ranks exchange when they first connect.
const MEETING_BYTES: usize = 4;
/// Offset in the first half of the scratch buffer at which those bytes are received. Sent bytes and barriers
/// use the bytes before it.
const MEETINGS: usize = 512;
/// Bytes of a small operand, for which NCCL uses another algorithm than for large ones.
const SMALL_BYTES: usize = 1 << 10;

/// [`DataPlane`] over its own communicator.
pub(super) struct NcclPlane {
    shared: Rc<Shared>,
    device: Device,
    /// Index of the communicator among the rank's; `None` for a group of one.
    comm_index: Option<usize>,
    rank: usize,
    /// World numbers of the ranks, by number in the group.
    members: Vec<usize>,
    /// World numbers of the other ranks.
    others: Rc<[usize]>,
    collectives: u64,
    /// Number of messages to and from each peer.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Whether each peer is connected in both directions.
    met: Vec<bool>,
    /// Scratch buffer of all planes of the rank; its contents do not matter.
    scratch: Rc<Buffer>,
    /// The memory of the group's ranks, if they have peer access.
    window: Option<PeerWindow<Gpus>>,
    tally: Tally,
    observer: Observer,
}

impl NcclPlane {
    pub(super) fn new(
        shared: Rc<Shared>,
        device: Device,
        comm_index: Option<usize>,
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
            comm_index,
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

    fn next(&mut self, operation: Operation) -> Caller {
        let call = Call { plane: Plane::Data, operation, sequence: self.collectives };
        self.collectives += 1;
        self.begin(call)
    }

    fn begin(&self, call: Call) -> Caller {
        self.observer.begins(call);
        self.shared.begins(call, &self.others);
        Caller { rank: self.shared.rank, call }
    }

    fn check(&self, caller: Caller, operands: &Operands<'_>) -> Result<()> {
        let group = Membership { rank: self.rank, size: self.members.len(), reach: Reach::Gpu };
        operands.check(caller, group)
    }

    /// Enqueues one call made of `works`, and waits until all of it is enqueued.
    fn enqueue(&self, call: Call, works: &[Work<'_>], stream: StreamKind) -> Result<()> {
        let Some(comm_index) = self.comm_index else {
            self.shared.alive(call)?;
            return works.iter().try_for_each(|work| self.alone(call, work, stream));
        };
        let comm = self.shared.comm(comm_index, call)?;
        if works.is_empty() {
            return Ok(());
        }
        let refused = CollectiveError::device(self.shared.rank, call);
        let queue = Queue::of(&self.device, stream).map_err(refused)?;
        let orders: fault::Result<Vec<Order>> = works.iter().map(Order::of).collect();
        let orders = orders.map_err(|fault| self.shared.broken(fault, call))?;
        let span = self.device.span(stream, "nccl", call.operation.name());
        self.shared.make(comm, call, move || comm.enqueue(&orders, queue))?;
        span.end().map_err(CollectiveError::device(self.shared.rank, call))
    }

    /// Runs a call in a group of one: the operand is already in place or is copied.
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

    /// Runs a call of all ranks. A call over 0 bytes does nothing.
    fn collective(&self, caller: Caller, bytes: usize, work: Work<'_>, stream: StreamKind) -> Result<()> {
        self.enqueue(caller.call, if bytes == 0 { &[] } else { std::slice::from_ref(&work) }, stream)
    }

    /// Connects peers that were not connected before. NCCL makes the connections of one call together, and
    /// fails if two ranks want different ones; an exchange therefore connects both directions.
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
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<()> {
        let first = match (sends.first(), receives.first()) {
            (Some((to, _)), _) => self.sent.get(*to),
            (None, Some((from, _))) => self.received.get(*from),
            (None, None) => None,
        };
        let call = Call { plane: Plane::Data, operation, sequence: first.copied().unwrap_or(0) };
        let caller = self.begin(call);
        self.check(caller, &Operands::PointToPoint { sends, receives })?;
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

    /// Checks, by a digest, that the other ranks passed the same groups to a split.
    fn same_groups(&mut self, caller: Caller, groups: &[Vec<usize>]) -> Result<()> {
        let mine = digest(groups);
        let all = self.gather_bytes(caller, &mine)?;
        let other = all.iter().position(|theirs| theirs[..] != mine);
        other.map_or(Ok(()), |other| {
            caller.refuse(format!("groups {groups:?}, but rank {} has others", self.members[other]))
        })
    }

    /// Splits off the communicator of a group, and returns its index; `None` for a group of one.
    fn split_off(&self, call: Call, comm_index: usize, group: &SplitGroup) -> Result<Option<usize>> {
        let comm = self.shared.comm(comm_index, call)?;
        let several = group.members.len() > 1;
        let (part, colour) = (Comm::empty(), several.then_some((group.number, group.rank)));
        // The communicator is registered before it is created, so that its creation can be aborted.
        let comm_index = several.then(|| self.shared.keep(part));
        self.shared.patiently(|| {
            self.shared.make(comm, call, move || comm.split(colour, part))?;
            if several { self.shared.settle(part, call) } else { Ok(()) }
        })?;
        Ok(comm_index)
    }

    /// Returns the result of a wait for the device, or the reason why the wait was aborted.
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

    /// Runs collectives once on a small operand, and once on the whole scratch buffer.
    fn rehearse(&self, caller: Caller, uses: &[CollectiveUse], stream: StreamKind) -> Result<()> {
        let scratch = Rc::clone(&self.scratch);
        let ranks = self.members.len();
        for bytes in [SMALL_BYTES, scratch.bytes()] {
            let part = bytes / ranks / 4 * 4;
            let (whole, own) = (scratch.region(0, part * ranks), scratch.region(part * self.rank, part));
            for using in uses {
                let work = match *using {
                    CollectiveUse::AllReduce(dtype) => Work::AllReduce { region: whole, dtype },
                    CollectiveUse::ReduceScatter(dtype) => {
                        Work::ReduceScatter { input: whole, output: own, dtype }
                    }
                    CollectiveUse::AllGather => Work::AllGather { input: own, output: whole },
                    CollectiveUse::Broadcast => Work::Broadcast { root: 0, region: whole },
                    CollectiveUse::Peer(_) => continue,
                };
                self.collective(caller, part, work, stream)?;
            }
        }
        Ok(())
    }
}

impl Drop for NcclPlane {
    fn drop(&mut self) {
        self.close_window();
        if let Some(comm_index) = self.comm_index {
            self.shared.leave(comm_index, &self.device);
        }
    }
}

/// Returns a digest of a list of groups: FNV-1a (Fowler, Noll and Vo) over its text.
fn digest(groups: &[Vec<usize>]) -> [u8; 8] {
    let text = format!("{groups:?}");
    let mixed = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mixed).to_le_bytes()
}
