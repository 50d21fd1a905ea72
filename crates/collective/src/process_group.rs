//! Process groups: the ranks that run a collective together.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use device::{Device, OutlivingRegion, Region, Repetition, StreamKind};
use tensor::TensorError;

use crate::backend::{GroupBackend, GroupCall, NumberedMessage};
use crate::call::{Call, CallKind, Channel};
use crate::caller::Caller;
use crate::collective::{Collective, Membership, PeerRegion, check_groups, check_rank, check_reach};
use crate::control::Observer;
use crate::error::Result;
use crate::peer_access::{PeerAccess, PeerAccessOptions};
use crate::split::SplitGroup;
use crate::traffic::{Meter, Moved, Traffic};

/// A group of ranks that run collectives on device regions.
///
/// Calls are enqueued on a stream and may return before they are done; host transports finish before they
/// return. Other streams must not touch a region before they have waited for that stream. Any two ranks must
/// make their common calls in the same order, on any streams.
///
/// A clone is another handle to the same group. All handles belong to the rank's thread, so all calls of a
/// rank are ordered.
#[derive(Clone)]
pub struct ProcessGroup(Rc<RefCell<State>>);

/// One rank's side of a group.
struct State {
    backend: Box<dyn GroupBackend>,
    /// This rank's number in the group.
    rank: usize,
    /// World numbers of the ranks, by number in the group.
    members: Vec<usize>,
    /// Number of collectives so far.
    collectives: u64,
    /// Number of messages sent to and received from each peer.
    sent: Vec<u64>,
    received: Vec<u64>,
    meter: Meter,
    observer: Observer,
}

impl ProcessGroup {
    /// Creates the group of all ranks of the world, as rank `rank`.
    pub fn new(rank: usize, world_size: usize, backend: impl GroupBackend + 'static) -> Self {
        Self::from_backend(rank, world_size, Box::new(backend))
    }

    pub(crate) fn from_backend(rank: usize, world_size: usize, backend: Box<dyn GroupBackend>) -> Self {
        State::group(backend, rank, (0..world_size).collect(), Meter::default(), Observer::default())
    }

    /// This rank's number in the group, from 0.
    pub fn rank(&self) -> usize {
        self.0.borrow().rank
    }

    /// Number of ranks in the group.
    pub fn world_size(&self) -> usize {
        self.0.borrow().members.len()
    }

    /// Runs a collective on `stream`. If the device is capturing, replays run it again.
    ///
    /// # Errors
    /// Operands are invalid, a rank or the transport failed, or ranks make different calls.
    pub fn run(&self, collective: Collective<Region<'_>>, stream: StreamKind) -> Result<()> {
        let device = self.0.borrow().backend.device().filter(Device::is_capturing);
        let call = || self.0.borrow_mut().run(&collective, stream);
        let Some(device) = device else { return call() };
        // Captured work holds no reference to the group, which is dropped before its shared memory.
        let group = Rc::downgrade(&self.0);
        let repetition = || -> Repetition {
            let kept = collective.map(Region::outlive);
            Box::new(move || match group.upgrade() {
                Some(group) => Ok(group.borrow_mut().run(&kept.map(OutlivingRegion::region), stream)?),
                None => Err("a call was repeated in a process group that is gone".into()),
            })
        };
        device.make_repeated(call, repetition).map_err(TensorError::from)?
    }

    /// Runs a collective in shared memory if the backend supports it. Returns whether it did, the same on all
    /// ranks.
    pub fn try_run(&self, collective: Collective<Region<'_>>, stream: StreamKind) -> Result<bool> {
        let is_supported = self.0.borrow().backend.supports(&collective);
        if is_supported {
            self.run(collective, stream)?;
        }
        Ok(is_supported)
    }

    /// Waits on the host until this group's work on `stream` is done, a peer fails, or the deadline passes.
    ///
    /// # Errors
    /// A peer failed, or the deadline passed.
    pub fn synchronize(&self, stream: StreamKind) -> Result<()> {
        let mut state = self.0.borrow_mut();
        let caller = state.caller(CallKind::Synchronize, state.collectives);
        state.backend.synchronize(caller, stream)
    }

    /// Splits the ranks of this group into groups, as [`Communicator::divide`](crate::Communicator::divide)
    /// does for the world. Groups are lists of rank numbers within this group.
    ///
    /// # Errors
    /// Ranks passed different groups, a rank is listed twice, or a rank or the transport failed.
    pub fn split(&self, groups: &[Vec<usize>]) -> Result<ProcessGroup> {
        self.0.borrow_mut().split(groups)
    }

    /// Connects the devices for the collectives in `uses`, and waits for the connections. All ranks of the
    /// group pass the same `uses`, and peers list each other. Calls that are not listed also work, but the
    /// first one waits on the host for the other ranks. Host transports have nothing to connect.
    ///
    /// # Errors
    /// A peer is outside the group, or a rank or the transport failed.
    pub fn warm_up(&self, uses: &[Collective<()>]) -> Result<()> {
        let mut state = self.0.borrow_mut();
        let caller = state.caller(CallKind::Connect, state.collectives);
        let size = state.members.len();
        if state.backend.connects() {
            state.observer.begins(caller.call);
        }
        uses.iter().filter_map(Collective::peer_rank).try_for_each(|peer| check_rank(caller, size, peer))?;
        state.backend.warm_up(caller, uses)
    }

