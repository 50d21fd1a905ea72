//! A rank's two planes, and the transports that they come from.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use device::{Buffer, Device};

use crate::control::ControlPlane;
use crate::counted::{CountedControl, CountedData};
use crate::data::DataPlane;
use crate::error::Result;
use crate::host::{HostControl, HostData};
use crate::nccl;
use crate::solo::SoloLink;

/// How one rank talks to the others. It belongs to the worker's thread; a worker may put another data plane
/// in place of the one it was given.
pub struct Communicator {
    /// Small host messages.
    pub control: Box<dyn ControlPlane>,
    /// Device regions.
    pub data: Box<dyn DataPlane>,
    /// What NCCL's plane takes on a GPU, where it is only counted.
    scratch: Option<Rc<Buffer>>,
}

impl Communicator {
    pub(crate) fn new(control: impl ControlPlane + 'static, data: impl DataPlane + 'static) -> Self {
        Communicator { control: Box::new(control), data: Box::new(data), scratch: None }
    }

    /// A world of one.
    pub fn solo() -> Self {
        Communicator::new(HostControl::new(SoloLink), HostData::new(SoloLink))
    }

    /// Rank `rank` of `world_size` without the others: for runs on Meta. `rank` must be below `world_size`.
    pub fn counted(rank: usize, world_size: usize) -> Self {
        debug_assert!(rank < world_size, "rank {rank} of {world_size}");
        let data = CountedData::new(rank, (0..world_size).collect());
        Communicator::new(CountedControl { rank, world_size, calls: 0 }, data)
    }

    /// The same ranks with regions going between their GPUs over NCCL; small messages go as before. Each rank calls it
    /// with its own GPU, from the thread that makes all its calls, before it gives that GPU work; then comes
    /// [`DataPlane::warm_up`]. A wait that is longer than `timeout` is an error, also one of `device` itself: from now
    /// on its waits hear of failures ([`Device::set_guard`]).
    ///
    /// A world of one stays what it was, and so does a rank on a Meta device that imitates a GPU, but that it takes the
    /// same memory.
    ///
    /// A rank that fails should say so ([`ControlPlane::fail`]) before it drops this: NCCL ends a group's communicator on
    /// all ranks together, and a rank that knows of no failure gives the others a moment to come to it.
    ///
    /// # Errors
    /// A device that is neither; NCCL is not there, has another version than on rank 0, or fails; a rank that does not
    /// come.
    pub fn over_nccl(mut self, device: &Device, timeout: Duration) -> Result<Self> {
        if self.world_size() == 1 {
            return Ok(self);
        }
        let scratch = nccl::scratch(self.rank(), device)?;
        if device.is_meta() {
            self.scratch = Some(scratch);
        } else {
            self.data = nccl::connect(&mut *self.control, device, timeout, scratch)?;
        }
        Ok(self)
    }

    /// This rank's number in the world.
    pub fn rank(&self) -> usize {
        self.control.rank()
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.control.world_size()
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.world_size())
    }
}
