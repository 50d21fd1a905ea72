//! Host memory that the GPU copies to and from by itself, so that a copy does not stop the host.
#![allow(unsafe_code)] // pinned memory is the driver's

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

use super::error::{Named, Result};
use super::streams::{EventPool, Point};

/// Bytes of one piece of a copy.
const PIECE: usize = 1 << 20;
/// Pieces that may be under way at once; a host that is further ahead waits for the oldest.
const PIECES: usize = 16;
/// Bytes of the largest value that is fetched without waiting.
pub(crate) const FETCH_BYTES: usize = 256;

/// A pinned block of host memory.
struct Pinned {
    context: Arc<CudaContext>,
    pointer: *mut u8,
    bytes: usize,
}

impl Pinned {
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        // SAFETY: the memory is written before it is read, and freed in `drop`.
        let pointer = unsafe { result::malloc_host(bytes, 0) }.named("cuMemHostAlloc")?;
        // SAFETY: the block has `bytes` bytes.
        unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), 0, bytes) };
        Ok(Pinned { context: Arc::clone(context), pointer: pointer.cast(), bytes })
    }

    fn slice(&self) -> &[u8] {
        // SAFETY: the block is alive and initialised; callers wait for copies into it before they look.
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }

    fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and callers wait for copies out of it before they write.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: allocated in `new`, freed once; the driver waits for copies under way.
        let _ = unsafe { result::free_host(self.pointer.cast()) };
    }
}

struct Piece {
    memory: Pinned,
    /// The end of the last copy that used it.
    busy: Option<Point>,
}

/// The ring of pieces that copies go through.
pub(crate) struct Staging {
    pieces: Vec<Piece>,
    next: usize,
    events: Rc<EventPool>,
}

impl Staging {
    pub(crate) fn new(context: &Arc<CudaContext>, events: &Rc<EventPool>) -> Result<Self> {
        let piece = |_| Ok(Piece { memory: Pinned::new(context, PIECE)?, busy: None });
        let pieces = (0..PIECES).map(piece).collect::<Result<_>>()?;
        Ok(Staging { pieces, next: 0, events: Rc::clone(events) })
    }

    fn next(&mut self) -> Result<&mut Piece> {
        let index = self.next;
        self.next = (index + 1) % PIECES;
        let piece = &mut self.pieces[index];
        if let Some(busy) = piece.busy.take() {
            busy.wait()?;
        }
        Ok(piece)
    }

    /// Enqueues a copy of `values` to `address`; they may change once it returns.
    pub(crate) fn upload(&mut self, values: &[u8], address: u64, stream: sys::CUstream) -> Result<()> {
        let events = Rc::clone(&self.events);
        for (index, values) in values.chunks(PIECE).enumerate() {
            let piece = self.next()?;
            piece.memory.slice_mut()[..values.len()].copy_from_slice(values);
            let source = &piece.memory.slice()[..values.len()];
            let target = address + (index * PIECE) as u64;
            // SAFETY: the target was checked to be inside a live buffer; the source stays untouched until
            // `busy` is over.
            unsafe { result::memcpy_htod_async(target, source, stream) }.named("cuMemcpyHtoDAsync")?;
            piece.busy = Some(events.record(stream)?);
        }
        Ok(())
    }

    /// Copies from `address` to `values` and waits for it.
    pub(crate) fn download(&mut self, address: u64, values: &mut [u8], stream: sys::CUstream) -> Result<()> {
        let events = Rc::clone(&self.events);
        // As many pieces at a time as there are: the copy of one runs while the host empties another.
        for (round, values) in values.chunks_mut(PIECE * PIECES).enumerate() {
            let first = self.next;
            for (index, values) in values.chunks(PIECE).enumerate() {
                let source = address + ((round * PIECES + index) * PIECE) as u64;
                let piece = self.next()?;
                let target = &mut piece.memory.slice_mut()[..values.len()];
                // SAFETY: the source was checked to be inside a live buffer; the target is not looked at
                // before `busy` is over.
                unsafe { result::memcpy_dtoh_async(target, source, stream) }.named("cuMemcpyDtoHAsync")?;
                piece.busy = Some(events.record(stream)?);
            }
            for (index, values) in values.chunks_mut(PIECE).enumerate() {
                let piece = &mut self.pieces[(first + index) % PIECES];
                if let Some(busy) = piece.busy.take() {
                    busy.wait()?;
                }
                values.copy_from_slice(&piece.memory.slice()[..values.len()]);
            }
        }
        Ok(())
    }
}

/// Small pinned blocks for values that are read later.
pub(crate) struct Fetches {
    context: Arc<CudaContext>,
    events: Rc<EventPool>,
    idle: RefCell<Vec<Pinned>>,
}

impl Fetches {
    pub(crate) fn new(context: &Arc<CudaContext>, events: &Rc<EventPool>) -> Rc<Self> {
        Rc::new(Fetches { context: Arc::clone(context), events: Rc::clone(events), idle: RefCell::default() })
    }

    /// Enqueues a copy of `bytes` bytes, at most [`FETCH_BYTES`], from `address`.
    pub(crate) fn begin(self: &Rc<Self>, address: u64, bytes: usize, stream: sys::CUstream) -> Result<Fetch> {
        let idle = self.idle.borrow_mut().pop();
        let mut block = match idle {
            Some(block) => block,
            None => Pinned::new(&self.context, FETCH_BYTES)?,
        };
        let target = &mut block.slice_mut()[..bytes];
        // SAFETY: the source was checked to be inside a live buffer; the target is looked at after `done`
        // alone.
        unsafe { result::memcpy_dtoh_async(target, address, stream) }.named("cuMemcpyDtoHAsync")?;
        let done = self.events.record(stream)?;
        Ok(Fetch { owner: Rc::clone(self), block: Some(block), bytes, done })
    }
}

/// A value on its way to the host.
pub(crate) struct Fetch {
    owner: Rc<Fetches>,
    block: Option<Pinned>,
    bytes: usize,
    done: Point,
}

impl Fetch {
    /// Waits for it, and for nothing that was enqueued later.
    pub(crate) fn wait(&self) -> Result<Vec<u8>> {
        self.done.wait()?;
        Ok(self.block.as_ref().map(|block| block.slice()[..self.bytes].to_vec()).unwrap_or_default())
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        // Used again only when the copy is over, whether anybody looked or not.
        let over = self.done.wait().is_ok();
        if let (Some(block), true) = (self.block.take(), over) {
            self.owner.idle.borrow_mut().push(block);
        }
    }
}
