//! The backend over a simulated GPU, which runs the streams of all ranks in a random order that respects
//! events.
#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use device::{Buffer, Category, DType, Description, Device, DeviceOptions, Region, Request, StreamKind};

use super::backend::SharedGpuBackend;
use super::engine::{Engine, span_of};
use super::offers::{Offers, Span};
use crate::collective::{Collective, Reach};
use crate::error::CollectiveError;
use crate::link::Link;
use crate::payload::PayloadPool;
use crate::process_group::ProcessGroup;
use crate::sum;
use crate::threads::{Options, run};

/// Work in a stream.
enum Work {
    Copy { from: Span, to: Span },
    Sum { parts: Vec<Span>, to: Span, dtype: DType },
    Write { to: Span, bytes: Vec<u8> },
    Read { from: Span, into: Arc<Mutex<Vec<u8>>> },
    Record(usize),
    Wait(usize),
}

/// Memory by address, and the pending work of all ranks.
#[derive(Default)]
struct Simulated {
    memory: HashMap<u64, u8>,
    streams: HashMap<(usize, StreamKind), VecDeque<Work>>,
    /// Whether each event has been reached.
    events: Vec<bool>,
    random: u64,
}

impl Simulated {
    fn next(&mut self, below: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % below
    }

    fn load(&self, from: Span) -> Vec<u8> {
        let at = from.address..from.address + from.bytes as u64;
        at.map(|address| self.memory.get(&address).copied().unwrap_or(0xff)).collect()
    }

    fn store(&mut self, to: Span, bytes: &[u8]) {
        assert_eq!(to.bytes, bytes.len());
        self.memory.extend((to.address..).zip(bytes.iter().copied()));
    }

    fn run(&mut self, work: Work) {
        match work {
            Work::Copy { from, to } => self.store(to, &self.load(from)),
            Work::Sum { parts, to, dtype } => {
                let mut pool = PayloadPool::default();
                let payload = |span: &Span| {
                    let mut payload = pool.take(span.bytes);
                    payload.bytes_mut().copy_from_slice(&self.load(*span));
                    payload
                };
                let mut parts: Vec<_> = parts.iter().map(payload).collect();
                sum::tree(&mut parts, dtype);
                self.store(to, parts[0].bytes());
            }
            Work::Write { to, bytes } => self.store(to, &bytes),
            Work::Read { from, into } => *into.lock().unwrap() = self.load(from),
            Work::Record(event) => self.events[event] = true,
            Work::Wait(_) => {}
        }
    }

    /// Runs the next work of a random stream that is not waiting; returns false if there is none.
    fn step(&mut self) -> bool {
        let can_run = |queue: &VecDeque<Work>| match queue.front() {
            Some(Work::Wait(event)) => self.events[*event],
            front => front.is_some(),
        };
        let mut ready: Vec<_> =
            self.streams.iter().filter(|(_, queue)| can_run(queue)).map(|(key, _)| *key).collect();
        ready.sort_unstable();
        if ready.is_empty() {
            return false;
        }
        let stream = ready[self.next(ready.len())];
        let work = self.streams.get_mut(&stream).and_then(VecDeque::pop_front).unwrap();
        self.run(work);
        true
    }
}

/// The engine of one rank on a simulated GPU.
struct OneRank {
    rank: usize,
    gpu: Arc<Mutex<Simulated>>,
}

impl OneRank {
    fn enqueue(&self, work: Work, stream: StreamKind) {
        let mut gpu = self.gpu.lock().unwrap();
        gpu.streams.entry((self.rank, stream)).or_default().push_back(work);
        // Sometimes the GPU is far behind, and sometimes it has caught up.
        for _ in 0..gpu.next(5) {
            gpu.step();
        }
    }

    fn write(&self, to: Region<'_>, values: &[f32], stream: StreamKind) {
        self.enqueue(Work::Write { to: span_of(to), bytes: bytemuck::cast_slice(values).to_vec() }, stream);
    }

    /// Enqueues a read of a region; the bytes appear when the stream reaches it.
    fn read(&self, from: Region<'_>, stream: StreamKind) -> Arc<Mutex<Vec<u8>>> {
        let into = Arc::default();
        self.enqueue(Work::Read { from: span_of(from), into: Arc::clone(&into) }, stream);
        into
    }
}

