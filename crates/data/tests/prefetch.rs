//! Tests of prefetching.

use data::MicroBatchId::{Training, Validation};
use data::{BatchShape, Component, Corpus, Error, MicroBatch, MicroBatchId, OrderKind, Prefetcher};
use data::{Source, Split, SyntheticKind, SyntheticOptions, SyntheticSource};
use data::{TokenOptions, TokenSource, Tokenizer};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

const COUNT: u64 = 6;

fn synthetic() -> SyntheticSource {
    let kind = SyntheticKind::Tokens { vocabulary: 100, context: 4 };
    let options = SyntheticOptions { kind, micro_batch: 2, seed: 1, validation_micro_batches: COUNT };
    SyntheticSource::new(options).unwrap()
}

/// A source that calls `act` with every number before it reads.
struct Watched<F> {
    source: SyntheticSource,
    act: F,
}

impl<F: Fn(u64) + Send + Sync> Source for Watched<F> {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        (self.act)(number);
        self.source.train(number, out)
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        self.source.validation(index, out)
    }

    fn shape(&self) -> BatchShape {
        self.source.shape()
    }

    fn validation_micro_batches(&self) -> u64 {
        COUNT
    }
}

fn from(first: u64) -> impl Iterator<Item = MicroBatchId> {
    (first..).map(Training)
}

#[test]
fn what_is_read_ahead_is_what_the_source_gives() {
    let source = Arc::new(synthetic());
    // In order, again, ahead, back, and from validation to training.
    let wanted = [
        (Training(0), 1),
        (Training(1), 2),
        (Training(1), 9),
        (Training(2), 3),
        (Training(7), 8),
        (Training(8), 0),
        (Training(0), 1),
        (Validation(3), 5),
        (Training(5), 6),
        (Training(6), 7),
    ];
    for depth in [0, 1, 4] {
        let mut prefetcher = Prefetcher::new(source.clone(), depth);
        for (id, next) in wanted {
            let mut expected = MicroBatch::default();
            source.read(id, &mut expected).unwrap();
            assert_eq!(*prefetcher.get(id, from(next)).unwrap(), expected, "{id} with depth {depth}");
            assert!(prefetcher.holds(id));
        }
    }
}

#[test]
fn reading_goes_ahead_as_far_as_it_may() {
    for depth in [1, 3] {
        let (sender, read): (Sender<u64>, Receiver<u64>) = channel();
        let sender = Mutex::new(sender);
        let act = move |number| sender.lock().unwrap().send(number).unwrap();
        let mut prefetcher = Prefetcher::new(Arc::new(Watched { source: synthetic(), act }), depth);
        for number in 0..3 {
            prefetcher.get(Training(number), from(number + 1)).unwrap();
        }
        // Reads ahead happen without further requests.
        let ahead: Vec<u64> = read.iter().take(3 + depth).collect();
        assert_eq!(ahead, (0..3 + depth as u64).collect::<Vec<_>>());
        drop(prefetcher);
        assert_eq!(read.iter().count(), 0, "more than {depth} ahead");
    }
}

#[test]
fn the_end_of_what_follows_is_the_end_of_reading() {
    let (sender, read): (Sender<u64>, Receiver<u64>) = channel();
    let sender = Mutex::new(sender);
    let act = move |number| sender.lock().unwrap().send(number).unwrap();
    let mut prefetcher = Prefetcher::new(Arc::new(Watched { source: synthetic(), act }), 8);
    for number in 0..3 {
        prefetcher.get(Training(number), (number + 1..3).map(Training)).unwrap();
    }
    drop(prefetcher);
    assert_eq!(read.iter().collect::<Vec<_>>(), [0, 1, 2]);
}

/// Dropping does not wait for a read that never ends, for example from an unreachable file server.
#[test]
fn dropping_does_not_wait_for_a_read() {
    let (sender, began): (Sender<u64>, Receiver<u64>) = channel();
    let (never, held): (Sender<()>, Receiver<()>) = channel();
    let sender = Mutex::new(sender);
    let held = Mutex::new(held);
    let act = move |number| {
        sender.lock().unwrap().send(number).unwrap();
        if number > 0 {
            // Until the end of the test.
            let _ = held.lock().unwrap().recv();
        }
    };
    let mut prefetcher = Prefetcher::new(Arc::new(Watched { source: synthetic(), act }), 2);
    prefetcher.get(Training(0), from(1)).unwrap();
    assert_eq!(began.iter().take(2).collect::<Vec<_>>(), [0, 1]);
    drop(prefetcher);
    drop(never);
}

/// If the thread ends, the caller reads the data itself.
#[test]
fn a_thread_that_panics_leaves_reading_to_the_caller() {
    let act = |_| assert!(std::thread::current().name() != Some("data"), "on purpose");
    let source = Arc::new(Watched { source: synthetic(), act });
    let mut prefetcher = Prefetcher::new(source.clone(), 2);
    for number in 0..4 {
        let mut expected = MicroBatch::default();
        source.train(number, &mut expected).unwrap();
        assert_eq!(*prefetcher.get(Training(number), from(number + 1)).unwrap(), expected);
    }
}

fn shard(path: &Path, tokens: &[u16]) {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    std::fs::write(path, bytes).unwrap();
}

fn tokens(path: &Path) -> Arc<TokenSource> {
    let patterns = [path.to_string_lossy().into_owned()];
    let corpus = Corpus::open_shards(Path::new("/"), &patterns).unwrap();
    let component = Component { split: Split::at_end(corpus.into(), 0.1).unwrap(), weight: 1.0 };
    let options = TokenOptions {
        context: 1000,
        micro_batch: 2,
        seed: 1,
        order: OrderKind::Sequential,
        validation_micro_batches: 1,
        vocabulary: 100,
        documents: None,
        ignored: None,
    };
    Arc::new(TokenSource::new(vec![component], Tokenizer::None, &options).unwrap())
}

/// A read error is returned when its micro-batch is needed, with the file's name; earlier micro-batches are
/// still read.
#[test]
fn errors_come_where_the_micro_batch_is_needed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.bin");
    let mut values = vec![7; 20_000];
    values[6500] = 100;
    shard(&path, &values);
    let source = tokens(&path);
    assert_eq!(source.file_of(Training(3)), Some(path.clone()));
    for depth in [0, 1, 8] {
        let mut prefetcher = Prefetcher::new(source.clone(), depth);
        for number in 0..3 {
            assert!(prefetcher.get(Training(number), from(number + 1)).is_ok(), "{number}");
        }
        for _ in 0..2 {
            let refused = prefetcher.get(Training(3), from(4)).unwrap_err().to_string();
            let expected = "token 100 at position 6500 is not below the vocabulary of 100";
            assert_eq!(refused, format!("{}: {expected}", path.display()));
            assert!(!prefetcher.holds(Training(3)));
        }
        assert!(prefetcher.get(Training(4), from(5)).is_ok());
    }
    // Truncated while it is read.
    let mut prefetcher = Prefetcher::new(source.clone(), 2);
    prefetcher.get(Training(0), from(1)).unwrap();
    shard(&path, &values[..9000]);
    let cut = (6..8).map(|number| prefetcher.get(Training(number), from(number + 1)).map(drop));
    let expected =
        format!("{} was changed while it was read: it had 40,000 bytes and has 18,000", path.display());
    assert!(cut.into_iter().all(|read| read.unwrap_err().to_string() == expected));
}
