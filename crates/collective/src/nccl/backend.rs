//! The backend of a group of GPUs. Calls go to NCCL or run in shared memory.

mod shared_memory;

use std::rc::Rc;

use device::{Buffer, DType, Device, Region, StreamKind};

use crate::backend::{GroupBackend, GroupCall};
use crate::call::Call;
use crate::caller::Caller;
use crate::collective::{Collective, PeerRegion, Reach};
use crate::error::Result;
use crate::nccl::raw::{Comm, Queue};
use crate::nccl::shared::Shared;
use crate::nccl::span::Span;
use crate::nccl::window::gpus::Gpus;
use crate::peer_access::{PeerAccess, PeerAccessOptions, PeerWindow};
use crate::split::SplitGroup;

/// Bytes that two ranks exchange in their first connection.
const MEETING_BYTES: usize = 4;
/// Offset in the first half of the scratch buffer at which [`MEETING_BYTES`] are received. Sent bytes and
/// barriers use the bytes below it.
const MEETINGS: usize = 512;
/// Bytes of a small operand; NCCL uses different algorithms for small and large ones.
const SMALL_BYTES: usize = 1 << 10;

/// A [`GroupBackend`] over an NCCL communicator.
pub(super) struct NcclBackend {
    shared: Rc<Shared>,
    device: Device,
    /// Index of the group's communicator among this rank's communicators; `None` for a group of one.
    comm_index: Option<usize>,
    rank: usize,
    /// World numbers of the ranks, by number in the group.
    members: Vec<usize>,
    /// World numbers of the other ranks.
    others: Rc<[usize]>,
    /// Whether each peer is already connected in both directions.
    met: Vec<bool>,
    /// Scratch buffer of all groups of the rank; its contents do not matter.
    scratch: Rc<Buffer>,
    /// Shared memory of the group's ranks, if they have peer access.
    window: Option<PeerWindow<Gpus>>,
}

impl NcclBackend {
    pub(super) fn new(
        shared: Rc<Shared>,
        device: Device,
        comm_index: Option<usize>,
        rank: usize,
        members: Vec<usize>,
        scratch: Rc<Buffer>,
    ) -> Self {
        let others = members.iter().copied().filter(|member| *member != members[rank]).collect();
        let met = vec![false; members.len()];
        NcclBackend { shared, device, comm_index, rank, members, others, met, scratch, window: None }
    }

    /// Passes a collective to NCCL and waits until it is enqueued. An empty operand does nothing.
    fn pass(&self, caller: Caller, collective: &Collective<Region<'_>>, stream: StreamKind) -> Result<()> {
        let call = caller.call;
        let comm = match self.comm_index {
            Some(comm_index) => Some(self.shared.comm(comm_index, call)?),
            None => self.shared.alive(call).map(|()| None)?,
        };
        let is_empty = match collective {
            Collective::Exchange { sends, receives } => sends.is_empty() && receives.is_empty(),
            collective => collective.signature(call).bytes == Some(0),
        };
        match comm {
            _ if is_empty => Ok(()),
            Some(comm) => {
                let queue = Queue::new(&self.device, stream).map_err(|error| caller.device_error(error))?;
                let operands = collective.try_map(Span::new);
                let operands = operands.map_err(|fault| self.shared.broken(fault, call))?;
                let span = self.device.span(stream, "nccl", call.kind.name());
                self.shared.make(comm, call, move || comm.enqueue(&operands, queue))?;
                span.end().map_err(|error| caller.device_error(error))
            }
            None => self.run_alone(caller, collective, stream),
        }
    }

    /// Runs a collective in a group of one: copies the operand to the result if they differ.
    fn run_alone(
        &self,
        caller: Caller,
        collective: &Collective<Region<'_>>,
        stream: StreamKind,
    ) -> Result<()> {
        let address = |region: &Region<'_>| region.buffer.address() + region.offset as u64;
        match collective {
            Collective::ReduceScatter { input, output, .. } | Collective::AllGather { input, output }
                if address(input) != address(output) =>
            {
                let copied = self.device.copy_on(*input, *output, stream);
                copied.map_err(|error| caller.device_error(error))
            }
            _ => Ok(()),
        }
    }

