//! Tests of the views, on an allocator used as in training.

use std::io::Write;
use std::process::{Command, Stdio};

use memory::drivers::Counting;
use memory::{Action, Allocation, Allocator, Category, Settings, Snapshot, Stream, Tag};

use super::*;

const LAYERS: u64 = 4;

/// Runs three steps of four layers: parameters and moments stay; activations live from forward to backward.
fn run(settings: &str, history: usize) -> Allocator<Counting> {
    let mut allocator = Allocator::new(Counting::new(256 << 20), Settings::parse(settings).unwrap()).unwrap();
    allocator.record_history(history);
    let take = |allocator: &mut Allocator<Counting>, bytes: u64, category, module: &str, operator, step| {
        let tag = Tag { category, module: allocator.intern(module), operator, step };
        allocator.allocate(bytes, Stream(0), tag).unwrap()
    };
    for layer in 0..LAYERS {
        take(
            &mut allocator,
            3_000_000,
            Category::Parameter,
            &format!("blocks.{layer}.mlp.up"),
            "initialize",
            0,
        );
        take(
            &mut allocator,
            6_000_000,
            Category::OptimizerState,
            &format!("blocks.{layer}.mlp.up"),
            "adamw",
            0,
        );
    }
    for step in 1..=3 {
        allocator.mark("step", u64::from(step));
        let mut saved: Vec<Allocation> = Vec::new();
        for layer in 0..LAYERS {
            let module = format!("blocks.{layer}.mlp.up");
            saved.push(take(&mut allocator, 5_000_000, Category::Activation, &module, "linear", step));
            let scratch = take(&mut allocator, 700_000, Category::Workspace, &module, "linear", step);
            allocator.free(scratch.block).unwrap();
            saved.push(take(&mut allocator, 40_000, Category::Activation, &module, "layer_norm", step));
        }
        for activation in saved.into_iter().rev() {
            let gradient =
                take(&mut allocator, 3_000_000, Category::Gradient, "blocks.0", "linear_backward", step);
            allocator.free(activation.block).unwrap();
            allocator.free(gradient.block).unwrap();
        }
    }
    let waiting = take(&mut allocator, 900, Category::Other, "", "", 4);
    allocator.record_stream(waiting.block, Stream(7)).unwrap();
    allocator.free(waiting.block).unwrap();
    assert!(allocator.allocate(1 << 30, Stream(0), Tag::default()).is_err());
    let waiting = take(&mut allocator, 901, Category::Communication, "bucket <0> & \"1\"", "exchange", 4);
    allocator.record_stream(waiting.block, Stream(7)).unwrap();
    allocator.free(waiting.block).unwrap();
    allocator
}

/// Python script that prints every field of every segment, block and event, and fails on unexpected opcodes
/// and types.
const PYTHON: &str = r#"
import pickle, pickletools, sys
data = sys.stdin.buffer.read()
allowed = '''PROTO MARK STOP NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE
BINUNICODE EMPTY_LIST APPENDS EMPTY_DICT SETITEMS TUPLE2 MEMOIZE BINGET LONG_BINGET'''.split()
for opcode, argument, _ in pickletools.genops(data):
    assert opcode.name in allowed, opcode.name
    assert opcode.name != 'PROTO' or argument == 4
top = pickle.loads(data)
assert list(top) == ['segments', 'device_traces', 'allocator_settings', 'external_annotations']
def frames(of):
    for frame in of:
        assert list(frame) == ['name', 'filename', 'line']
    return '|'.join('%s:%d:%s' % (f['filename'], f['line'], f['name']) for f in of)
for s in top['segments']:
    assert type(s['segment_pool_id']) is tuple and type(s['is_expandable']) is bool and s['frames'] == []
    assert sum(b['size'] for b in s['blocks']) == s['total_size']
    print('segment', *[s[k] for k in '''device address total_size allocated_size active_size requested_size
          stream segment_type segment_pool_id is_expandable'''.split()])
    address = s['address']
    for b in s['blocks']:
        assert b['address'] == address
        address += b['size']
        print('block', b['address'], b['size'], b['requested_size'], b['state'], frames(b['frames']))
for device, trace in enumerate(top['device_traces']):
    for e in trace:
        place = 'device_free' if e['action'] == 'oom' else 'addr'
        assert list(e) == ['action', place, 'size', 'stream', 'time_us', 'compile_context', 'user_metadata',
                           'category', 'frames']
        assert e['compile_context'] == 'N/A'
        print('event', device, e['action'], e[place], e['size'], e['stream'], e['time_us'],
              e['user_metadata'], e['category'], frames(e['frames']))
assert any(e['category'] == 'unknown' for trace in top['device_traces'] for e in trace)
settings = top['allocator_settings']
assert list(settings['roundup_power2_divisions']) == [str(1 << k) for k in range(16)]
print('settings', *[settings[k] for k in '''PYTORCH_CUDA_ALLOC_CONF max_split_size
      garbage_collection_threshold expandable_segments pinned_num_register_threads release_lock_on_cudamalloc
      pinned_use_cuda_host_register
      graph_capture_record_stream_reuse'''.split()], *settings['roundup_power2_divisions'].values())
"#;

