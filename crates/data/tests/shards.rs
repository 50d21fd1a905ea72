//! Tests of token shards in the formats of nanoGPT and llm.c.

use data::{
    Component, Corpus, Error, MicroBatch, OrderKind, Source, Split, TokenOptions, TokenSource, Tokenizer,
};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Builds an llm.c header: 256 integers of 32 bits, three of them used.
fn header(magic: u32, version: u32, count: u32) -> Vec<u8> {
    let mut words = vec![0_u32; 256];
    words[..3].copy_from_slice(&[magic, version, count]);
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn raw(tokens: impl IntoIterator<Item = u16>) -> Vec<u8> {
    tokens.into_iter().flat_map(u16::to_le_bytes).collect()
}

fn shard16(tokens: std::ops::Range<u16>) -> Vec<u8> {
    [header(20_240_520, 1, tokens.len() as u32), raw(tokens)].concat()
}

fn shard32(tokens: std::ops::Range<u32>) -> Vec<u8> {
    let header = header(20_240_801, 7, tokens.len() as u32);
    [header, tokens.flat_map(u32::to_le_bytes).collect()].concat()
}

fn open(base: &Path, patterns: &[&str]) -> Result<Corpus, Error> {
    Corpus::open_shards(base, &patterns.iter().map(ToString::to_string).collect::<Vec<_>>())
}

fn alone(split: Split) -> Vec<Component> {
    vec![Component { split, weight: 1.0 }]
}

fn options(order: OrderKind) -> TokenOptions {
    TokenOptions {
        context: 4,
        micro_batch: 2,
        seed: 1,
        order,
        validation_micro_batches: 2,
        vocabulary: 1000,
        documents: None,
        ignored: None,
    }
}

#[test]
fn formats_are_recognised_by_their_headers_and_may_be_mixed() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("1.bin"), raw(0..100)).unwrap();
    fs::write(directory.path().join("2.bin"), shard16(100..200)).unwrap();
    fs::write(directory.path().join("3.bin"), shard32(200..300)).unwrap();
    let corpus = open(directory.path(), &["*.bin"]).unwrap();
    assert_eq!((corpus.len(), corpus.starts().collect()), (300, vec![0, 100, 200]));
    let mut tokens = vec![0; 300];
    corpus.read(0, &mut tokens).unwrap();
    assert_eq!(tokens, (0..300).collect::<Vec<_>>());
    let mut across = vec![0; 4];
    corpus.read(198, &mut across).unwrap();
    assert_eq!(across, [198, 199, 200, 201]);
}

#[test]
fn files_that_are_no_shards_are_refused_by_name() {
    let table: [(Vec<u8>, &str); 11] = [
        (header(20_240_520, 2, 0), "its version is 2, and this reads version 1"),
        (header(20_240_801, 1, 0), "its version is 1, and this reads version 7"),
        (header(20_240_326, 3, 0), "its magic number 20240326 (version 3) is none of a token shard"),
        // Any other number before as many tokens as the header counts.
        (
            [header(7, 1, 100), raw(0..100)].concat(),
            "its magic number 7 (version 1) is none of a token shard",
        ),
        ([header(0, 0, 50), raw(0..100)].concat(), "its magic number 0 (version 0) is none of a token shard"),
        (
            shard16(0..100)[..1100].to_vec(),
            "it is truncated: its header counts 100 tokens, which take 1,224 bytes, and it has 1,100",
        ),
        (
            shard16(0..100)[..12].to_vec(),
            "it is truncated: its header counts 100 tokens, which take 1,224 bytes, and it has 12",
        ),
        (
            [shard16(0..100), vec![0; 2]].concat(),
            "its header counts 100 tokens, which take 1,224 bytes, and it has 1,226",
        ),
        (vec![1, 2, 3], "it has no header, and 3 bytes are no whole number of 16-bit tokens"),
        (shard16(0..0), "it has no tokens"),
        (Vec::new(), "it has no tokens"),
    ];
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.bin");
    for (bytes, expected) in table {
        fs::write(&path, bytes).unwrap();
        let refused = open(directory.path(), &["a.bin"]).unwrap_err();
        let expected = format!("{} is no token shard that can be read: {expected}", path.display());
        assert_eq!(refused.to_string(), expected);
    }
}