    /// Connects peers for the first time, in both directions. NCCL makes all connections of one call
    /// together, and fails if two ranks request different ones.
    fn meet(&mut self, caller: Caller, peers: impl Iterator<Item = usize>, stream: StreamKind) -> Result<()> {
        let mut strangers: Vec<usize> = peers.filter(|peer| !self.met[*peer]).collect();
        strangers.sort_unstable();
        strangers.dedup();
        if strangers.is_empty() {
            return Ok(());
        }
        let scratch = Rc::clone(&self.scratch);
        let slots = (scratch.bytes() / 2 - MEETINGS) / MEETING_BYTES;
        let send = |peer: &usize| (*peer, scratch.region(0, MEETING_BYTES));
        let receive =
            |peer: &usize| (*peer, scratch.region(MEETINGS + peer % slots * MEETING_BYTES, MEETING_BYTES));
        let sends = strangers.iter().map(send).collect();
        let receives = strangers.iter().map(receive).collect();
        self.pass(caller, &Collective::Exchange { sends, receives }, stream)?;
        strangers.into_iter().for_each(|peer| self.met[peer] = true);
        Ok(())
    }

    /// Runs sends and receives between pairs of ranks; empty messages are skipped.
    fn transfer(&mut self, call: &GroupCall<'_>) -> Result<()> {
        let (mut sends, mut receives) = call.collective.messages();
        sends.retain(|(_, region)| region.bytes > 0);
        receives.retain(|(_, region)| region.bytes > 0);
        let peer = |(peer, _): &PeerRegion<'_>| *peer;
        let peers: Vec<usize> = sends.iter().chain(&receives).map(peer).collect();
        if let [first, rest @ ..] = &*peers
            && rest.iter().all(|peer| peer == first)
        {
            self.shared.begins(call.caller.call, &[self.members[*first]].into());
        }
        self.meet(call.caller, peers.into_iter(), call.stream)?;
        self.pass(call.caller, &Collective::Exchange { sends, receives }, call.stream)
    }

    /// Checks that all ranks passed the same groups to a split, by comparing a digest.
    fn same_groups(&mut self, caller: Caller, groups: &[Vec<usize>]) -> Result<()> {
        let mine = digest(groups);
        let all = self.gather_bytes(caller, &mine)?;
        let other = all.iter().position(|theirs| theirs[..] != mine);
        other.map_or(Ok(()), |other| {
            caller.refuse(format!("groups {groups:?}, but rank {} has others", self.members[other]))
        })
    }

    /// Splits off a group's communicator and returns its index; `None` for a group of one.
    fn split_off(&self, call: Call, comm_index: usize, group: &SplitGroup) -> Result<Option<usize>> {
        let comm = self.shared.comm(comm_index, call)?;
        let several = group.members.len() > 1;
        let part = Comm::empty();
        let colour = several.then_some((group.number, group.rank));
        // The communicator is registered before its creation, so that the creation can be aborted.
        let comm_index = several.then(|| self.shared.keep(part));
        self.shared.patiently(|| {
            self.shared.make(comm, call, move || comm.split(colour, part))?;
            if several { self.shared.settle(part, call) } else { Ok(()) }
        })?;
        Ok(comm_index)
    }

    /// Converts the result of a wait for the device; an aborted wait returns the reason for aborting.
    fn host_wait<T>(&self, caller: Caller, waited: device::Result<T>) -> Result<T> {
        waited.or_else(|source| {
            self.shared.alive(caller.call)?;
            Err(caller.device_error(source))
        })
    }

    fn wait(&self, caller: Caller, stream: StreamKind) -> Result<()> {
        let waited = self.device.record(stream).and_then(|event| self.device.wait_on_host(&event));
        self.host_wait(caller, waited)
    }

    /// Runs each collective of `uses` once with a small and once with a large operand.
    fn rehearse(&self, caller: Caller, uses: &[Collective<()>], stream: StreamKind) -> Result<()> {
        let ranks = self.members.len();
        for bytes in [SMALL_BYTES, self.scratch.bytes()] {
            let part = bytes / ranks / 4 * 4;
            let whole = self.scratch.region(0, part * ranks);
            let own = self.scratch.region(part * self.rank, part);
            for using in uses {
                let collective = match *using {
                    Collective::AllReduce { dtype, .. } => Collective::AllReduce { region: whole, dtype },
                    Collective::ReduceScatter { dtype, .. } => {
                        Collective::ReduceScatter { input: whole, output: own, dtype }
                    }
                    Collective::AllGather { .. } => Collective::AllGather { input: own, output: whole },
                    Collective::Broadcast { .. } => Collective::Broadcast { root: 0, region: whole },
                    _ => continue,
                };
                self.pass(caller, &collective, stream)?;
            }
        }
        Ok(())
    }
}

