//! The control plane: small messages between the hosts of ranks.

use std::fmt;
use std::rc::Rc;

use crate::call::Call;
use crate::error::{Failure, Result};

/// Small host messages: configuration checks, identifiers, statistics. Not for tensors.
///
/// All ranks make the same calls in the same order; whatever differs is an error that names both ranks.
/// Every wait ends: with the answer, with a peer's failure, or at the deadline.
pub trait ControlPlane {
    /// This rank's number in the world, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// Replaces `message` on every rank by that of `root`.
    fn broadcast(&mut self, root: usize, message: &mut Vec<u8>) -> Result<()>;

    /// Every rank's message, in rank order, on `root`; `None` elsewhere. Messages may differ in length.
    fn gather(&mut self, root: usize, message: &[u8]) -> Result<Option<Vec<Vec<u8>>>>;

    /// Every rank's message, in rank order, on every rank. Messages may differ in length.
    fn all_gather(&mut self, message: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Returns when every rank has called it.
    fn barrier(&mut self) -> Result<()>;

    /// Tells everybody that this rank ends and why. Their pending and later calls, on both planes, return
    /// [`CollectiveError::PeerFailed`](crate::CollectiveError::PeerFailed). The first failure in the world
    /// is the one that all report.
    fn fail(&mut self, reason: &str);

    /// From now on tells `observer` of every call that begins.
    fn observe(&mut self, observer: Observer);

    /// A way to ask for failures that outlives the borrow of the plane: for waits on something else, such
    /// as a device's event.
    fn watch(&self) -> Watch;
}

/// Hears of each call as it begins, on the worker's thread; it should be quick.
#[derive(Clone)]
pub struct Observer(Rc<dyn Fn(Call)>);

impl Observer {
    /// An observer that does what `hear` does.
    pub fn new(hear: impl Fn(Call) + 'static) -> Self {
        Observer(Rc::new(hear))
    }

    /// A call begins.
    pub fn begins(&self, call: Call) {
        (self.0)(call);
    }
}

impl Default for Observer {
    /// One that does nothing.
    fn default() -> Self {
        Observer::new(|_| ())
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// What a transport knows of the other ranks beside calls.
pub(crate) trait Liveness {
    /// The first failure in the world.
    fn failure(&self) -> Option<Failure>;

    /// Notes that this rank is alive and has begun a call.
    fn sign(&self) {}

    /// The rank among these, numbers in the world, that the others most likely wait for. It may take a moment
    /// to ask.
    fn silent(&self, _among: &[usize]) -> Option<usize> {
        None
    }

    /// Tells the world that another rank is lost, where it would not hear it of that one's own.
    fn lost(&self, _rank: usize, _reason: &str) {}
}

impl<F: Fn() -> Option<Failure>> Liveness for F {
    fn failure(&self) -> Option<Failure> {
        self()
    }
}

/// Asks whether a rank has failed. It never blocks. It stays on the worker's thread.
#[derive(Clone)]
pub struct Watch(Rc<dyn Liveness>);

impl Watch {
    /// A watch that answers with what `ask` does.
    pub fn new(ask: impl Fn() -> Option<Failure> + 'static) -> Self {
        Watch(Rc::new(ask))
    }

    pub(crate) fn over(peers: impl Liveness + 'static) -> Self {
        Watch(Rc::new(peers))
    }

    pub(crate) fn liveness(&self) -> &dyn Liveness {
        &*self.0
    }

    /// The first failure in the world, if there was one.
    pub fn failure(&self) -> Option<Failure> {
        self.0.failure()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({:?})", self.failure())
    }
}