impl Engine for OneRank {
    type Event = usize;

    fn reach(&self) -> Reach {
        Reach::Any
    }

    fn record(&self, stream: StreamKind) -> device::Result<usize> {
        let mut gpu = self.gpu.lock().unwrap();
        gpu.events.push(false);
        let event = gpu.events.len() - 1;
        drop(gpu);
        self.enqueue(Work::Record(event), stream);
        Ok(event)
    }

    fn wait(&self, event: &usize, stream: StreamKind) -> device::Result<()> {
        self.enqueue(Work::Wait(*event), stream);
        Ok(())
    }

    fn copy(&self, from: Span, to: Region<'_>, stream: StreamKind) -> device::Result<()> {
        if from != span_of(to) {
            self.enqueue(Work::Copy { from, to: span_of(to) }, stream);
        }
        Ok(())
    }

    fn sum(&self, parts: &[Span], to: Region<'_>, dtype: DType, stream: StreamKind) -> device::Result<()> {
        self.enqueue(Work::Sum { parts: parts.to_vec(), to: span_of(to), dtype }, stream);
        Ok(())
    }

    fn synchronize(&self, stream: StreamKind) -> device::Result<()> {
        let mut gpu = self.gpu.lock().unwrap();
        // A stream waits only for work enqueued earlier, so the GPU can always finish it.
        while gpu.streams.get(&(self.rank, stream)).is_some_and(|queue| !queue.is_empty()) {
            assert!(gpu.step(), "the GPU waits for work that no rank has enqueued");
        }
        Ok(())
    }
}

/// One rank of a test.
struct Rank {
    rank: usize,
    ranks: usize,
    engine: Rc<OneRank>,
    device: Device,
    group: ProcessGroup,
    offers: Arc<Offers<usize>>,
}

/// Distance in bytes between the memories of consecutive ranks.
const SPACING: usize = 64 << 20;

impl Rank {
    fn buffer(&self, floats: usize) -> Buffer {
        self.device.allocate(4 * floats, Request::new(Category::Communication, "test")).unwrap()
    }
}

/// Runs `body` as every rank of a world on one simulated GPU, whose order of streams is determined by `seed`.
fn on_one_gpu<T: Send + 'static>(
    ranks: usize,
    seed: u64,
    timeout: Duration,
    body: impl Fn(&mut Rank) -> Result<T, CollectiveError> + Send + Sync + 'static,
) -> Result<Vec<T>, String> {
    let gpu = Arc::new(Mutex::new(Simulated { random: seed, ..Simulated::default() }));
    let offers = Arc::new(Offers::default());
    let options = Options { timeout, ..Options::default() };
    let outcome = run(ranks, options, move |mut communicator| {
        let rank = communicator.rank();
        let device = Device::meta(rank, Description::host(), &DeviceOptions::default()).unwrap();
        // Addresses on Meta begin alike on all ranks.
        let before = Request::new(Category::Other, "the memory of the ranks before");
        let _before = device.allocate(SPACING * rank, before).unwrap();
        let engine = Rc::new(OneRank { rank, gpu: Arc::clone(&gpu) });
        let all: Vec<usize> = (0..ranks).collect();
        let link = communicator.threads.as_mut().unwrap();
        let links = (link.split(u64::MAX, 0, &all), link.split(u64::MAX - 1, 0, &all));
        let offers = Arc::clone(&offers);
        let backend = SharedGpuBackend::new(Rc::clone(&engine), Arc::clone(&offers), links);
        let group = ProcessGroup::new(rank, ranks, backend);
        body(&mut Rank { rank, ranks, engine, device, group, offers })
    });
    outcome.map_err(|error| error.to_string())
}

const PATIENCE: Duration = Duration::from_secs(60);

fn value(rank: usize, index: usize, round: usize) -> f32 {
    ((rank * 31 + index * 7 + round * 13) % 101) as f32 / 3.0
}

fn values(rank: usize, range: std::ops::Range<usize>, round: usize) -> Vec<f32> {
    range.map(|index| value(rank, index, round)).collect()
}

/// Returns the sum over ranks at an index, by definition of the order.
fn summed(first: usize, count: usize, part: &dyn Fn(usize) -> f32) -> f32 {
    if count == 1 {
        return part(first);
    }
    let left = count.next_power_of_two() / 2;
    summed(first, left, part) + summed(first + left, count - left, part)
}