impl GroupBackend for NcclBackend {
    fn reach(&self) -> Reach {
        Reach::Gpu
    }

    fn enqueue(&mut self, call: &GroupCall<'_>) -> Result<()> {
        let caller = call.caller;
        let stream = call.stream;
        self.shared.begins(caller.call, &self.others);
        match call.collective {
            Collective::Send { .. } | Collective::Receive { .. } | Collective::Exchange { .. } => {
                self.transfer(call)
            }
            Collective::Barrier => {
                let region = self.scratch.region(0, DType::F32.bytes());
                self.pass(caller, &Collective::AllReduce { region, dtype: DType::F32 }, stream)
            }
            Collective::SumShared { sums, tree, alone } => {
                self.sum_in_window(caller, (sums, tree), *alone, stream)
            }
            Collective::ExchangeShared { sends, .. } => self.send_in_window(caller, sends, stream),
            collective => self.pass(caller, collective, stream),
        }
    }

    fn supports(&self, collective: &Collective<Region<'_>>) -> bool {
        match collective {
            Collective::SumShared { sums, tree, .. } => {
                self.window.is_some() && sums.iter().all(|sum| self.summed_range(sum, tree).is_some())
            }
            Collective::ExchangeShared { sends, .. } => self.window.as_ref().is_some_and(|window| {
                sends.iter().all(|(_, region)| window.engine().range(*region).is_some())
            }),
            _ => true,
        }
    }

    fn synchronize(&mut self, caller: Caller, stream: StreamKind) -> Result<()> {
        self.shared.alive(caller.call)?;
        self.wait(caller, stream)
    }

    fn split(
        &mut self,
        caller: Caller,
        groups: &[Vec<usize>],
        own: &SplitGroup,
    ) -> Result<Box<dyn GroupBackend>> {
        self.shared.begins(caller.call, &self.others);
        self.same_groups(caller, groups)?;
        let comm_index = match self.comm_index {
            Some(comm_index) => self.split_off(caller.call, comm_index, own)?,
            None => None,
        };
        let members = own.members.iter().map(|member| self.members[*member]).collect();
        let shared = Rc::clone(&self.shared);
        let scratch = Rc::clone(&self.scratch);
        Ok(Box::new(NcclBackend::new(shared, self.device.clone(), comm_index, own.rank, members, scratch)))
    }

    fn connects(&self) -> bool {
        true
    }

    fn warm_up(&mut self, caller: Caller, uses: &[Collective<()>]) -> Result<()> {
        let stream = StreamKind::Compute;
        self.shared.begins(caller.call, &self.others);
        let own = self.rank;
        let peers = uses.iter().filter_map(Collective::peer_rank).filter(|peer| *peer != own);
        let shared = Rc::clone(&self.shared);
        shared.patiently(|| {
            self.rehearse(caller, uses, stream)?;
            self.meet(caller, peers, stream)?;
            self.wait(caller, stream)
        })
    }

    fn share(
        &mut self,
        caller: Caller,
        regions: &[Region<'_>],
        options: PeerAccessOptions,
    ) -> Result<PeerAccess> {
        self.shared.begins(caller.call, &self.others);
        self.open_window(caller, regions, options)
    }

    fn device(&self) -> Option<Device> {
        Some(self.device.clone())
    }
}

impl Drop for NcclBackend {
    fn drop(&mut self) {
        self.close_window();
        if let Some(comm_index) = self.comm_index {
            self.shared.leave(comm_index, &self.device);
        }
    }
}

/// Returns the FNV-1a digest (Fowler, Noll and Vo) of a list of groups.
fn digest(groups: &[Vec<usize>]) -> [u8; 8] {
    let text = format!("{groups:?}");
    let mixed = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mixed).to_le_bytes()
}
