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

/// One rank's end of a transport: a control channel for the host and a process group for devices. Used on the
/// worker's thread only.
pub struct Communicator {
    /// Channel for small host messages.
    pub control: Box<dyn ControlChannel>,
    /// The group of all ranks, which moves device regions.
    pub group: ProcessGroup,
    /// On a counted communicator, stands for the buffer that NCCL's backend would allocate.
    scratch: Option<Rc<Buffer>>,
    /// Connection to the other ranks if they are threads of one process.
    pub(crate) threads: Option<ThreadLink>,
}

impl Communicator {
    pub(crate) fn new(control: impl ControlChannel + 'static, backend: impl GroupBackend + 'static) -> Self {
        let group = ProcessGroup::new(control.rank(), control.world_size(), backend);
        Communicator { control: Box::new(control), group, scratch: None, threads: None }
    }

    /// Adds the link of a rank that is a thread.
    pub(crate) fn of_threads(self, link: ThreadLink) -> Self {
        Communicator { threads: Some(link), ..self }
    }

    /// Creates the communicator of a single rank.
    pub fn solo() -> Self {
        Communicator::new(HostControl::new(SoloLink), HostBackend::new(SoloLink))
    }

    /// Creates the communicator of rank `rank` of `world_size` without the other ranks, for runs on Meta.
    /// `rank` must be below `world_size`.
    pub fn counted(rank: usize, world_size: usize) -> Self {
        debug_assert!(rank < world_size, "rank {rank} of {world_size}");
        let backend = CountedBackend::new(rank, world_size);
        Communicator::new(CountedControl { rank, world_size, calls: 0 }, backend)
    }

    /// Moves device regions through NCCL from now on; the control channel stays as it is. Each rank passes
    /// its own GPU, before giving it work, on the thread that makes all its calls; [`ProcessGroup::warm_up`]
    /// follows. Waits longer than `timeout` are errors. This includes waits of `device` itself, which check
    /// for failures from now on ([`Device::set_guard`]).
    ///
    /// A world of one is returned unchanged. A Meta device that imitates a GPU only allocates the same
    /// memory.
    ///
    /// A failing rank should call [`ControlChannel::fail`] before it drops the communicator. NCCL destroys
    /// communicators on all ranks together, so a rank that knows of no failure waits briefly for the others.
    ///
    /// # Errors
    /// The device is not a GPU and does not imitate one, NCCL is missing, fails or differs in version from
    /// rank 0's, or a rank does not arrive.
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

    /// Moves device regions between threads of one process that use one GPU; the control channel stays as it
    /// is. Each rank passes its own device on that GPU. Allocates nothing.
    ///
    /// A world of one, and a Meta device that imitates a GPU, move nothing.
    ///
    /// # Errors
    /// The device is not a GPU and does not imitate one, the ranks are not threads of one process, they use
    /// several GPUs, or a rank does not arrive.
    pub fn over_shared_gpu(mut self, device: &Device) -> Result<Self> {
        if self.world_size() > 1 && device.is_meta() && device.is_cuda_like() {
            self.group.log_on(device);
        } else if self.world_size() > 1 {
            let backend = shared_gpu::connect(&mut *self.control, device, self.threads.as_mut())?;
            self.group = ProcessGroup::from_backend(self.rank(), self.world_size(), backend);
        }
        Ok(self)
    }

    /// Splits the ranks into process groups, and returns this rank's group. A rank's number in the group is
    /// its index in the list; an unlisted rank gets a group of its own. All ranks make the same splits in the
    /// same order, followed by [`ProcessGroup::warm_up`].
    ///
    /// Groups are independent: each numbers its own calls. Ranks may interleave calls of several groups, as
    /// long as these do not wait for each other in a cycle. On GPUs, calls of several groups run concurrently
    /// on different streams after the warm-up. A failure names ranks of the world and ends all groups.
    ///
    /// # Errors
    /// Ranks passed different groups, a rank is listed twice, or a rank or the transport failed.
    pub fn divide(&mut self, groups: &[Vec<usize>]) -> Result<ProcessGroup> {
        self.group.split(groups)
    }

    /// Bytes and calls of all groups of this rank so far.
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