fn sums(ranks: usize, range: std::ops::Range<usize>, round: usize) -> Vec<f32> {
    range.map(|index| summed(0, ranks, &|rank| value(rank, index, round))).collect()
}

/// Results to compare when the streams are done: name, bytes read back, expected values.
type Expected = Vec<(&'static str, Arc<Mutex<Vec<u8>>>, Vec<f32>)>;

/// Makes every collective many times, overwriting the memory right after each call, possibly before the
/// simulated GPU has begun it.
fn all_calls(one: &mut Rank) -> Result<(), CollectiveError> {
    const COUNT: usize = 11;
    let rank = one.rank;
    let ranks = one.ranks;
    let whole = one.buffer(COUNT * ranks);
    let part = one.buffer(COUNT);
    let engine = Rc::clone(&one.engine);
    let all = whole.region(0, whole.bytes());
    let own = whole.region(4 * COUNT * rank, 4 * COUNT);
    let apart = part.region(0, part.bytes());
    let mine = rank * COUNT..(rank + 1) * COUNT;
    let everything = 0..COUNT * ranks;
    let mut expected: Expected = Vec::new();
    for round in 0..6 {
        let stream = if round % 2 == 0 { StreamKind::Reduce } else { StreamKind::Transfer };
        let mut expect = |name, region, values| expected.push((name, engine.read(region, stream), values));
        let fill = |region, range, round| engine.write(region, &values(rank, range, round), stream);
        // Calls on two streams use the same memory; the second waits for the first.
        let before = [StreamKind::Reduce, StreamKind::Transfer].map(|stream| engine.record(stream).unwrap());
        before.iter().for_each(|event| engine.wait(event, stream).unwrap());

        fill(all, everything.clone(), round);
        one.group.run(Collective::AllReduce { region: all, dtype: DType::F32 }, stream)?;
        expect("all-reduce", all, sums(ranks, everything.clone(), round));

        fill(all, everything.clone(), round + 1);
        one.group.run(Collective::ReduceScatter { input: all, output: apart, dtype: DType::F32 }, stream)?;
        expect("reduce-scatter", apart, sums(ranks, mine.clone(), round + 1));
        one.group.run(Collective::ReduceScatter { input: all, output: own, dtype: DType::F32 }, stream)?;
        expect("reduce-scatter in place", own, sums(ranks, mine.clone(), round + 1));

        let gathered = |round| (0..ranks).flat_map(|rank| values(rank, 0..COUNT, round)).collect::<Vec<_>>();
        fill(apart, 0..COUNT, round + 2);
        one.group.run(Collective::AllGather { input: apart, output: all }, stream)?;
        expect("all-gather", all, gathered(round + 2));
        fill(own, 0..COUNT, round + 3);
        one.group.run(Collective::AllGather { input: own, output: all }, stream)?;
        expect("all-gather in place", all, gathered(round + 3));

        let root = round % ranks;
        fill(apart, 0..COUNT, round + 4);
        one.group.run(Collective::Broadcast { root, region: apart }, stream)?;
        expect("broadcast", apart, values(root, 0..COUNT, round + 4));

        if ranks > 1 {
            // Around the ring: each rank sends one region and receives another at once.
            let to = (rank + 1) % ranks;
            let from = (rank + ranks - 1) % ranks;
            fill(own, 0..COUNT, round + 5);
            one.group.run(
                Collective::Exchange { sends: vec![(to, own)], receives: vec![(from, apart)] },
                stream,
            )?;
            expect("exchange", apart, values(from, 0..COUNT, round + 5));
            fill(apart, 0..COUNT, round + 6);
            if rank == 0 {
                one.group.run(Collective::Send { to: ranks - 1, region: apart }, stream)?;
            } else if rank == ranks - 1 {
                one.group.run(Collective::Receive { from: 0, region: apart }, stream)?;
                expect("receive", apart, values(0, 0..COUNT, round + 6));
            }
        }
        fill(all, everything.clone(), 1000);
        one.group.run(Collective::Barrier, stream)?;
    }
    one.group.synchronize(StreamKind::Reduce)?;
    one.group.synchronize(StreamKind::Transfer)?;
    for (name, actual, values) in expected {
        let actual = actual.lock().unwrap();
        let actual: Vec<f32> = bytemuck::pod_collect_to_vec(&actual);
        assert_eq!(actual, values, "{name} on rank {rank} of {ranks}");
    }
    Ok(())
}

#[test]
fn values_are_right_in_any_order_of_the_streams() {
    for ranks in 1..=5 {
        for seed in 0..12 {
            on_one_gpu(ranks, seed, PATIENCE, all_calls).unwrap();
        }
    }
}

#[test]
fn groups_work_side_by_side() {
    for seed in 0..8 {
        let body = |one: &mut Rank| {
            let groups = [vec![0, 2], vec![3, 1]];
            let group = one.group.split(&groups)?;
            let members = &groups[one.rank % 2];
            assert_eq!((members[group.rank()], group.world_size()), (one.rank, 2));
            let region = one.buffer(5);
            let stream = StreamKind::Reduce;
            let region = region.region(0, 20);
            let mut outputs = Vec::new();
            for round in 0..4 {
                one.engine.write(region, &values(one.rank, 0..5, round), stream);
                group.run(Collective::AllReduce { region, dtype: DType::F32 }, stream)?;
                outputs.push(one.engine.read(region, stream));
            }
            group.synchronize(stream)?;
            for (round, output) in outputs.iter().enumerate() {
                let sum_at = |index| members.iter().map(|rank| value(*rank, index, round)).sum();
                let actual: Vec<f32> = bytemuck::pod_collect_to_vec(&output.lock().unwrap());
                assert_eq!(actual, (0..5).map(sum_at).collect::<Vec<f32>>());
            }
            let other = if one.rank == 1 { vec![vec![0, 1, 2, 3]] } else { vec![vec![0, 1], vec![2, 3]] };
            let error = one.group.split(&other).map(drop).unwrap_err().to_string();
            assert!(error.contains("groups ["), "{error}");
            Ok(())
        };
        on_one_gpu(4, seed, PATIENCE, body).unwrap();
    }
}

#[test]
fn a_call_that_fails_withdraws_its_offers_and_names_the_rank() {
    // Rank 1 ends without the call, or does not arrive in time.
    for (patience, message) in [
        (PATIENCE, "rank 1 failed: it ended without making this call"),
        (Duration::from_millis(100), "rank 1 did not answer within 0.1 s"),
    ] {
        let waiting = Arc::new(AtomicUsize::new(2));
        let body = move |one: &mut Rank| {
            let buffer = one.buffer(6);
            let stream = StreamKind::Reduce;
            if one.rank == 1 {
                while patience < PATIENCE && waiting.load(Ordering::SeqCst) > 0 {
                    std::thread::yield_now();
                }
                return Ok(());
            }
            let region = buffer.region(0, 24);
            let error = one
                .group
                .run(Collective::AllReduce { region, dtype: DType::F32 }, stream)
                .unwrap_err()
                .to_string();
            assert!(error.contains(message), "{error}");
            waiting.fetch_sub(1, Ordering::SeqCst);
            while waiting.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
            // Each rank had offered its region to both others.
            assert!((0..4).all(|ticket| one.offers.get(ticket).is_none()));
            Ok(())
        };
        on_one_gpu(3, 1, patience, body).unwrap();
    }
}

#[test]
fn ranks_that_disagree_are_named() {
    let body = |one: &mut Rank| {
        let buffer = one.buffer(6);
        let stream = StreamKind::Reduce;
        match one.rank {
            0 => one.group.run(Collective::Send { to: 1, region: buffer.region(0, 8) }, stream),
            _ => one.group.run(Collective::Receive { from: 0, region: buffer.region(0, 12) }, stream),
        }
    };
    let error = on_one_gpu(2, 1, PATIENCE, body).unwrap_err();
    assert!(
        error.contains("rank 1 is in receive #0 of 12 bytes, but rank 0 is in send #0 of 8 bytes"),
        "{error}"
    );
    let body = |one: &mut Rank| {
        let buffer = one.buffer(6);
        let region = buffer.region(0, 8 + 4 * one.rank);
        one.group.run(Collective::AllReduce { region, dtype: DType::F32 }, StreamKind::Reduce)
    };
    let error = on_one_gpu(2, 1, PATIENCE, body).unwrap_err();
    assert!(error.contains("all-reduce #0 of 8 bytes of f32") && error.contains("of 12 bytes"), "{error}");
}
