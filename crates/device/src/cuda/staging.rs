//! Staging: pinned host memory for copies that do not block the host.
#![allow(unsafe_code)] // the driver copies between addresses

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

use super::error::{Named, Result};
use super::pinned::Pinned;
use super::streams::{EventPool, Point};
use crate::parallel::for_tasks;

/// Most bytes of all staging blocks: of a longer copy, the host fills the rest while the device copies.
pub const STAGED_BYTES: usize = STAGED_BLOCK_BYTES * MOST_BLOCKS;
/// Bytes of one staging block: a longer copy is made in parts of this size.
pub const STAGED_BLOCK_BYTES: usize = 1 << 20;
/// Number of staging blocks at first. If all are in use, the host waits for the oldest copy.
const BLOCKS: usize = 16;
/// Maximum number of staging blocks.
const MOST_BLOCKS: usize = 256;
/// Most blocks that are filled in parallel, while the device copies the others.
const FILLED_BLOCKS: usize = BLOCKS / 2;
/// Bytes that a thread fills at once. One thread does not reach the memory's rate.
const FILLED_BYTES: usize = STAGED_BLOCK_BYTES / 4;
/// Maximum bytes of a value that is fetched without waiting.
pub(crate) const FETCH_BYTES: usize = 256;
/// Number of fetches that can be pending without a driver call, which must not happen while ranks wait for
/// each other: the results of two steps, and loss and counts of three validation micro-batches.
const FETCHES: usize = 8;

struct Block {
    memory: Pinned,
    /// End of the last copy that used the block; `None` if unused.
    busy: Option<Point>,
}

pub(crate) struct Staging {
    context: Arc<CudaContext>,
    blocks: Vec<Block>,
    next: usize,
    events: Rc<EventPool>,
}

impl Staging {
    pub(crate) fn new(context: &Arc<CudaContext>, events: &Rc<EventPool>) -> Result<Self> {
        let block = |_| Ok(Block { memory: Pinned::new(context, STAGED_BLOCK_BYTES)?, busy: None });
        let blocks = (0..BLOCKS).map(block).collect::<Result<_>>()?;
        Ok(Staging { context: Arc::clone(context), blocks, next: 0, events: Rc::clone(events) })
    }

    /// Adds blocks for two copies of `bytes` bytes, so that the host fills one while the device still waits
    /// to copy the other. If the driver refuses more pinned memory, copies wait for each other instead.
    fn grow_for(&mut self, bytes: usize) {
        let wanted = (2 * bytes.div_ceil(STAGED_BLOCK_BYTES)).min(MOST_BLOCKS);
        while self.blocks.len() < wanted {
            let Ok(memory) = Pinned::new(&self.context, STAGED_BLOCK_BYTES) else { return };
            self.blocks.push(Block { memory, busy: None });
        }
    }

    fn next(&mut self) -> Result<&mut Block> {
        let index = self.next;
        self.next = (index + 1) % self.blocks.len();
        let block = &mut self.blocks[index];
        if let Some(busy) = block.busy.take() {
            busy.wait()?;
        }
        Ok(block)
    }

    /// Enqueues a copy of `bytes` bytes to `address`. `fill(first, part)` writes the bytes from `first` on,
    /// for several parts in parallel, and is not called after this call.
    pub(crate) fn upload(
        &mut self,
        bytes: usize,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
        address: u64,
        stream: sys::CUstream,
    ) -> Result<()> {
        self.grow_for(bytes);
        let mut done = 0;
        while done < bytes {
            let left = (bytes - done).div_ceil(STAGED_BLOCK_BYTES);
            let count = left.min(FILLED_BLOCKS).min(self.blocks.len() - self.next);
            let first = self.next;
            self.next = (first + count) % self.blocks.len();
            let blocks = &mut self.blocks[first..][..count];
            for block in &mut *blocks {
                if let Some(busy) = block.busy.take() {
                    busy.wait()?;
                }
            }
            let parts = |index: usize| {
                let first = done + index * STAGED_BLOCK_BYTES;
                first..bytes.min(first + STAGED_BLOCK_BYTES)
            };
            let tasks = blocks.iter_mut().enumerate().flat_map(|(index, block)| {
                let part = parts(index);
                let pieces = block.memory.slice_mut()[..part.len()].chunks_mut(FILLED_BYTES);
                pieces.enumerate().map(move |(piece, bytes)| (part.start + piece * FILLED_BYTES, bytes))
            });
            for_tasks(tasks.collect(), |(first, part)| fill(first, part));
            for (index, block) in blocks.iter_mut().enumerate() {
                let part = parts(index);
                let source = &block.memory.slice()[..part.len()];
                let target = address + part.start as u64;
                // SAFETY: the target was checked to be inside a live buffer; the source is not changed
                // before `busy` is done.
                unsafe { result::memcpy_htod_async(target, source, stream) }.named("cuMemcpyHtoDAsync")?;
                block.busy = Some(self.events.record(stream)?);
            }
            done += count * STAGED_BLOCK_BYTES;
        }
        Ok(())
    }

