//! A rank's two planes, and the transports that provide them.

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
use crate::shared_gpu;
use crate::shared_plane::SharedPlane;
use crate::solo::SoloLink;
use crate::threads::link::ThreadLink;
use crate::traffic::{Meter, Traffic};

/// One rank's end of a transport. It belongs to the worker's thread, which may replace the data plane.
pub struct Communicator {
    /// Small host messages.
    pub control: Box<dyn ControlPlane>,
    /// Device regions.
    pub data: SharedPlane,
    /// The buffer that NCCL's plane would allocate on a GPU; used by counted communicators.
    scratch: Option<Rc<Buffer>>,
    /// The link of the data plane, if the ranks are threads of one process.
    pub(crate) threads: Option<ThreadLink>,
}

impl Communicator {
    pub(crate) fn new(control: impl ControlPlane + 'static, data: impl DataPlane + 'static) -> Self {
        let (control, data) = (Box::new(control), SharedPlane::new(data));
        Communicator { control, data, scratch: None, threads: None }
    }

    /// Returns the communicator of a rank that is a thread, with the link of its data plane.
    pub(crate) fn of_threads(self, link: ThreadLink) -> Self {
        Communicator { threads: Some(link), ..self }
    }

    /// Creates the communicator of a world of one.
    pub fn solo() -> Self {
        Communicator::new(HostControl::new(SoloLink), HostData::new(SoloLink, Meter::default()))
    }

    /// Creates the communicator of rank `rank` of `world_size` without the others, for runs on Meta. `rank`
    /// must be below `world_size`.
    pub fn counted(rank: usize, world_size: usize) -> Self {
        debug_assert!(rank < world_size, "rank {rank} of {world_size}");
        let data = CountedData::new(rank, (0..world_size).collect(), Meter::default());
        Communicator::new(CountedControl { rank, world_size, calls: 0 }, data)
    }

    /// Connects the ranks' GPUs through NCCL, for device regions; the control plane stays. Each rank calls it
    /// with its own GPU, from the thread that makes all its calls and before it gives that GPU work;
    /// [`DataPlane::warm_up`] follows. A wait longer than `timeout` is an error, including waits of `device`
    /// itself, which check for failures from now on ([`Device::set_guard`]).
    ///
    /// A world of one is returned unchanged. So is a rank on a Meta device that imitates a GPU, except that
    /// it allocates the same memory.
    ///
    /// A rank that fails should call [`ControlPlane::fail`] before it drops the communicator: NCCL destroys a
    /// group's communicator on all ranks together, and a rank that knows of no failure waits briefly for the
    /// others.
    ///
    /// # Errors
    /// A device that neither is a GPU nor imitates one; NCCL is missing, has another version than on rank 0,
    /// or fails; a rank does not arrive.
    pub fn over_nccl(mut self, device: &Device, timeout: Duration) -> Result<Self> {
        if self.world_size() == 1 {
            return Ok(self);
        }
        let scratch = nccl::scratch(self.rank(), device)?;
        if device.is_meta() {
            self.scratch = Some(scratch);
            self.data.log_on(device);
        } else {
            self.data = SharedPlane::of_box(nccl::connect(&mut *self.control, device, timeout, scratch)?);
        }
        Ok(self)
    }

    /// Connects ranks that are threads of one process and use one GPU, for device regions; the control plane
    /// stays. Each rank calls it with its own device on that GPU. Nothing is allocated.
    ///
    /// A world of one is returned unchanged, and so is a rank on a Meta device that imitates a GPU.
    ///
    /// # Errors
    /// A device that neither is a GPU nor imitates one, ranks that are not threads of one process or use
    /// several GPUs, a rank that does not arrive.
    pub fn over_shared_gpu(mut self, device: &Device) -> Result<Self> {
        if self.world_size() > 1 && device.is_meta() && device.is_cuda_like() {
            self.data.log_on(device);
        } else if self.world_size() > 1 {
            let data = shared_gpu::connect(&mut *self.control, device, self.threads.as_mut())?;
            self.data = SharedPlane::of_box(data);
        }
        Ok(self)
    }

    /// Splits the ranks into groups with a data plane each, and returns the plane of this rank's group. A
    /// rank's number in the group is its index in the list; a rank in no group gets a plane of its own. All
    /// ranks call it with the same groups, repeated splits in the same order, and then [`DataPlane::warm_up`]
    /// on the planes.
    ///
    /// Planes are independent: each has its own sequence of calls, and its ranks may be in calls of other
    /// planes in between, as long as calls do not wait for each other in a cycle. On GPUs this holds after
    /// the warm-up; calls of several planes then run concurrently on different streams. Failures name ranks
    /// of the world, and end all planes.
    ///
    /// # Errors
    /// Groups that differ between ranks or contain a rank twice; a failure of a rank or of the transport.
    pub fn divide(&mut self, groups: &[Vec<usize>]) -> Result<SharedPlane> {
        Ok(SharedPlane::of_box(self.data.split(groups)?))
    }

    /// Traffic of all planes of this rank so far.
    pub fn traffic(&self) -> Traffic {
        self.data.rank_traffic()
    }

    /// This rank's number in the world.
    pub fn rank(&self) -> usize {
        self.control.rank()
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.control.world_size()
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.world_size())
    }
}