    /// Maps these regions into the address spaces of the group's other ranks, if their devices support it.
    ///
    /// All ranks pass the same number of regions of the same lengths while no work is running, and get the
    /// same result. The regions must stay allocated until the group is dropped. A later call replaces an
    /// earlier one.
    pub fn share(&self, regions: &[Region<'_>], options: PeerAccessOptions) -> Result<PeerAccess> {
        let mut state = self.0.borrow_mut();
        if !state.backend.connects() {
            return Ok(PeerAccess::Denied("this transport does not support it".to_owned()));
        }
        let caller = state.begin(CallKind::Connect);
        check_reach(caller, state.backend.reach(), regions)?;
        state.backend.share(caller, regions, options)
    }

    /// Sets the device whose log records this group's calls. Only counted groups use it; others log on their
    /// own device.
    pub fn log_on(&self, device: &Device) {
        self.0.borrow_mut().backend.log_on(device);
    }

    /// Calls `observer` at the start of every later call, also in groups split off later.
    pub fn observe(&self, observer: Observer) {
        self.0.borrow_mut().observer = observer;
    }

    /// Bytes and calls of this group so far.
    pub fn traffic(&self) -> Traffic {
        self.0.borrow().meter.own()
    }

    /// Bytes and calls of this rank so far, over this group and all groups split from the same one.
    pub fn rank_traffic(&self) -> Traffic {
        self.0.borrow().meter.rank()
    }
}

impl State {
    fn group(
        backend: Box<dyn GroupBackend>,
        rank: usize,
        members: Vec<usize>,
        meter: Meter,
        observer: Observer,
    ) -> ProcessGroup {
        let sent = vec![0; members.len()];
        let received = vec![0; members.len()];
        let state = State { backend, rank, members, collectives: 0, sent, received, meter, observer };
        ProcessGroup(Rc::new(RefCell::new(state)))
    }

    fn caller(&self, kind: CallKind, sequence: u64) -> Caller {
        Caller { rank: self.members[self.rank], call: Call { channel: Channel::Data, kind, sequence } }
    }

    /// Numbers and announces the next call of all ranks.
    fn begin(&mut self, kind: CallKind) -> Caller {
        let caller = self.caller(kind, self.collectives);
        self.collectives += 1;
        self.observer.begins(caller.call);
        caller
    }

    /// Announces a call between pairs of ranks, numbered by its first message.
    fn begin_messages(
        &self,
        kind: CallKind,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
    ) -> Caller {
        let first = match (sends.first(), receives.first()) {
            (Some((to, _)), _) => self.sent.get(*to),
            (None, Some((from, _))) => self.received.get(*from),
            (None, None) => None,
        };
        let caller = self.caller(kind, first.copied().unwrap_or(0));
        self.observer.begins(caller.call);
        caller
    }

    /// Checks, enqueues, counts and logs a collective.
    fn run(&mut self, collective: &Collective<Region<'_>>, stream: StreamKind) -> Result<()> {
        let kind = collective.kind();
        let (sends, receives) = match collective.is_transfer() {
            true => collective.messages(),
            false => (Vec::new(), Vec::new()),
        };
        let caller = match collective.is_transfer() {
            true => self.begin_messages(kind, &sends, &receives),
            false => self.begin(kind),
        };
        let rank = self.rank;
        let size = self.members.len();
        collective.check(caller, Membership { rank, size, reach: self.backend.reach() })?;
        let sends = numbered(&mut self.sent, &sends);
        let receives = numbered(&mut self.received, &receives);
        self.backend.enqueue(&GroupCall { caller, collective, sends, receives, stream })?;
        collective.count(rank, size, |kind, moved| self.meter.record(kind, moved));
        if let Some(device) = self.backend.device() {
            device.log(|| collective.logged(rank, &self.members, stream));
        }
        Ok(())
    }

    fn split(&mut self, groups: &[Vec<usize>]) -> Result<ProcessGroup> {
        let caller = self.begin(CallKind::Split);
        check_groups(caller, self.members.len(), groups)?;
        let own = SplitGroup::containing(groups, self.rank);
        let backend = self.backend.split(caller, groups, &own)?;
        self.meter.record(CallKind::Split, Moved::default());
        let members = own.members.iter().map(|member| self.members[*member]).collect();
        Ok(State::group(backend, own.rank, members, self.meter.part(), self.observer.clone()))
    }
}

/// Assigns each message its number among the messages to or from its peer. `counts` holds the number of
/// earlier messages per peer, and is increased.
fn numbered<'a>(counts: &mut [u64], messages: &[PeerRegion<'a>]) -> Vec<NumberedMessage<'a>> {
    let number = |(peer, region): &PeerRegion<'a>| {
        let count = &mut counts[*peer];
        let call = Call { channel: Channel::Data, kind: CallKind::Send, sequence: *count };
        *count += 1;
        NumberedMessage { peer: *peer, region: *region, call }
    };
    messages.iter().map(number).collect()
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessGroup(rank {} of {})", self.rank(), self.world_size())
    }
}
