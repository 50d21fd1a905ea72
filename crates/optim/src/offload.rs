//! Offloaded state: it is kept in a host pool, and each update brings it to the device and back in pieces.
//!
//! A piece is the state of some neighbouring elements. One buffer is filled with a piece while another is
//! updated and a third is emptied. Updates are by element and pieces begin at multiples of
//! [`ops::norm::CHUNK`](tensor::ops::norm::CHUNK), so bits are those of state on the device.

use std::cell::RefCell;
use std::ops::Range;

use device::{Category, DType, Device, Event, Request, StreamKind};
use tensor::ops::norm::CHUNK;
use tensor::ops::optimizer::{BLOCK, Item, Stream};
use tensor::ops::{Table, optimizer};
use tensor::{Result, Tensor, TensorError};

use crate::member::Member;

/// Most elements of a piece: copies of so many take much longer than their launches.
const MOST: usize = 1 << 21;
/// Number of pieces of a small state, at least where it has as many chunks.
const LEAST_PIECES: usize = 8;
/// Number of buffers.
const BUFFERS: usize = 3;
/// Elements to which tensors in a buffer are aligned: 512 bytes in the smallest type.
const ALIGNMENT: usize = 512;

/// The arrays that a pass over a piece copies in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// None.
    Nothing,
    /// Master weights that weights are rounded copies of.
    Masters,
    /// Weights that are in the pool and rounded copies of their masters, which an update does not read.
    Weights,
    /// Master weights and states.
    State,
    /// All of these.
    All,
}

/// The pieces of a group's state, and the buffers through which they pass.
#[derive(Debug)]
pub(crate) struct Offload {
    device: Device,
    host: Device,
    /// The pieces of the first call of an update, and of the other.
    pieces: [Vec<Piece>; 2],
    /// The event after which each buffer may be filled again.
    emptied: RefCell<Vec<Event>>,
}

/// A piece of a group's state.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Index of the piece's buffer.
    buffer: usize,
    spans: Vec<Span>,
    /// Device addresses of the spans' tensors.
    pub(crate) table: Table,
}

/// Neighbouring elements of a slot, with their state in a buffer on the device and in the host pool.
#[derive(Debug)]
pub(crate) struct Span {
    /// Index of the slot.
    pub(crate) index: usize,
    /// The elements.
    pub(crate) range: Range<usize>,
    /// The elements of the slot's weight, in the buffer if they are in the pool.
    pub(crate) weight: Tensor,
    /// Both, if they are in the pool and rounded copies of their masters.
    weights: Option<Pair>,
    /// The master weights, unless these are the weight and that is on the device.
    master: Option<Pair>,
    is_copied: bool,
    states: Vec<Tensor>,
    maxima: Vec<Tensor>,
    /// All of these with their copies in the host pool.
    kept: Vec<Pair>,
    decay: bool,
    stream: Stream,
}

/// A tensor in a buffer and in the host pool.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    device: Tensor,
    host: Tensor,
}

/// Elements of a member in a piece, before they have tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cut {
    member: usize,
    range: Range<usize>,
    /// Index of the first element in the buffer.
    offset: usize,
}

/// The tensors of a buffer.
struct Buffer {
    masters: Option<Tensor>,
    weights: Option<Tensor>,
    states: Vec<Tensor>,
    maxima: Vec<Tensor>,
}

impl Offload {
    /// Allocates the buffers and tables of a group's `members`, whose state is in the pool `host`. The first
    /// `first` of them have a call of their own.
    pub(crate) fn new(
        (device, host): (&Device, &Device),
        members: &[Member],
        first: usize,
        states: DType,
    ) -> Result<Self> {
        let capacity = capacity(members.iter().map(Member::elements).sum());
        let mut calls = Vec::new();
        let mut count = 0;
        for range in [0..first, first..members.len()] {
            let cuts = cut(members[range.clone()].iter().map(Member::elements), range.start, capacity);
            count += cuts.len();
            calls.push(cuts);
        }
        let buffers = (0..count.min(BUFFERS)).map(|_| Buffer::new(device, members, capacity, states));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let mut number = 0;
        let mut piece = |cuts: Vec<Cut>| {
            let buffer = number % BUFFERS;
            number += 1;
            let table = match states {
                DType::U8 => Table::of_quantised(device, cuts.len()),
                _ => Table::of_parameters(device, cuts.len()),
            };
            let span = |cut: Cut| Span::new(device, &members[cut.member], &cut, &buffers[buffer]);
            let spans = cuts.into_iter().map(span).collect::<Result<_>>()?;
            Ok(Piece { buffer, spans, table: table? })
        };
        let mut of_call = |cuts: Vec<Vec<Cut>>| cuts.into_iter().map(&mut piece).collect::<Result<Vec<_>>>();
        let mut calls = calls.into_iter();
        let pieces = [of_call(calls.next().unwrap_or_default())?, of_call(calls.next().unwrap_or_default())?];
        // The buffers' memory may have been another tensor's.
        let emptied = buffers.iter().map(|_| Ok(device.record(StreamKind::Compute)?));
        let emptied = RefCell::new(emptied.collect::<Result<_>>()?);
        Ok(Offload { device: device.clone(), host: host.clone(), pieces, emptied })
    }

