//! Offloaded activations: between forward and backward, the inputs of recomputed segments are in host memory.
//!
//! An input is copied to a host pool while its segment computes. Its device memory is freed when the next
//! input is stored. While a segment runs backward, the previous segment's input is copied back. The compute
//! stream waits before memory that a copy reads is freed, so the bytes of a step do not depend on the
//! device's progress.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use device::{Category, Device, Event, Request, StreamKind};
use tensor::Tensor;

use crate::error::{AutogradError, Result};

/// The offloaded activations of a device. Clones share them.
#[derive(Clone, Debug)]
pub struct Offload(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    device: Device,
    host: Device,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the next input to store.
    next: u64,
    /// The stored inputs, by micro-batch and number.
    kept: BTreeMap<(u64, u64), Kept>,
    /// The inputs stored last, with the event after their copies; kept until the compute stream waits for it.
    leaving: Option<(Vec<Tensor>, Event)>,
    /// Event after the last copy from the pool, which must precede new writes to the pool.
    returned: Option<Event>,
}

/// Memory of an offloaded input.
#[derive(Debug)]
enum Kept {
    /// In the host pool.
    Away(Tensor),
    /// On the device again, or being copied there.
    Back(Tensor),
}

/// An input of a segment, kept for backward.
#[derive(Debug)]
pub(crate) enum Input {
    /// On the device.
    Here(Tensor),
    /// In a host pool, until backward takes it or the segment is dropped.
    Away(Offloaded),
}

/// Handle of an input in a pool.
#[derive(Debug)]
pub(crate) struct Offloaded {
    offload: Offload,
    key: (u64, u64),
}

impl Offload {
    /// Creates an empty store for activations of `device` in its host pool `host`.
    pub fn new(device: &Device, host: &Device) -> Self {
        let device = device.clone();
        let host = host.clone();
        Offload(Rc::new(Shared { device, host, state: RefCell::default() }))
    }

    /// Starts to copy the inputs of a segment of `micro_batch` to the pool.
    ///
    /// # Errors
    /// Host memory is exhausted, or the driver failed.
    pub(crate) fn keep(&self, micro_batch: u64, inputs: Vec<Tensor>) -> Result<Vec<Input>> {
        let Shared { device, host, state } = &*self.0;
        let mut state = state.borrow_mut();
        state.settle(device)?;
        if let Some(returned) = &state.returned {
            device.wait(StreamKind::Snapshot, returned)?;
        }
        // Access makes compute wait for inputs that are still arriving, for example from another stage.
        for input in &inputs {
            let _ = input.region();
        }
        device.wait(StreamKind::Snapshot, &device.record(StreamKind::Compute)?)?;
        let mut kept = Vec::with_capacity(inputs.len());
        for input in &inputs {
            let request = Request::new(Category::Activation, "offload");
            let away = Tensor::empty(host, input.shape(), input.dtype(), request)?;
            input.copy_to_pool(&away, StreamKind::Snapshot)?;
            let key = (micro_batch, state.next);
            state.next += 1;
            state.kept.insert(key, Kept::Away(away));
            kept.push(Input::Away(Offloaded { offload: self.clone(), key }));
        }
        state.leaving = Some((inputs, device.record(StreamKind::Snapshot)?));
        Ok(kept)
    }

    /// Removes and returns an input, then starts to copy back the previous input of the same micro-batch.
    fn take(&self, key: (u64, u64)) -> Result<Option<Tensor>> {
        let Shared { device, state, .. } = &*self.0;
        let mut state = state.borrow_mut();
        state.settle(device)?;
        state.bring(device, key)?;
        let taken = state.kept.remove(&key);
        let (micro_batch, number) = key;
        let before = state.kept.range((micro_batch, 0)..(micro_batch, number)).next_back();
        if let Some(before) = before.map(|(before, _)| *before) {
            state.bring(device, before)?;
        }
        Ok(taken.map(|(Kept::Away(tensor) | Kept::Back(tensor))| tensor))
    }

    /// Removes an input that backward does not need.
    fn forget(&self, key: (u64, u64)) {
        let Shared { device, state, .. } = &*self.0;
        let mut state = state.borrow_mut();
        if state.kept.remove(&key).is_some() {
            // An error of the driver recurs with the next call that gives it work.
            let _ = state.settle(device);
        }
    }
}

impl State {
    /// Frees the device memory of the inputs stored last, once they are copied.
    fn settle(&mut self, device: &Device) -> Result<()> {
        if let Some((_, copied)) = &self.leaving {
            device.wait(StreamKind::Compute, copied)?;
        }
        self.leaving = None;
        Ok(())
    }

    /// Starts to copy an input back to the device, if it is in the pool. The first operator that reads it
    /// waits.
    fn bring(&mut self, device: &Device, key: (u64, u64)) -> Result<()> {
        let Some(Kept::Away(away)) = self.kept.get(&key) else { return Ok(()) };
        let request = Request::new(Category::Activation, "offload");
        let back = Tensor::empty(device, away.shape(), away.dtype(), request)?;
        // After the copy to the pool, and after compute work that used the memory.
        device.wait(StreamKind::Input, &device.record(StreamKind::Snapshot)?)?;
        device.wait(StreamKind::Input, &device.record(StreamKind::Compute)?)?;
        back.copy_from_pool(away, StreamKind::Input)?;
        back.arrives(&device.arrival(StreamKind::Input)?);
        self.returned = Some(device.record(StreamKind::Input)?);
        self.kept.insert(key, Kept::Back(back));
        Ok(())
    }
}

impl Input {
    /// Returns the input on the device.
    pub(crate) fn take(self) -> Result<Tensor> {
        match self {
            Input::Here(tensor) => Ok(tensor),
            Input::Away(offloaded) => {
                let Offloaded { offload, key } = &offloaded;
                let gone = || AutogradError::NotRecorded;
                offload.take(*key)?.ok_or_else(gone)
            }
        }
    }
}

impl Drop for Offloaded {
    fn drop(&mut self) {
        self.offload.forget(self.key);
    }
}
