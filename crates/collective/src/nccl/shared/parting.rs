//! Leaving a group: finish or abandon the rank's work, then end its communicators.

use device::Device;

use super::{End, PARTING, Shared};
use crate::error::Failure;
use crate::nccl::ending::{self, Ending};

impl Shared {
    /// Ends all calls if this rank or another one has failed.
    fn heed_failures(&self) {
        if std::thread::panicking() {
            self.finish(End::Failed(Failure { rank: self.rank, reason: "it panicked".to_owned() }));
        } else if let Some(failure) = self.watch.failure() {
            self.finish(End::Failed(failure));
        }
    }

    /// Waits briefly for this rank's work in other ranks' memory. Abandons it after a failure or a timeout.
    /// Returns whether it is done.
    pub(in crate::nccl) fn drain(&self, device: &Device) -> bool {
        self.heed_failures();
        if self.end.borrow().is_none() {
            self.parting.set(true);
            let done = device.synchronize().is_ok();
            self.parting.set(false);
            if done {
                return true;
            }
            let reason = "it left with unfinished work".to_owned();
            self.finish(End::Failed(Failure { rank: self.rank, reason }));
        }
        device.synchronize().is_ok()
    }

    /// Ends a communicator: with the other ranks of its group if nothing failed, otherwise at once. Waits
    /// briefly.
    pub(in crate::nccl) fn leave(&self, comm_index: usize, device: &Device) {
        self.heed_failures();
        if self.comms.borrow().get(comm_index).is_some_and(Option::is_some) {
            self.parting.set(true);
            let done = device.synchronize().is_ok();
            self.parting.set(false);
            let comm = self.comms.borrow_mut()[comm_index].take();
            let how = if done { Ending::Destroy } else { self.abort() };
            ending::end(comm.as_slice(), &how, PARTING);
        }
        if self.comms.borrow().iter().all(Option::is_none) {
            device.set_guard(None);
        }
    }
}