#[test]
fn a_token_beyond_the_vocabulary_is_named_with_its_position() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("1.bin"), raw(0..100)).unwrap();
    let late = raw((0..10_000).map(|index| if index == 9000 { 1000 } else { 0 }));
    fs::write(directory.path().join("2.bin"), &late).unwrap();
    let named = |source: &TokenSource| {
        let error = (0..2000).find_map(|number| source.train(number, &mut MicroBatch::default()).err());
        error.unwrap().to_string()
    };
    let corpus = Arc::new(open(directory.path(), &["*.bin"]).unwrap());
    let split = || Split::at_end(Arc::clone(&corpus), 0.05).unwrap();
    let source = TokenSource::new(alone(split()), Tokenizer::None, &options(OrderKind::Sequential)).unwrap();
    let path = directory.path().join("2.bin");
    let expected =
        format!("{}: token 1000 at position 9000 is not below the vocabulary of 1000", path.display());
    assert_eq!(named(&source), expected);
    // Near the start it is found when the source is made.
    let few = TokenOptions { vocabulary: 99, ..options(OrderKind::Sequential) };
    let refused = TokenSource::new(alone(split()), Tokenizer::None, &few).unwrap_err();
    assert!(refused.to_string().ends_with("token 99 at position 99 is not below the vocabulary of 99"));
}

/// Order equals that of llm.c's `dataloader_next_batch` on one process: rows and batches are consecutive, and
/// tokens at the end of a shard are skipped.
#[test]
fn sequential_order_matches_llm_c() {
    let directory = TempDir::new().unwrap();
    // With 8 tokens in a micro-batch: 2 micro-batches and 3 tokens left; none; 1 micro-batch exactly.
    for (name, range) in [("a.bin", 0..20), ("b.bin", 100..108), ("c.bin", 200..209)] {
        fs::write(directory.path().join(name), shard16(range)).unwrap();
    }
    fs::write(directory.path().join("val"), shard16(500..517)).unwrap();
    let corpus = |pattern: &str| Arc::new(open(directory.path(), &[pattern]).unwrap());
    let all = |corpus| data::Slice::all(corpus);
    let split = Split { training: all(corpus("*.bin")), validation: all(corpus("val")) };
    let source = TokenSource::new(alone(split), Tokenizer::None, &options(OrderKind::Sequential)).unwrap();
    let firsts = |fill: &dyn Fn(&mut MicroBatch)| {
        let mut batch = MicroBatch::default();
        fill(&mut batch);
        let inputs = batch.inputs.tokens().unwrap();
        let targets = batch.targets.tokens().unwrap();
        assert!(inputs.iter().zip(targets).all(|(input, target)| input + 1 == *target));
        (inputs[0], inputs[4])
    };
    let trained: Vec<_> =
        (0..6).map(|number| firsts(&|batch| source.train(number, batch).unwrap())).collect();
    assert_eq!(trained, [(0, 4), (8, 12), (200, 204), (0, 4), (8, 12), (200, 204)]);
    assert_eq!(source.windows(), 6);
    assert_eq!((source.position(4, 1).1.epoch, source.position(4, 1).1.index), (1, 3));
    let validated: Vec<_> =
        (0..2).map(|index| firsts(&|batch| source.validation(index, batch).unwrap())).collect();
    assert_eq!(validated, [(500, 504), (508, 512)]);
}

/// Returns the number of bytes that this process has read from files so far.
fn read_bytes() -> u64 {
    let counters = fs::read_to_string("/proc/self/io").unwrap();
    counters.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[test]
fn twenty_gigabytes_open_without_being_read() {
    let directory = TempDir::new().unwrap();
    for shard in 0..100 {
        let path = directory.path().join(format!("{shard:03}.bin"));
        fs::write(&path, header(20_240_520, 1, 100_000_000)).unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1024 + 200_000_000).unwrap();
    }
    let before = read_bytes();
    let corpus = open(directory.path(), &["*.bin"]).unwrap();
    let split = Split::at_end(corpus.into(), 0.01).unwrap();
    let source = TokenSource::new(alone(split), Tokenizer::None, &options(OrderKind::Shuffled)).unwrap();
    source.train(123_456_789, &mut MicroBatch::default()).unwrap();
    // Other tests of this process read less than a gigabyte.
    let read = read_bytes() - before;
    assert!(read < 1_000_000_000, "{read} bytes");
    assert_eq!(source.splits().next().unwrap().training.tokens(), 9_900_000_000);
}

/// Builds documents of 0 to 6 tokens after the separator 0, in which all tokens of a document are equal.
fn documents(count: u16) -> Vec<u8> {
    raw((1..=count).flat_map(|n| [0].into_iter().chain(std::iter::repeat_n(n % 9 + 1, usize::from(n % 7)))))
}

