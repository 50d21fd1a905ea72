//! The device that a host pool belongs to, and waits for its copies.

use std::cell::RefCell;

use super::Device;
use crate::error::Result;
use crate::event::Event;
use crate::stream::StreamKind;

/// The device that copies to and from a pool, and its pending copies.
pub(crate) struct Served {
    device: Device,
    /// End of the last copies to the pool; `None` once the host has waited for them.
    filled: RefCell<Option<Event>>,
}

impl Served {
    pub(crate) fn by(device: &Device) -> Self {
        Served { device: device.clone(), filled: RefCell::default() }
    }

    /// Returns whether copies to the pool may still be running.
    pub(super) fn is_filling(&self) -> bool {
        let filled = self.filled.borrow();
        let point = filled.as_ref().and_then(|event| event.point.as_ref());
        point.is_some_and(|point| !point.is_over().unwrap_or(false))
    }
}

impl Device {
    /// Makes the host's next access to this pool wait for `event`, which follows the copies to it and all
    /// earlier ones.
    pub fn fill_until(&self, event: Event) {
        if let Some(served) = &self.0.served {
            *served.filled.borrow_mut() = Some(event);
        }
    }

    /// Makes work enqueued on `stream` of this device from now on start after the copies to `pool` so far.
    pub fn wait_for_pool(&self, pool: &Device, stream: StreamKind) -> Result<()> {
        let filled = pool.0.served.as_ref().and_then(|served| served.filled.borrow().clone());
        filled.map_or(Ok(()), |event| self.wait(stream, &event))
    }

    /// Waits on the host for copies to this device's memory, if it is a pool.
    pub fn settle(&self) -> Result<()> {
        let Some(served) = &self.0.served else { return Ok(()) };
        let filled = served.filled.take();
        filled.map_or(Ok(()), |event| served.device.wait_on_host(&event))
    }
}