    /// Calls `body` for every piece of a call, between copies of its arrays from the host and to it.
    ///
    /// # Errors
    /// Errors of `body`; the driver's.
    pub(crate) fn pass<E: From<TensorError>>(
        &self,
        call: usize,
        [reads, writes]: [Extent; 2],
        mut body: impl FnMut(&Piece) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for piece in &self.pieces[call] {
            self.fill(piece, reads)?;
            body(piece)?;
            self.empty(piece, writes)?;
        }
        Ok(())
    }

    /// Copies arrays of a piece to its buffer, for compute work from now on.
    fn fill(&self, piece: &Piece, extent: Extent) -> Result<()> {
        let emptied = self.emptied.borrow()[piece.buffer].clone();
        self.device.wait(StreamKind::Input, &emptied)?;
        for pair in piece.pairs(extent) {
            pair.device.copy_from_pool(&pair.host, StreamKind::Input)?;
        }
        Ok(self.device.wait(StreamKind::Compute, &self.device.record(StreamKind::Input)?)?)
    }

    /// Copies arrays of a piece from its buffer, after the compute work so far.
    fn empty(&self, piece: &Piece, extent: Extent) -> Result<()> {
        self.device.wait(StreamKind::Snapshot, &self.device.record(StreamKind::Compute)?)?;
        for pair in piece.pairs(extent) {
            pair.device.copy_to_pool(&pair.host, StreamKind::Snapshot)?;
        }
        let emptied = self.device.record(StreamKind::Snapshot)?;
        self.host.fill_until(emptied.clone());
        self.emptied.borrow_mut()[piece.buffer] = emptied;
        Ok(())
    }
}

impl Piece {
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    fn pairs(&self, extent: Extent) -> impl Iterator<Item = &Pair> {
        use Extent::{All, Masters, State, Weights};
        let has = move |extents: &[Extent]| extents.contains(&extent);
        self.spans.iter().flat_map(move |span| {
            let masters = span.master.iter().filter(move |_| match extent {
                Masters => span.is_copied,
                _ => has(&[State, All]),
            });
            let states = span.kept.iter().filter(move |_| has(&[State, All]));
            masters.chain(states).chain(span.weights.iter().filter(move |_| has(&[Weights, All])))
        })
    }
}

impl Span {
    fn new(device: &Device, member: &Member, cut: &Cut, buffer: &Buffer) -> Result<Self> {
        let first = cut.range.start;
        let elements = cut.range.len();
        let pair = |device: &Tensor, host: &Tensor, per: usize| {
            let elements = elements.div_ceil(per);
            let device = device.view(cut.offset / per, [elements])?;
            Ok(Pair { device, host: host.view(first / per, [elements])? })
        };
        let pairs = |device: &[Tensor], host: &[Tensor], per| {
            let each = device.iter().zip(host);
            each.map(|(device, host)| pair(device, host, per)).collect::<Result<Vec<_>>>()
        };
        let is_copied = member.is_copied();
        let is_here = member.slot.weight.device().is(device);
        let masters = buffer.masters.as_ref().filter(|_| is_copied || !is_here);
        let weights = buffer.weights.as_ref().filter(|_| is_copied && !is_here);
        let weights = weights.map(|weights| pair(weights, &member.slot.weight, 1)).transpose()?;
        let own = || member.slot.weight.view(first, [elements]);
        let weight = weights.as_ref().map_or_else(own, |pair| Ok(pair.device.clone()))?;
        let [states, maxima] =
            [pairs(&buffer.states, &member.states, 1)?, pairs(&buffer.maxima, &member.maxima, BLOCK)?];
        let devices = |pairs: &[Pair]| pairs.iter().map(|pair| pair.device.clone()).collect();
        Ok(Span {
            index: member.index,
            range: cut.range.clone(),
            weight,
            weights,
            is_copied,
            master: masters.map(|masters| pair(masters, &member.master, 1)).transpose()?,
            states: devices(&states),
            maxima: devices(&maxima),
            kept: [states, maxima].concat(),
            decay: member.slot.decay,
            stream: member.stream.skipping(first),
        })
    }

