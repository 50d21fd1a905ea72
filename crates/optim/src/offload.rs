//! Offloaded optimizer state, which is kept in a host pool. Each update copies it to the device and back,
//! piece by piece.
//!
//! A piece is the state of consecutive elements. While one buffer is filled with a piece, a second is updated
//! and a third is copied back. Updates are element-wise and pieces begin at multiples of
//! [`ops::norm::CHUNK`](tensor::ops::norm::CHUNK), so the bits equal those of state on the device.

use std::cell::RefCell;
use std::ops::Range;

use device::{Category, DType, Device, Event, Request, StreamKind};
use tensor::ops::norm::CHUNK;
use tensor::ops::optimizer::{BLOCK, Item, Stream};
use tensor::ops::weight_average::{self, Averaged};
use tensor::ops::{StepState, Table, optimizer};
use tensor::{Result, Tensor, TensorError};

use crate::member::Member;

/// Maximum elements of a piece. Copies of this size take much longer than their launches.
const MOST: usize = 1 << 21;
/// Minimum number of pieces, unless the state has fewer chunks.
const LEAST_PIECES: usize = 8;
/// Number of buffers.
const BUFFERS: usize = 3;
/// Alignment of tensors in a buffer, in elements: 512 bytes in the smallest type.
const ALIGNMENT: usize = 512;

/// The arrays of a piece that a pass copies in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// No arrays.
    Nothing,
    /// Master weights that are separate from the weights.
    Masters,
    /// Weights in the pool that are rounded copies of masters, which an update writes without reading.
    Weights,
    /// Master weights and states.
    State,
    /// States.
    States,
    /// Master weights, or weights in the pool that are their own masters.
    Values,
    /// [`Extent::Values`] and [`Extent::Weights`].
    Written,
    /// Weights, master weights and states.
    All,
}

/// Directions in which a pass copies averages of weights along with other arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WithAverages {
    /// Whether averages are copied to the device before the pass's work.
    reads: bool,
    /// Whether averages are copied back after it.
    writes: bool,
}

impl WithAverages {
    pub(crate) const NONE: Self = WithAverages { reads: false, writes: false };
    pub(crate) const WRITTEN: Self = WithAverages { reads: false, writes: true };
    pub(crate) const BOTH_WAYS: Self = WithAverages { reads: true, writes: true };
}

/// The pieces of a group's state, and the device buffers that they are copied through.
#[derive(Debug)]
pub(crate) struct Offload {
    device: Device,
    host: Device,
    /// Pieces of each call of an update.
    pieces: Vec<Vec<StatePiece>>,
    /// Event of each buffer after which it may be filled again.
    emptied: RefCell<Vec<Event>>,
}

/// A piece of a group's state: consecutive elements that share a device buffer at a time.
#[derive(Debug)]
pub(crate) struct StatePiece {
    /// Index of the buffer that the piece is copied to.
    buffer: usize,
    spans: Vec<Span>,
    /// Device addresses of the tensors of all spans, for each launch that updates them.
    pub(crate) tables: Vec<Table>,
    /// Device addresses of master weights and averages; `None` without averages.
    average_table: Option<Table>,
}

/// Consecutive elements of one slot, with their state in a device buffer and in the host pool.
#[derive(Debug)]
pub(crate) struct Span {
    /// Index of the slot.
    pub(crate) index: usize,
    /// Range of the elements in the slot.
    pub(crate) range: Range<usize>,
    /// The weights of these elements, in the device buffer if the pool keeps them.
    pub(crate) weight: Tensor,
    /// Buffer and pool tensors of the weights, if the pool keeps them as rounded copies of masters.
    weights: Option<Pair>,
    /// Buffer and pool tensors of the master weights; `None` if they are the weights and on the device.
    master: Option<Pair>,
    is_copied: bool,
    states: Vec<Tensor>,
    maxima: Vec<Tensor>,
    /// All tensors of the states that have a copy in the host pool.
    kept: Vec<Pair>,
    /// Averages of the master weights, if there are any.
    average: Option<Pair>,
    decay: bool,
    stream: Stream,
}

