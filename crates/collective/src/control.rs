//! The control channel: small messages between the ranks' hosts.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use crate::call::Call;
use crate::error::{Failure, Result};

/// Small host messages: configuration checks, identifiers, statistics. Not meant for tensors.
///
/// All ranks make the same calls in the same order; a difference is an error that names both ranks. Every
/// wait ends with the result, with a peer's failure, or at the deadline.
pub trait ControlChannel {
    /// This rank's number in the world, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn world_size(&self) -> usize;

    /// Replaces `message` on every rank by the message of `root`.
    fn broadcast(&mut self, root: usize, message: &mut Vec<u8>) -> Result<()>;

    /// Returns every rank's message, in rank order, on `root`, and `None` elsewhere. Messages may differ in
    /// length.
    fn gather(&mut self, root: usize, message: &[u8]) -> Result<Option<Vec<Vec<u8>>>>;

    /// Returns every rank's message, in rank order, on every rank. Messages may differ in length.
    fn all_gather(&mut self, message: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Returns once every rank has called it.
    fn barrier(&mut self) -> Result<()>;

    /// Announces to all ranks that this one ends, with the reason. Their pending and later calls, on both
    /// channels, return [`CollectiveError::PeerFailed`](crate::CollectiveError::PeerFailed). All ranks report
    /// the first failure in the world.
    fn fail(&mut self, reason: &str);

    /// Registers `observer` for every call that begins from now on.
    fn observe(&mut self, observer: Observer);

    /// Returns a handle that reports failures and outlives the borrow of the channel. It serves waits for
    /// something else, such as a device's event.
    fn watch(&self) -> Watch;
}

/// A callback at the start of each call, on the worker's thread. It should be fast.
#[derive(Clone)]
pub struct Observer(Rc<dyn Fn(Call)>);

impl Observer {
    /// Creates an observer from a callback.
    pub fn new(hear: impl Fn(Call) + 'static) -> Self {
        Observer(Rc::new(hear))
    }

    /// Reports that a call begins.
    pub fn begins(&self, call: Call) {
        (self.0)(call);
    }
}

impl Default for Observer {
    /// Creates an observer that does nothing.
    fn default() -> Self {
        Observer::new(|_| ())
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// Longest time between two calls of [`Watch::delay`] while a rank is delayed.
pub const DELAY_INTERVAL: Duration = Duration::from_millis(100);

/// A transport's knowledge of which ranks are alive.
pub(crate) trait Liveness {
    /// The first failure in the world.
    fn failure(&self) -> Option<Failure>;

    /// Records that this rank is alive and has begun a call.
    fn sign(&self) {}

    /// Returns the rank among these world numbers for which the others most likely wait. May block briefly to
    /// ask the ranks.
    fn silent(&self, _among: &[usize]) -> Option<usize> {
        None
    }

    /// Records that this rank is alive and waits for something other than ranks.
    fn delay(&self) {}

    /// Returns whether another rank is delayed ([`Watch::delay`]), so that no deadline counts. May block
    /// briefly to ask the ranks.
    fn is_delayed(&self) -> bool {
        false
    }

    /// Announces that another rank is lost, if that rank cannot announce it itself.
    fn lost(&self, _rank: usize, _reason: &str) {}
}

impl<F: Fn() -> Option<Failure>> Liveness for F {
    fn failure(&self) -> Option<Failure> {
        self()
    }
}

/// A handle that reports failures. It never blocks, and stays on the worker's thread.
#[derive(Clone)]
pub struct Watch(Rc<dyn Liveness>);

impl Watch {
    /// Creates a watch from a function.
    pub fn new(ask: impl Fn() -> Option<Failure> + 'static) -> Self {
        Watch(Rc::new(ask))
    }

    pub(crate) fn over(peers: impl Liveness + 'static) -> Self {
        Watch(Rc::new(peers))
    }

    /// Records that this rank is alive and waits for something other than ranks, for example a disk. The
    /// others, which wait for it, then do so beyond their timeout. To be repeated at least every
    /// [`DELAY_INTERVAL`].
    pub fn delay(&self) {
        self.0.delay();
    }

    pub(crate) fn liveness(&self) -> &dyn Liveness {
        &*self.0
    }

    /// The first failure in the world, if any.
    pub fn failure(&self) -> Option<Failure> {
        self.0.failure()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({:?})", self.failure())
    }
}
