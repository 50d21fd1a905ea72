//! A rank's control channel and process group, and the transports that provide them.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use device::{Buffer, Device};

use crate::backend::GroupBackend;
use crate::control::ControlChannel;
use crate::counted::{CountedBackend, CountedControl};
use crate::error::Result;
use crate::host::{HostBackend, HostControl};
use crate::nccl;
use crate::process_group::ProcessGroup;
use crate::shared_gpu;
use crate::solo::SoloLink;
use crate::threads::link::ThreadLink;
use crate::traffic::Traffic;

/// One rank's end of a transport. It belongs to the worker's thread, which may replace the process group.
pub struct Communicator {
    /// Small host messages.
    pub control: Box<dyn ControlChannel>,
    /// The group of all ranks, for device regions.
    pub group: ProcessGroup,
    /// The buffer that NCCL's backend would allocate on a GPU; used by counted communicators.
    scratch: Option<Rc<Buffer>>,
    /// The link of the process group, if the ranks are threads of one process.
    pub(crate) threads: Option<ThreadLink>,
}

impl Communicator {
    pub(crate) fn new(control: impl ControlChannel + 'static, backend: impl GroupBackend + 'static) -> Self {
        let group = ProcessGroup::new(control.rank(), control.world_size(), backend);
        Communicator { control: Box::new(control), group, scratch: None, threads: None }
    }

    /// Returns the communicator of a rank that is a thread, with the link of its process group.
    pub(crate) fn of_threads(self, link: ThreadLink) -> Self {
        Communicator { threads: Some(link), ..self }
    }

    /// Creates the communicator of a world of one.
    pub fn solo() -> Self {
        Communicator::new(HostControl::new(SoloLink), HostBackend::new(SoloLink))
    }

    /// Creates the communicator of rank `rank` of `world_size` without the others, for runs on Meta. `rank`
    /// must be below `world_size`.
    pub fn counted(rank: usize, world_size: usize) -> Self {
        debug_assert!(rank < world_size, "rank {rank} of {world_size}");
        let backend = CountedBackend::new(rank, world_size);
        Communicator::new(CountedControl { rank, world_size, calls: 0 }, backend)
    }

    /// Connects the ranks' GPUs through NCCL, for device regions; the control channel stays. Each rank calls
    /// it with its own GPU, from the thread that makes all its calls and before it gives that GPU work;
    /// [`ProcessGroup::warm_up`] follows. A wait longer than `timeout` is an error, including waits of
    /// `device` itself, which check for failures from now on ([`Device::set_guard`]).
    ///
    /// A world of one is returned unchanged. So is a rank on a Meta device that imitates a GPU, except that
    /// it allocates the same memory.
    ///
    /// A rank that fails should call [`ControlChannel::fail`] before it drops the communicator: NCCL destroys
    /// a group's communicator on all ranks together, and a rank that knows of no failure waits briefly for
    /// the others.
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
            self.group.log_on(device);
        } else {
            let backend = nccl::connect(&mut *self.control, device, timeout, scratch)?;
            self.group = ProcessGroup::from_backend(self.rank(), self.world_size(), backend);
        }
        Ok(self)
    }

    /// Connects ranks that are threads of one process and use one GPU, for device regions; the control
    /// channel stays. Each rank calls it with its own device on that GPU. Nothing is allocated.
    ///
    /// A world of one is returned unchanged, and so is a rank on a Meta device that imitates a GPU.
    ///
    /// # Errors
    /// A device that neither is a GPU nor imitates one, ranks that are not threads of one process or use
    /// several GPUs, a rank that does not arrive.
    pub fn over_shared_gpu(mut self, device: &Device) -> Result<Self> {
        if self.world_size() > 1 && device.is_meta() && device.is_cuda_like() {
            self.group.log_on(device);
        } else if self.world_size() > 1 {
            let backend = shared_gpu::connect(&mut *self.control, device, self.threads.as_mut())?;
            self.group = ProcessGroup::from_backend(self.rank(), self.world_size(), backend);
        }
        Ok(self)
    }

    /// Splits the ranks into process groups, and returns this rank's. A rank's number in the group is its
    /// index in the list; a rank in no group gets a group of its own. All ranks call it with the same groups,
    /// repeated splits in the same order, and then [`ProcessGroup::warm_up`].
    ///
    /// Groups are independent: each has its own sequence of calls, and its ranks may be in calls of other
    /// groups in between, as long as calls do not wait for each other in a cycle. On GPUs this holds after
    /// the warm-up; calls of several groups then run concurrently on different streams. Failures name ranks
    /// of the world, and end all groups.
    ///
    /// # Errors
    /// Groups that differ between ranks or contain a rank twice; a failure of a rank or of the transport.
    pub fn divide(&mut self, groups: &[Vec<usize>]) -> Result<ProcessGroup> {
        self.group.split(groups)
    }

    /// Traffic of all groups of this rank so far.
    pub fn traffic(&self) -> Traffic {
        self.group.rank_traffic()
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