/// The same tensor in a device buffer and in the host pool.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    device: Tensor,
    host: Tensor,
}

/// A range of a parameter's elements that one transfer moves, before its tensors are allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cut {
    member: usize,
    range: Range<usize>,
    /// Index of the first element in the device buffer.
    offset: usize,
}

/// The tensors of one device buffer.
struct Buffer {
    masters: Option<Tensor>,
    weights: Option<Tensor>,
    states: Vec<Tensor>,
    maxima: Vec<Tensor>,
    averages: Option<Tensor>,
}

impl Offload {
    /// Allocates the buffers and tables for a group's `members`, whose state of type `states` is in the pool
    /// `host`. The calls of an update cover the members `calls`, each in `launches` launches.
    pub(crate) fn new(
        (device, host): (&Device, &Device),
        members: &[Member],
        calls: &[Range<usize>],
        (states, launches): (DType, usize),
    ) -> Result<Self> {
        let capacity = capacity(members.iter().map(Member::elements).sum());
        let mut cuts_of_calls = Vec::new();
        let mut count = 0;
        for range in calls {
            let cuts = cut(members[range.clone()].iter().map(Member::elements), range.start, capacity);
            count += cuts.len();
            cuts_of_calls.push(cuts);
        }
        let buffers = (0..count.min(BUFFERS)).map(|_| Buffer::new(device, members, capacity, states));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let mut number = 0;
        let mut piece = |cuts: Vec<Cut>| {
            let buffer = number % BUFFERS;
            number += 1;
            let count = cuts.len();
            let table = |launch| match states {
                DType::U8 if launch == 0 => Table::of_quantised(device, count),
                _ => Table::of_parameters(device, count),
            };
            let tables = (0..launches).map(table).collect::<Result<_>>();
            let span = |cut: Cut| Span::new(device, &members[cut.member], &cut, &buffers[buffer]);
            let averages = members.iter().any(|member| member.average.is_some());
            let average_table = averages.then(|| Table::of_averages(device, count)).transpose()?;
            let spans = cuts.into_iter().map(span).collect::<Result<_>>()?;
            Ok(StatePiece { buffer, spans, tables: tables?, average_table })
        };
        let of_call = |cuts: Vec<Vec<Cut>>| cuts.into_iter().map(&mut piece).collect::<Result<Vec<_>>>();
        let pieces = cuts_of_calls.into_iter().map(of_call).collect::<Result<_>>()?;
        // The buffers' memory may have been another tensor's.
        let emptied = buffers.iter().map(|_| Ok(device.record(StreamKind::Compute)?));
        let emptied = RefCell::new(emptied.collect::<Result<_>>()?);
        Ok(Offload { device: device.clone(), host: host.clone(), pieces, emptied })
    }

    /// Calls `body` for every piece of a call. Arrays are copied to the device before it and back after it.
    ///
    /// # Errors
    /// Errors of `body`; the driver's.
    pub(crate) fn pass<E: From<TensorError>>(
        &self,
        call: usize,
        extents: [Extent; 2],
        body: impl FnMut(&StatePiece) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.pass_with(call, extents, WithAverages::NONE, body)
    }

    /// Does the same as [`Offload::pass`], and also copies averages.
    pub(crate) fn pass_with<E: From<TensorError>>(
        &self,
        call: usize,
        [reads, writes]: [Extent; 2],
        averages: WithAverages,
        mut body: impl FnMut(&StatePiece) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for piece in &self.pieces[call] {
            self.fill(piece, (reads, averages.reads))?;
            body(piece)?;
            self.empty(piece, (writes, averages.writes))?;
        }
        Ok(())
    }

