//! Snapshots in the format of `torch.cuda.memory._dump_snapshot`.

use std::collections::HashMap;

use memory::{Action, Category, Event, PoolKind, Settings, Snapshot, SnapshotBlock, SnapshotSegment, Tag};

use super::pickle::{Memo, Pickle};

/// Returns a snapshot as the pickle that pytorch.org/memory_viz and `torch.cuda._memory_viz` read.
///
/// Frames replace the Python stack of each request: operator, module and step as the innermost
/// (`module:step:operator`), then the enclosing modules, and the category as the outermost. Events also have
/// a `category`. [`Category::Other`] is named `unknown`; one such event is always present, because the viewer
/// fails on files without one.
#[must_use]
pub fn snapshot_pickle(snapshot: &Snapshot) -> Vec<u8> {
    let mut pickle = Pickle::new();
    Writer { snapshot, frames: HashMap::new() }.top(&mut pickle);
    pickle.finish()
}

/// Identifies a stack: category, module, operator and step.
type FramesKey = (Category, u32, &'static str, u32);

struct Writer<'a> {
    snapshot: &'a Snapshot,
    /// Stacks written so far, for reuse.
    frames: HashMap<FramesKey, Memo>,
}

struct Frame {
    name: String,
    filename: String,
    line: u32,
}

fn category_name(category: Category) -> &'static str {
    if category == Category::Other { "unknown" } else { category.name() }
}

impl Writer<'_> {
    fn top(&mut self, p: &mut Pickle) {
        let snapshot = self.snapshot;
        let devices: Vec<u32> = (0..=snapshot.device).collect();
        // PyTorch's viewers do not know marks.
        let visible = snapshot.events.iter().filter(|event| event.action != Action::Mark);
        let mut events: Vec<Event> = visible.copied().collect();
        events.push(snapshot_event(snapshot));
        p.dictionary(|p| {
            p.text("segments");
            p.list(&snapshot.segments, |p, segment| self.segment(p, segment));
            p.text("device_traces");
            p.list(&devices, |p, device| {
                let own = if *device == snapshot.device { events.as_slice() } else { &[] };
                p.list(own, |p, event| self.event(p, event));
            });
            p.entry("allocator_settings", |p| settings(p, &snapshot.settings));
            p.entry("external_annotations", |p| p.list::<()>(&[], |_, ()| {}));
        });
    }

    fn segment(&mut self, p: &mut Pickle, segment: &SnapshotSegment) {
        p.dictionary(|p| {
            p.entry("device", |p| p.unsigned(u64::from(self.snapshot.device)));
            p.entry("address", |p| p.unsigned(segment.address));
            p.entry("total_size", |p| p.unsigned(segment.total_size));
            p.entry("allocated_size", |p| p.unsigned(segment.allocated_size()));
            p.entry("active_size", |p| p.unsigned(segment.active_size()));
            p.entry("requested_size", |p| p.unsigned(segment.requested_size()));
            p.entry("stream", |p| p.unsigned(segment.stream.0));
            let kind = if segment.kind == PoolKind::Small { "small" } else { "large" };
            p.entry("segment_type", |p| p.text(kind));
            p.entry("segment_pool_id", |p| p.pair(segment.pool.0, segment.pool.1));
            p.entry("is_expandable", |p| p.boolean(segment.expandable));
            p.entry("frames", |p| p.list::<()>(&[], |_, ()| {}));
            p.entry("blocks", |p| p.list(&segment.blocks, |p, block| self.block(p, block)));
        });
    }

    fn block(&mut self, p: &mut Pickle, block: &SnapshotBlock) {
        p.dictionary(|p| {
            p.entry("address", |p| p.unsigned(block.address));
            p.entry("size", |p| p.unsigned(block.size));
            p.entry("requested_size", |p| p.unsigned(block.requested));
            p.entry("state", |p| p.text(block.state.name()));
            p.entry("frames", |p| self.stack(p, block.tag));
        });
    }

    fn event(&mut self, p: &mut Pickle, event: &Event) {
        p.dictionary(|p| {
            p.entry("action", |p| p.text(event.action.name()));
            let address = if event.action == Action::OutOfMemory { "device_free" } else { "addr" };
            p.entry(address, |p| p.unsigned(event.address));
            p.entry("size", |p| p.unsigned(event.size));
            p.entry("stream", |p| p.unsigned(event.stream.0));
            p.entry("time_us", |p| p.unsigned(event.time_us));
            p.entry("compile_context", |p| p.text("N/A"));
            p.entry("user_metadata", |p| p.text(&format!("step {}", event.tag.step)));
            p.entry("category", |p| p.text(category_name(event.tag.category)));
            p.entry("frames", |p| self.stack(p, event.tag));
        });
    }

    fn stack(&mut self, p: &mut Pickle, tag: Tag) {
        let key = (tag.category, tag.module.0, tag.operator, tag.step);
        if let Some(memo) = self.frames.get(&key) {
            return p.refer(*memo);
        }
        p.list(&self.frames_of(tag), |p, frame| {
            p.dictionary(|p| {
                p.entry("name", |p| p.text(&frame.name));
                p.entry("filename", |p| p.text(&frame.filename));
                p.entry("line", |p| p.unsigned(u64::from(frame.line)));
            });
        });
        self.frames.insert(key, p.memoize());
    }

    /// Returns the frames of a stack, innermost first.
    fn frames_of(&self, tag: Tag) -> Vec<Frame> {
        let frame =
            |name: &str, filename: &str, line| Frame { name: name.into(), filename: filename.into(), line };
        let mut frames = Vec::new();
        let module = self.snapshot.labels.name(tag.module);
        if !(module.is_empty() && tag.operator.is_empty()) {
            let name = if tag.operator.is_empty() { "allocate" } else { tag.operator };
            frames.push(frame(name, if module.is_empty() { "run" } else { module }, tag.step));
        }
        let mut outer = module;
        while let Some((enclosing, name)) = outer.rsplit_once('.') {
            frames.push(frame(name, enclosing, 0));
            outer = enclosing;
        }
        if !outer.is_empty() {
            frames.push(frame(outer, "model", 0));
        }
        frames.push(frame(category_name(tag.category), "category", 0));
        frames
    }
}