#[test]
fn packed_sequences_are_whole_documents_with_their_starts() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("a.bin"), documents(500)).unwrap();
    let corpus = Arc::new(open(directory.path(), &["a.bin"]).unwrap());
    let documents = Some(data::Documents { separator: 0, packs: true, masks: true, marks_tokens: true });
    let options = TokenOptions { context: 16, documents, ..options(OrderKind::Shuffled) };
    let split = Split::at_end(Arc::clone(&corpus), 0.1).unwrap();
    let source = TokenSource::new(alone(split), Tokenizer::None, &options).unwrap();
    let figures = source.packing().unwrap();
    assert_eq!((figures.longer, figures.sequences), (0, source.windows()));
    let mut counted = 0;
    let mut batch = MicroBatch::default();
    for number in 0..source.windows().div_ceil(2) {
        source.train(number, &mut batch).unwrap();
        let inputs = batch.inputs.tokens().unwrap();
        let targets = batch.targets.tokens().unwrap();
        let starts = batch.documents.as_ref().unwrap().tokens().unwrap();
        let targets_here = targets.iter().filter(|target| **target != data::IGNORED).count() as u64;
        let id = data::MicroBatchId::Training(number);
        // Every token of a packed sequence has a target.
        assert_eq!((source.targets(id).unwrap(), source.tokens(id).unwrap()), (targets_here, targets_here));
        for (row, input) in inputs.chunks_exact(16).enumerate() {
            let target = &targets[16 * row..][..16];
            let starts = &starts[16 * row..][..16];
            assert_eq!(input[0], 0, "a sequence begins with a document");
            let own = target.iter().take_while(|target| **target != data::IGNORED).count();
            assert!(target[own..].iter().all(|target| *target == data::IGNORED));
            assert!(input[own..].iter().all(|input| *input == 0));
            assert_eq!(target[own - 1], 0, "a document's last target is the next one's separator");
            assert_eq!(input[1..own], target[..own - 1]);
            for (position, start) in starts.iter().enumerate() {
                let start = *start as usize;
                assert!(input[start] == 0 && input[start + 1..=position].iter().all(|token| *token != 0));
            }
            if 2 * number + (row as u64) < source.windows() {
                counted += own as u64;
            }
        }
    }
    assert_eq!((counted, figures.tokens), (source.splits().next().unwrap().training.tokens(), counted));
}

#[test]
fn an_ignored_token_is_no_target() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("a.bin"), raw((0..500).map(|n| n % 5))).unwrap();
    let split = Split::at_end(open(directory.path(), &["a.bin"]).unwrap().into(), 0.1).unwrap();
    let options = TokenOptions { ignored: Some(3), ..options(OrderKind::Shuffled) };
    let source = TokenSource::new(alone(split), Tokenizer::None, &options).unwrap();
    let mut batch = MicroBatch::default();
    source.train(0, &mut batch).unwrap();
    let expected = |input: &u32| if (input + 1) % 5 == 3 { data::IGNORED } else { (input + 1) % 5 };
    let targets: Vec<u32> = batch.inputs.tokens().unwrap().iter().map(expected).collect();
    assert_eq!(batch.targets.tokens().unwrap(), targets);
}

#[test]
fn a_mixture_takes_the_shares_of_each_source() {
    let directory = TempDir::new().unwrap();
    for (name, token) in [("a.bin", 1), ("b.bin", 2), ("c.bin", 3)] {
        fs::write(directory.path().join(name), raw(std::iter::repeat_n(token, 5000))).unwrap();
    }
    let component = |name: &str, weight: f64| {
        let split = Split::at_end(open(directory.path(), &[name]).unwrap().into(), 0.1).unwrap();
        Component { split, weight }
    };
    let parts = vec![component("a.bin", 6.0), component("b.bin", 3.0), component("c.bin", 1.0)];
    let options = TokenOptions { validation_micro_batches: 10, ..options(OrderKind::Shuffled) };
    let source = TokenSource::new(parts, Tokenizer::None, &options).unwrap();
    let shares = |batches: u64, fill: &dyn Fn(u64, &mut MicroBatch)| {
        let mut counts = [0; 3];
        let mut batch = MicroBatch::default();
        for number in 0..batches {
            fill(number, &mut batch);
            batch.inputs.tokens().unwrap().iter().for_each(|token| counts[*token as usize - 1] += 1);
        }
        counts.map(|count| f64::from(count) / (8 * batches) as f64)
    };
    let trained = shares(5000, &|number, batch| source.train(number, batch).unwrap());
    for (share, expected) in trained.into_iter().zip([0.6, 0.3, 0.1]) {
        assert!((share - expected).abs() < 0.02, "{trained:?}");
    }
    assert_eq!(shares(10, &|index, batch| source.validation(index, batch).unwrap()), [0.6, 0.3, 0.1]);
}