    /// Copies arrays of a piece, and its averages if the flag is set, to its device buffer, before compute
    /// work enqueued from now on.
    fn fill(&self, piece: &StatePiece, extent: (Extent, bool)) -> Result<()> {
        let emptied = self.emptied.borrow()[piece.buffer].clone();
        self.device.wait(StreamKind::Input, &emptied)?;
        for pair in piece.pairs(extent) {
            pair.device.copy_from_pool(&pair.host, StreamKind::Input)?;
        }
        Ok(self.device.wait(StreamKind::Compute, &self.device.record(StreamKind::Input)?)?)
    }

    /// Copies arrays of a piece, and its averages if the flag is set, from its device buffer to the pool,
    /// after the compute work so far.
    fn empty(&self, piece: &StatePiece, extent: (Extent, bool)) -> Result<()> {
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

impl StatePiece {
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Moves the averages of all spans towards the master weights in the buffer, if a pass copies them both
    /// ways.
    pub(crate) fn update_averages(&self, averages: WithAverages, state: &StepState) -> Result<()> {
        let table = self.average_table.as_ref().filter(|_| averages == WithAverages::BOTH_WAYS);
        let Some(table) = table else { return Ok(()) };
        let pairs: Vec<_> = self.spans.iter().filter_map(Span::averaged).collect();
        weight_average::update(table, &pairs, state)
    }

    fn pairs(&self, (extent, averages): (Extent, bool)) -> impl Iterator<Item = &Pair> {
        use Extent::{All, Masters, State, States, Values, Weights, Written};
        let has = move |extents: &[Extent]| extents.contains(&extent);
        self.spans.iter().flat_map(move |span| {
            let masters = span.master.iter().filter(move |_| match extent {
                Masters => span.is_copied,
                _ => has(&[State, Values, Written, All]),
            });
            let states = span.kept.iter().filter(move |_| has(&[State, States, All]));
            let weights = span.weights.iter().filter(move |_| has(&[Weights, Written, All]));
            let averages = span.average.iter().filter(move |_| averages);
            masters.chain(states).chain(weights).chain(averages)
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
        let averages = buffer.averages.as_ref().zip(member.average.as_ref());
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
            average: averages.map(|(device, host)| pair(device, host, 1)).transpose()?,
            decay: member.slot.decay,
            stream: member.stream.skipping(first),
        })
    }

    /// Returns the master weights in the buffer, if they are separate from the weight.
    pub(crate) fn copied(&self) -> Option<&Tensor> {
        self.master.as_ref().filter(|_| self.is_copied).map(|pair| &pair.device)
    }

    /// Returns the master weights on the device: in the buffer, or the weights themselves.
    fn master(&self) -> &Tensor {
        self.master.as_ref().map_or(&self.weight, |pair| &pair.device)
    }

    /// Returns the rounded copies of the masters that passes compute with; `None` if they read the masters.
    pub(crate) fn copy(&self) -> Option<&Tensor> {
        self.is_copied.then_some(&self.weight)
    }

    /// Returns the masters and their averages on the device; `None` if there are no averages.
    pub(crate) fn averaged(&self) -> Option<Averaged<'_>> {
        self.average.as_ref().map(|average| Averaged { weight: self.master(), average: &average.device })
    }

    /// Returns the operands of an update of the span's elements, whose gradients are `gradient`.
    pub(crate) fn item<'a>(&'a self, gradient: &'a Tensor) -> Item<'a> {
        Item {
            weight: self.master(),
            gradient,
            states: &self.states,
            maxima: &self.maxima,
            compute: self.copy(),
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
        let has_averages = members.iter().any(|member| member.average.is_some());
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
            averages: has_averages.then(|| empty(capacity, DType::F32)).transpose()?,
        })
    }
}

/// Returns the number of elements of a device buffer for a group of `elements` elements.
fn capacity(elements: usize) -> usize {
    (elements / LEAST_PIECES).clamp(CHUNK, MOST).next_multiple_of(CHUNK)
}

/// Divides members of these lengths into pieces of at most `capacity` elements; the first member has number
/// `first`. All parts of a member except the last are multiples of [`CHUNK`].
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
