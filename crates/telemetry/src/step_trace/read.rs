//! Reads traces from snapshots with a history.

use memory::{Action, BlockState, Category, Event, Label, Snapshot, Stream, Tag};
use rustc_hash::FxHashMap;

use super::{Held, Mark, Owner, RunPart, StepTrace, TraceEvent};

/// A live block.
#[derive(Clone, Copy)]
struct Alive {
    tag: Tag,
    stream: Stream,
    requested: u64,
    bytes: u64,
}

impl StepTrace {
    /// Returns a trace without events, of the blocks alive in `snapshot`.
    #[must_use]
    pub fn of_now(snapshot: &Snapshot, part: RunPart, step: u64) -> StepTrace {
        Reader::new(snapshot).trace(part, step, &[])
    }

    /// Returns the trace since the last mark of a [`RunPart`]; `None` if the history contains no such mark.
    #[must_use]
    pub fn read(snapshot: &Snapshot) -> Option<StepTrace> {
        Self::read_events(snapshot, &snapshot.events)
    }

    /// Like [`StepTrace::read`], with `events` instead of the snapshot's history.
    #[must_use]
    pub fn read_events(snapshot: &Snapshot, events: &[Event]) -> Option<StepTrace> {
        let begins = |event: &Event| match event.action {
            Action::Mark => RunPart::of_mark(event.tag.operator),
            _ => None,
        };
        let latest_first = events.iter().enumerate().rev();
        let (start, part) = latest_first.into_iter().find_map(|(at, event)| Some((at, begins(event)?)))?;
        let step = events.get(start)?.address;
        Some(Reader::new(snapshot).trace(part, step, &events[start + 1..]))
    }
}

struct Reader<'a> {
    snapshot: &'a Snapshot,
    owners: Vec<Owner>,
    indices: FxHashMap<OwnerKey, usize>,
}

/// Identifies an owner within a snapshot.
type OwnerKey = (Category, Label, &'static str, Stream);

impl<'a> Reader<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        Reader { snapshot, owners: Vec::new(), indices: FxHashMap::default() }
    }

    fn trace(&mut self, part: RunPart, step: u64, events: &[Event]) -> StepTrace {
        let (alive, reserved) = self.at_the_beginning(events);
        let (held, mut numbers) = self.number(alive);
        let mut next = held.len();
        let mut trace = StepTrace {
            part,
            step,
            owners: Vec::new(),
            held,
            reserved,
            events: Vec::new(),
            marks: Vec::new(),
            left_out: 0,
        };
        for event in events {
            let driver = |owner, taken, returned| TraceEvent::Driver { owner, taken, returned };
            let entry = match event.action {
                Action::Alloc => {
                    numbers.insert(event.address, next);
                    next += 1;
                    let owner = self.owner(event.tag, event.stream);
                    Some(TraceEvent::Allocate { owner, requested: event.size, bytes: event.block })
                }
                Action::FreeRequested => {
                    numbers.remove(&event.address).map(|block| TraceEvent::Free { block })
                }
                Action::SegmentAlloc | Action::SegmentMap => {
                    Some(driver(self.owner(event.tag, event.stream), event.size, 0))
                }
                Action::SegmentFree | Action::SegmentUnmap => {
                    Some(driver(self.owner(event.tag, event.stream), 0, event.size))
                }
                Action::Mark => {
                    let name = event.tag.operator.to_owned();
                    trace.marks.push(Mark { events: trace.events.len(), name, number: event.address });
                    None
                }
                Action::FreeCompleted | Action::Snapshot | Action::OutOfMemory => None,
            };
            trace.events.extend(entry);
        }
        trace.owners = std::mem::take(&mut self.owners);
        trace
    }

    /// Undoes `events`. Returns the blocks alive before them by address, and the bytes then reserved.
    fn at_the_beginning(&self, events: &[Event]) -> (FxHashMap<u64, Alive>, u64) {
        let mut alive = FxHashMap::default();
        let mut reserved: u64 = 0;
        for segment in &self.snapshot.segments {
            reserved += segment.total_size;
            for block in segment.blocks.iter().filter(|block| block.state == BlockState::ActiveAllocated) {
                let tag = block.tag;
                let requested = block.requested;
                let bytes = block.size;
                alive.insert(block.address, Alive { tag, stream: segment.stream, requested, bytes });
            }
        }
        for event in events.iter().rev() {
            let Event { address, size, block, stream, tag, .. } = *event;
            match event.action {
                Action::Alloc => {
                    alive.remove(&address);
                }
                Action::FreeRequested => {
                    alive.insert(address, Alive { tag, stream, requested: size, bytes: block });
                }
                Action::SegmentAlloc | Action::SegmentMap => reserved = reserved.saturating_sub(size),
                Action::SegmentFree | Action::SegmentUnmap => reserved += size,
                _ => {}
            }
        }
        (alive, reserved)
    }

    /// Numbers the blocks in an order that does not depend on addresses. Returns the blocks, and the number
    /// of the block at each address.
    fn number(&mut self, alive: FxHashMap<u64, Alive>) -> (Vec<Held>, FxHashMap<u64, usize>) {
        let mut sorted: Vec<(u64, Alive)> = alive.into_iter().collect();
        let name = |tag: &Tag| self.snapshot.labels.name(tag.module);
        sorted.sort_unstable_by_key(|(address, Alive { tag, stream, requested, bytes })| {
            let who = (tag.category, name(tag), tag.operator, *stream);
            (who, *requested, *bytes, tag.step, *address)
        });
        let mut held = Vec::new();
        let mut numbers = FxHashMap::default();
        for (address, Alive { tag, stream, requested, bytes }) in sorted {
            numbers.insert(address, held.len());
            held.push(Held { owner: self.owner(tag, stream), requested, bytes, since: u64::from(tag.step) });
        }
        (held, numbers)
    }

    /// Returns the index of an owner, adding new ones to the list.
    fn owner(&mut self, tag: Tag, stream: Stream) -> usize {
        let Tag { category, module, operator, .. } = tag;
        *self.indices.entry((category, module, operator, stream)).or_insert_with(|| {
            let module = self.snapshot.labels.name(module).to_owned();
            let operator = operator.to_owned();
            self.owners.push(Owner { category, module, operator, stream: stream.0 });
            self.owners.len() - 1
        })
    }
}