/// Returns the event of taking the snapshot, which the snapshot itself lacks.
fn snapshot_event(snapshot: &Snapshot) -> Event {
    let active = snapshot.segments.iter().map(SnapshotSegment::active_size).sum();
    let time_us = snapshot.events.last().map_or(0, |event| event.time_us);
    Event {
        action: Action::Snapshot,
        address: 0,
        size: active,
        block: active,
        stream: memory::Stream::default(),
        time_us,
        tag: Tag::default(),
    }
}

fn settings(p: &mut Pickle, settings: &Settings) {
    p.dictionary(|p| {
        p.entry("PYTORCH_CUDA_ALLOC_CONF", |p| p.text(settings.text()));
        let limit =
            if settings.max_split_size == u64::MAX { -1 } else { i128::from(settings.max_split_size) };
        p.entry("max_split_size", |p| p.integer(limit));
        p.entry("garbage_collection_threshold", |p| p.float(settings.garbage_collection_threshold));
        p.entry("expandable_segments", |p| p.boolean(settings.expandable_segments));
        p.entry("pinned_num_register_threads", |p| p.unsigned(1));
        p.entry("release_lock_on_cudamalloc", |p| p.boolean(false));
        p.entry("pinned_use_cuda_host_register", |p| p.boolean(false));
        p.entry("graph_capture_record_stream_reuse", |p| p.boolean(false));
        p.entry("roundup_power2_divisions", |p| {
            p.dictionary(|p| {
                for (slot, divisions) in settings.roundup_power2_divisions.into_iter().enumerate() {
                    p.entry(&(1u64 << slot).to_string(), |p| p.unsigned(divisions));
                }
            });
        });
    });
}
