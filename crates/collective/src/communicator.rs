//! A rank's two planes, and the transports that they come from.

use std::fmt;

use crate::control::ControlPlane;
use crate::counted::{CountedControl, CountedData};
use crate::data::DataPlane;
use crate::host::{HostControl, HostData};
use crate::solo::SoloLink;

/// How one rank talks to the others. It belongs to the worker's thread; a worker may put another data plane
/// in place of the one it was given.
pub struct Communicator {
    /// Small host messages.
    pub control: Box<dyn ControlPlane>,
    /// Device regions.
    pub data: Box<dyn DataPlane>,
}

impl Communicator {
    /// A world of one.
    pub fn solo() -> Self {
        Communicator {
            control: Box::new(HostControl::new(SoloLink)),
            data: Box::new(HostData::new(SoloLink)),
        }
    }

    /// Rank `rank` of `world_size` without the others: for runs on Meta. `rank` must be below `world_size`.
    pub fn counted(rank: usize, world_size: usize) -> Self {
        debug_assert!(rank < world_size, "rank {rank} of {world_size}");
        Communicator {
            control: Box::new(CountedControl { rank, world_size, calls: 0 }),
            data: Box::new(CountedData::new(rank, (0..world_size).collect())),
        }
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
