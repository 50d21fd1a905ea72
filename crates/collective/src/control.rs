//! The control channel: small messages between hosts.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use crate::call::Call;
use crate::error::{Failure, Result};

/// Channel for small host messages such as configuration checks, identifiers and statistics. Not meant for
/// tensors.
///
/// All ranks make the same calls in the same order; a difference is an error that names both ranks. Every
/// wait ends with the result, a peer's failure, or the deadline.
pub trait ControlChannel {
    /// This rank's number in the world, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn world_size(&self) -> usize;

    /// Replaces `message` on every rank with the message of `root`.
    fn broadcast(&mut self, root: usize, message: &mut Vec<u8>) -> Result<()>;

    /// Returns every rank's message in rank order on `root`, and `None` elsewhere. Messages may differ in
    /// length.
    fn gather(&mut self, root: usize, message: &[u8]) -> Result<Option<Vec<Vec<u8>>>>;

    /// Returns every rank's message in rank order. Messages may differ in length.
    fn all_gather(&mut self, message: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Returns once every rank has called this function.
    fn barrier(&mut self) -> Result<()>;

    /// Announces to all ranks that this rank fails, with the reason. Their pending and later calls on both
    /// channels return [`CollectiveError::PeerFailed`](crate::CollectiveError::PeerFailed). All ranks report
    /// the first failure in the world.
    fn fail(&mut self, reason: &str);

    /// Calls `observer` at the start of every later call.
    fn observe(&mut self, observer: Observer);

    /// Returns a handle that reports failures and outlives the borrow of the channel, for use while waiting
    /// for a device.
    fn watch(&self) -> Watch;
}

/// A callback at the start of each call, on the worker's thread. Should be fast.
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

/// A transport's record of live and failed ranks.
pub(crate) trait Liveness {
    /// The first failure in the world.
    fn failure(&self) -> Option<Failure>;

    /// Records that this rank is alive and has begun a call.
    fn sign(&self) {}

    /// Returns the rank among these world numbers for which the others most likely wait. May block briefly to
    /// query the ranks.
    fn silent(&self, _among: &[usize]) -> Option<usize> {
        None
    }

    /// Records that this rank is alive and waits for something other than ranks.
    fn delay(&self) {}

    /// Returns whether another rank is delayed ([`Watch::delay`]), which suspends deadlines. May block
    /// briefly to query the ranks.
    fn is_delayed(&self) -> bool {
        false
    }

    /// Announces the failure of another rank that cannot announce it itself.
    fn lost(&self, _rank: usize, _reason: &str) {}
}

impl<F: Fn() -> Option<Failure>> Liveness for F {
    fn failure(&self) -> Option<Failure> {
        self()
    }
}

/// A handle that reports failures. Never blocks; stays on the worker's thread.
#[derive(Clone)]
pub struct Watch(Rc<dyn Liveness>);

impl Watch {
    /// Creates a watch from a function that returns the first failure.
    pub fn new(ask: impl Fn() -> Option<Failure> + 'static) -> Self {
        Watch(Rc::new(ask))
    }

    pub(crate) fn over(peers: impl Liveness + 'static) -> Self {
        Watch(Rc::new(peers))
    }

    /// Records that this rank is alive but waits for something other than ranks, such as a disk. Other ranks
    /// then wait for it beyond their timeout. Repeat at least every [`DELAY_INTERVAL`].
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