fn python(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// Returns the lines that [`PYTHON`] must print.
fn expected(snapshot: &Snapshot) -> Vec<String> {
    let frames = |tag: &Tag| {
        let module = snapshot.labels.name(tag.module);
        let category = if tag.category == Category::Other { "unknown" } else { tag.category.name() };
        let mut frames = Vec::new();
        if !module.is_empty() {
            frames.push(format!("{module}:{}:{}", tag.step, tag.operator));
            let parts: Vec<&str> = module.split('.').collect();
            for depth in (1..parts.len()).rev() {
                frames.push(format!("{}:0:{}", parts[..depth].join("."), parts[depth]));
            }
            frames.push(format!("model:0:{}", parts[0]));
        }
        frames.push(format!("category:0:{category}"));
        frames.join("|")
    };
    let mut lines = Vec::new();
    for s in &snapshot.segments {
        let (address, total, stream, expandable) =
            (s.address, s.total_size, s.stream.0, python(s.expandable));
        let sizes = format!("{} {} {}", s.allocated_size(), s.active_size(), s.requested_size());
        let kind = s.kind.name().trim_end_matches("_pool");
        lines.push(format!(
            "segment {} {address} {total} {sizes} {stream} {kind} (0, 0) {expandable}",
            snapshot.device
        ));
        for b in &s.blocks {
            let size = b.size;
            let requested = b.requested;
            let state = b.state.name();
            lines.push(format!("block {} {size} {requested} {state} {}", b.address, frames(&b.tag)));
        }
    }
    // PyTorch's viewers do not know marks.
    for e in snapshot.events.iter().filter(|e| e.action != Action::Mark) {
        let category = if e.tag.category == Category::Other { "unknown" } else { e.tag.category.name() };
        let start = format!("event {} {} {} {}", snapshot.device, e.action.name(), e.address, e.size);
        let stream = e.stream.0;
        let time = e.time_us;
        let step = e.tag.step;
        lines.push(format!("{start} {stream} {time} step {step} {category} {}", frames(&e.tag)));
    }
    lines
}

#[test]
fn python_reads_back_every_field() {
    for (settings, device) in [("", 0), ("expandable_segments:True,roundup_power2_divisions:[1:2,>:4]", 2)] {
        let snapshot = run(settings, 5000).on_device(device).snapshot();
        assert!(snapshot.events.iter().any(|e| e.action == Action::OutOfMemory));
        let child =
            Command::new("python3").args(["-c", PYTHON]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = child else {
            println!("skipped: python3 is not installed");
            return;
        };
        let mut input = child.stdin.take().unwrap();
        let pickle = snapshot_pickle(&snapshot);
        let writer = std::thread::spawn(move || input.write_all(&pickle));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        assert!(output.status.success());
        let printed = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<&str> = printed.lines().collect();
        let last = lines.pop().unwrap();
        let divisions =
            if device == 0 { "0".to_owned() + &" 0".repeat(15) } else { "2".to_owned() + &" 4".repeat(15) };
        let expandable = python(device != 0);
        assert_eq!(last, format!("settings {settings} -1 0.0 {expandable} 1 False False False {divisions}"));
        assert!(lines.pop().unwrap().contains(" snapshot 0 "));
        assert_eq!(lines, expected(&snapshot));
    }
}

#[test]
fn the_summary_equals_pytorchs() {
    // The allocations behind a table that PyTorch printed.
    let mut allocator = Allocator::new(Counting::new(30 << 20), Settings::default()).unwrap();
    let [first, _, _] = [3000, 1000, 4 << 20]
        .map(|bytes| allocator.allocate(bytes, Stream(0), Tag::default()).unwrap().block);
    allocator.free(first).unwrap();
    assert!(allocator.allocate(100 << 20, Stream(0), Tag::default()).is_err());
    let table = memory_summary(allocator.statistics(), Summarized::Gpu(0), false);
    let rows: Vec<&str> = table.lines().collect();
    let start = "\
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 0                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 1            |        cudaMalloc retries: 1         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |   4097 KiB |   4100 KiB |   4100 KiB |   3072 B   |
|       from large pool |   4096 KiB |   4096 KiB |   4096 KiB |      0 B   |
|       from small pool |      1 KiB |      4 KiB |      4 KiB |   3072 B   |";
    assert_eq!(rows[..10].join("\n"), start);
    assert!(rows.iter().all(|row| row.len() == 77));
    assert_eq!(rows.len(), 6 + 9 * 4 + 2 * 2 + 1);
    assert_eq!(
        memory_summary(allocator.statistics(), Summarized::Gpu(0), true).lines().count(),
        6 + 11 * 2 + 1
    );
}

#[test]
fn the_picture_is_well_formed_and_escapes_text() {
    for history in [5000, 30, 0] {
        let page = picture(&run("", history).snapshot(), "a <run> & its memory");
        assert!(page.contains("<h1>a &lt;run&gt; &amp; its memory</h1>"));
        let count = |what: &str| page.matches(what).count();
        for element in ["svg", "rect", "polygon", "text", "table", "tr", "td"] {
            let opened = count(&format!("<{element} ")) + count(&format!("<{element}>"));
            let closed = count(&format!("</{element}>"));
            assert!(
                closed == opened || element == "rect" || element == "polygon",
                "{element}: {opened}, {closed}"
            );
        }
        assert!(!page.contains("NaN") && !page.contains("inf\""), "a coordinate is not a number");
        for forbidden in ["http:", "https:", "<script", "bucket <0>"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }
}
