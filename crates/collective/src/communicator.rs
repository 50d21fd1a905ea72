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
use crate::traffic::{Meter, Traffic};

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
        Communicator::new(HostControl::new(SoloLink), HostData::new(SoloLink, Meter::default()))
    }

    /// Rank `rank` of `world_size` without the others: for runs on Meta. `rank` must be below `world_size`.
    pub fn counted(rank: usize, world_size: usize) -> Self {
        debug_assert!(rank < world_size, "rank {rank} of {world_size}");
        let data = CountedData::new(rank, (0..world_size).collect(), Meter::default());
        Communicator::new(CountedControl { rank, world_size, calls: 0 }, data)
    }

    /// The same ranks with regions going between their GPUs over NCCL; small messages go as before. Each rank
    /// calls it with its own GPU, from the thread that makes all its calls, before it gives that GPU work;
    /// then comes [`DataPlane::warm_up`]. A wait that is longer than `timeout` is an error, also one of
    /// `device` itself: from now on its waits hear of failures ([`Device::set_guard`]).
    ///
    /// A world of one stays what it was, and so does a rank on a Meta device that imitates a GPU, but that it
    /// takes the same memory.
    ///
    /// A rank that fails should say so ([`ControlPlane::fail`]) before it drops this: NCCL ends a group's
    /// communicator on all ranks together, and a rank that knows of no failure gives the others a moment to
    /// come to it.
    ///
    /// # Errors
    /// A device that is neither; NCCL is not there, has another version than on rank 0, or fails; a rank that
    /// does not come.
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

    /// Divides the ranks into groups that have a data plane each: that of this rank's group, where its number
    /// is its place in the list. A rank that is in none of them gets a plane of itself alone. All ranks call
    /// it with the same groups, in the same order where there are several divisions, and then
    /// [`DataPlane::warm_up`] on what they get.
    ///
    /// Planes are independent of each other: each has its own order of calls, and the ranks of one may be in
    /// calls of others in between, in whatever order, as long as none waits for a call that waits for its
    /// own. On GPUs that is so once they are warmed up; calls of several planes then run at once where their
    /// streams differ. Failures name ranks of the world, and end all planes.
    ///
    /// # Errors
    /// Groups that are not the same on all ranks or hold a rank twice; a failure of a rank or of the
    /// transport.
    pub fn divide(&mut self, groups: &[Vec<usize>]) -> Result<Box<dyn DataPlane>> {
        self.data.split(groups)
    }

    /// What all of this rank's planes have moved so far.
    pub fn traffic(&self) -> Traffic {
        self.data.rank_traffic()
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