    /// Copies from `address` to `values` and waits for the copy.
    pub(crate) fn download(&mut self, address: u64, values: &mut [u8], stream: sys::CUstream) -> Result<()> {
        let events = Rc::clone(&self.events);
        let count = self.blocks.len();
        // All blocks are used in each round: the host empties one while another is copied.
        for (round, values) in values.chunks_mut(count * STAGED_BLOCK_BYTES).enumerate() {
            let first = self.next;
            for (index, values) in values.chunks(STAGED_BLOCK_BYTES).enumerate() {
                let source = address + ((round * count + index) * STAGED_BLOCK_BYTES) as u64;
                let block = self.next()?;
                let target = &mut block.memory.slice_mut()[..values.len()];
                // SAFETY: the source was checked to be inside a live buffer; the target is not read before
                // `busy` is done.
                unsafe { result::memcpy_dtoh_async(target, source, stream) }.named("cuMemcpyDtoHAsync")?;
                block.busy = Some(events.record(stream)?);
            }
            for (index, values) in values.chunks_mut(STAGED_BLOCK_BYTES).enumerate() {
                let block = &mut self.blocks[(first + index) % count];
                if let Some(busy) = block.busy.take() {
                    busy.wait()?;
                }
                values.copy_from_slice(&block.memory.slice()[..values.len()]);
            }
        }
        Ok(())
    }
}

/// Small pinned blocks for values that are read after their copies have finished.
pub(crate) struct Fetches {
    context: Arc<CudaContext>,
    events: Rc<EventPool>,
    idle: RefCell<Vec<Pinned>>,
}

impl Fetches {
    pub(crate) fn new(context: &Arc<CudaContext>, events: &Rc<EventPool>) -> Result<Rc<Self>> {
        let idle = (0..FETCHES).map(|_| Pinned::new(context, FETCH_BYTES)).collect::<Result<_>>()?;
        let context = Arc::clone(context);
        let events = Rc::clone(events);
        Ok(Rc::new(Fetches { context, events, idle: RefCell::new(idle) }))
    }

    /// Enqueues a copy of `bytes` bytes, at most [`FETCH_BYTES`], from `address` to a pinned block.
    pub(crate) fn begin(self: &Rc<Self>, address: u64, bytes: usize, stream: sys::CUstream) -> Result<Fetch> {
        let idle = self.idle.borrow_mut().pop();
        let mut block = match idle {
            Some(block) => block,
            None => Pinned::new(&self.context, FETCH_BYTES)?,
        };
        let target = &mut block.slice_mut()[..bytes];
        // SAFETY: the source was checked to be inside a live buffer; the target is read only after `done`.
        unsafe { result::memcpy_dtoh_async(target, address, stream) }.named("cuMemcpyDtoHAsync")?;
        let done = self.events.record(stream)?;
        Ok(Fetch { owner: Rc::clone(self), block: Some(block), bytes, done })
    }
}

/// A value that is being copied to the host.
pub(crate) struct Fetch {
    owner: Rc<Fetches>,
    block: Option<Pinned>,
    bytes: usize,
    done: Point,
}

impl Fetch {
    /// Waits for the value, but not for work enqueued after its copy.
    pub(crate) fn wait(&self) -> Result<Vec<u8>> {
        self.done.wait()?;
        Ok(self.block.as_ref().map(|block| block.slice()[..self.bytes].to_vec()).unwrap_or_default())
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        // The block is reused only when the copy is done, even if nobody read the value.
        let over = self.done.wait().is_ok();
        if let (Some(block), true) = (self.block.take(), over) {
            self.owner.idle.borrow_mut().push(block);
        }
    }
}