    /// The master weights in the buffer, if the weight is a rounded copy of them.
    pub(crate) fn copied(&self) -> Option<&Tensor> {
        self.master.as_ref().filter(|_| self.is_copied).map(|pair| &pair.device)
    }

    /// Returns the operands of an update of the span's elements, whose gradients are `gradient`.
    pub(crate) fn item<'a>(&'a self, gradient: &'a Tensor) -> Item<'a> {
        Item {
            weight: self.master.as_ref().map_or(&self.weight, |pair| &pair.device),
            gradient,
            states: &self.states,
            maxima: &self.maxima,
            compute: self.is_copied.then_some(&self.weight),
            decay: self.decay,
            stream: self.stream,
        }
    }
}

impl Buffer {
    fn new(device: &Device, members: &[Member], capacity: usize, states: DType) -> Result<Self> {
        let empty = |elements: usize, dtype: DType| {
            let request = Request::new(Category::OptimizerState, "optimizer.buffer");
            Tensor::empty(device, [elements], dtype, request)
        };
        let count = members.first().map_or(0, |member| member.states.len());
        let has_maxima = states == DType::U8;
        let is_away = |member: &&Member| !member.slot.weight.device().is(device);
        let has_masters = members.iter().any(|member| member.is_copied() || is_away(&member));
        let rounded = members.iter().filter(is_away).find(|member| member.is_copied());
        Ok(Buffer {
            masters: has_masters.then(|| empty(capacity, DType::F32)).transpose()?,
            weights: rounded.map(|member| empty(capacity, member.slot.weight.dtype())).transpose()?,
            states: (0..count).map(|_| empty(capacity, states)).collect::<Result<_>>()?,
            maxima: (0..if has_maxima { count } else { 0 })
                .map(|_| empty(optimizer::blocks(capacity), DType::F32))
                .collect::<Result<_>>()?,
        })
    }
}

/// Returns the number of elements of a buffer for a group of `elements` elements.
fn capacity(elements: usize) -> usize {
    (elements / LEAST_PIECES).clamp(CHUNK, MOST).next_multiple_of(CHUNK)
}

/// Divides members of these lengths, numbered from `first` on, into pieces of at most `capacity` elements.
/// Only the last part of a member is not a multiple of [`CHUNK`].
fn cut(lengths: impl Iterator<Item = usize>, first: usize, capacity: usize) -> Vec<Vec<Cut>> {
    let (mut pieces, mut used): (Vec<Vec<Cut>>, _) = (Vec::new(), capacity);
    for (member, length) in (first..).zip(lengths) {
        let mut start = 0;
        while start < length {
            let rest = length - start;
            let room = capacity - used;
            let elements = if rest <= room { rest } else { room / CHUNK * CHUNK };
            if elements == 0 {
                pieces.push(Vec::new());
                used = 0;
                continue;
            }
            if let Some(piece) = pieces.last_mut() {
                piece.push(Cut { member, range: start..start + elements, offset: used });
            }
            start += elements;
            used += elements.next_multiple_of(ALIGNMENT);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_elements_once() {
        for (lengths, capacity) in [
            (&[5, 10_000, 1, 300][..], CHUNK),
            (&[8192, 8192, 0, 4097], 2 * CHUNK),
            (&[1; 100], CHUNK),
            (&[3 * CHUNK + 1], 2 * CHUNK),
            (&[], CHUNK),
        ] {
            let pieces = cut(lengths.iter().copied(), 7, capacity);
            let mut covered = vec![0; lengths.len()];
            for piece in &pieces {
                let mut end = 0;
                assert!(!piece.is_empty());
                for Cut { member, range, offset } in piece {
                    assert_eq!(range.start, covered[member - 7], "{lengths:?}");
                    assert!(range.start.is_multiple_of(CHUNK) && offset.is_multiple_of(ALIGNMENT));
                    assert!(*offset >= end && offset + range.len() <= capacity);
                    (covered[member - 7], end) = (range.end, offset + range.len());
                }
            }
            assert_eq!(covered, lengths);
        }
    }
}
