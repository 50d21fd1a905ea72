//! The collective of a pass that goes on while operators compute.
//!
//! The one idea: **there is at most one**, and the next begins when it has ended. So what a collective reads
//! is freed at a point of the pass that is the same on every device, and a plan counts it exactly.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use collective::tensors::UnderWay;

/// The collective that a pass has under way, if any. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Flight(Rc<State>);

#[derive(Debug, Default)]
struct State {
    under_way: RefCell<Option<UnderWay>>,
    begun: Cell<u64>,
}

impl Flight {
    /// Makes compute wait for the collective that is under way, and frees what it reads.
    pub(crate) fn end(&self) {
        self.0.under_way.take();
    }

    /// Keeps a collective that has begun; the one before has ended.
    pub(crate) fn begin(&self, collective: UnderWay) {
        self.0.under_way.replace(Some(collective));
        self.0.begun.set(self.0.begun.get() + 1);
    }

    /// Number of collectives that have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.0.begun.get()
    }
}
