//! Tests of tokenizing files of every kind.

use data::{Corpus, Tokenizer};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use system::skipped::{self, Need};
use tempfile::TempDir;
use tokenize::{Counts, Error, Format, HeldOut, Job, tokenize, train_tokenizer};

/// Generates documents of different lengths, some with multi-byte characters.
fn documents(count: usize) -> Vec<String> {
    let word = |n: usize| ["the", "quick", "brown", "fox\n", "é", "世界", "12", "dog's"][n % 8];
    let document = |n: usize| (0..n % 37).map(|i| format!(" {}", word(n * 7 + i * i))).collect::<String>();
    (0..count).map(|n| format!("document {n}{}", document(n))).collect()
}

fn json_lines(documents: &[String]) -> Vec<u8> {
    let line = |text: &String| serde_json::json!({"id": 1, "text": text, "meta": {"text": "no"}}).to_string();
    documents.iter().map(|text| line(text) + "\n").collect::<String>().into_bytes()
}

fn parquet(documents: &[String]) -> Vec<u8> {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    let schema = "message schema { REQUIRED INT64 id; OPTIONAL BYTE_ARRAY text (UTF8); }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let compression = parquet::basic::Compression::ZSTD(Default::default());
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
    for group in documents.chunks(100) {
        let mut rows = writer.next_row_group().unwrap();
        let mut ids = rows.next_column().unwrap().unwrap();
        let numbers: Vec<i64> = (0..group.len() as i64).collect();
        ids.typed::<parquet::data_type::Int64Type>().write_batch(&numbers, None, None).unwrap();
        ids.close().unwrap();
        let mut texts = rows.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = group.iter().map(|text| text.as_bytes().to_vec().into()).collect();
        let levels = vec![1; values.len()];
        texts.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        texts.close().unwrap();
        rows.close().unwrap();
    }
    writer.into_inner().unwrap()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zst(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

fn job(directory: &Path, files: &[(&str, Vec<u8>)]) -> Job {
    let write = |(name, bytes): &(&str, Vec<u8>)| {
        let path = directory.join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    Job::new(files.iter().map(write).collect(), Tokenizer::Gpt2, directory.join("out")).unwrap()
}

/// Reads the `.bin` files of a directory, sorted by name.
fn contents(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "bin")).collect();
    files.sort();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
}

fn tokens(directory: &Path, pattern: &str) -> Vec<u32> {
    let corpus = Corpus::open_shards(directory, &[pattern.to_owned()]).unwrap();
    let mut tokens = vec![0; corpus.len() as usize];
    corpus.read(0, &mut tokens).unwrap();
    tokens
}

fn expected(documents: &[String]) -> Vec<u32> {
    let encode = |text: &String| [vec![50256], Tokenizer::Gpt2.encode(text).unwrap()].concat();
    documents.iter().flat_map(encode).collect()
}

#[test]
fn every_kind_of_file_gives_the_same_tokens() {
    let documents = documents(500);
    let lines = json_lines(&documents);
    let joined = documents.join("\u{1}").into_bytes();
    let kinds: [(&str, Vec<u8>); 8] = [
        ("a.jsonl", lines.clone()),
        ("a.ndjson.gz", gz(&lines)),
        ("a.json.zst", zst(&lines)),
        ("a.jsonl.gz", [gz(&lines[..1000]), gz(&lines[1000..])].concat()),
        ("a.parquet", parquet(&documents)),
        ("a.txt", joined.clone()),
        ("a.txt.gz", gz(&joined)),
        ("a.zst", zst(&joined)),
    ];
    for (name, bytes) in kinds {
        let directory = TempDir::new().unwrap();
        let is_text = !name.contains("json") && !name.contains("parquet");
        let end = is_text.then(|| "\u{1}".to_owned());
        let counts = tokenize(&Job { document_end: end, ..job(directory.path(), &[(name, bytes)]) }).unwrap();
        let mut actual = tokens(&directory.path().join("out"), "train_*.bin");
        assert_eq!((counts.documents, counts.training_tokens), (500, actual.len() as u64), "{name}");
        // The end of a document stays in the text.
        actual.retain(|token| !(is_text && *token == 189));
        assert!(actual == expected(&documents), "{name}");
    }
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let documents = documents(1500);
    let files = [("a.jsonl", json_lines(&documents)), ("b.txt", documents.concat().repeat(4).into_bytes())];
    let table = [HeldOut::Nothing, HeldOut::Fraction(0.2), HeldOut::Tokens(5000), HeldOut::Shard];
    for held_out in table {
        let directory = TempDir::new().unwrap();
        let job = Job { held_out, shard_tokens: 30_000, ..job(directory.path(), &files) };
        let with = |threads: usize, name: &str| -> (Counts, Vec<(String, Vec<u8>)>) {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let job = Job { output: directory.path().join(name), ..job.clone() };
            (pool.install(|| tokenize(&job)).unwrap(), contents(&job.output))
        };
        let one = with(1, "one");
        assert!(with(3, "three") == one, "{held_out:?}");
        assert!(one.1.iter().all(|(_, shard)| shard.len() <= 1024 + 60_000));
    }
}

/// Simulates a kill: the record has fewer units than the shards contain.
#[test]
fn a_killed_job_continues_after_its_record() {
    const DONE: usize = 900;
    const SHARD: usize = 10_000;
    let documents = documents(1500);
    let directory = TempDir::new().unwrap();
    let job = job(directory.path(), &[("a.jsonl", json_lines(&documents))]);
    let job = Job { shard_tokens: SHARD as u64, ..job };
    let counts = tokenize(&job).unwrap();
    let mut whole = contents(&job.output);
    let done = expected(&documents[..DONE]).len();
    let text = fs::read_to_string(job.output.join("tokens.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["units"] = DONE.into();
    record["training"] = serde_json::json!({"shard": done / SHARD, "tokens": done % SHARD, "total": done});
    record["counts"]["documents"] = DONE.into();
    record["counts"]["bytes"] = documents[..DONE].iter().map(String::len).sum::<usize>().into();
    // The first shard is marked, so that writing it again would be noticed.
    whole[0].1[2000] ^= 1;
    let output = directory.path().join("killed");
    let partial = directory.path().join("killed.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("tokens.json"), record.to_string()).unwrap();
    for (index, (name, shard)) in whole.iter().enumerate().take(done / SHARD + 2) {
        let more: &[u8] = if index < done / SHARD { b"" } else { b"more" };
        fs::write(partial.join(name), [shard.as_slice(), more].concat()).unwrap();
    }
    let job = Job { output, ..job };
    assert_eq!(tokenize(&job).unwrap(), counts);
    assert!(contents(&job.output) == whole);
    assert!(!partial.exists());
}

#[test]
fn a_finished_job_is_not_repeated_and_another_is_refused() {
    let directory = TempDir::new().unwrap();
    let job = job(directory.path(), &[("a.txt", b"hello world".to_vec())]);
    let counts = tokenize(&job).unwrap();
    assert_eq!((counts.training_tokens, counts.bytes), (3, 11));
    let modified = |name: &str| fs::metadata(job.output.join(name)).unwrap().modified().unwrap();
    let before = modified("train_000000.bin");
    assert_eq!(tokenize(&job).unwrap(), counts);
    assert_eq!(modified("train_000000.bin"), before);
    let other = Job { separator: None, ..job.clone() };
    let refused = tokenize(&other).unwrap_err();
    assert_eq!(refused.to_string(), format!("{} exists and holds something else", job.output.display()));
}

#[test]
fn invalid_input_is_refused_by_name_or_counted() {
    let good = r#"{"text": "fine"}"#;
    let table: [(&str, Vec<u8>, &str); 7] = [
        (
            "a.jsonl",
            format!("{good}\n\n{{\"text\": 1}}\n").into(),
            ":3: \"text\" is not a string at column 11",
        ),
        (
            "a.jsonl",
            format!("{good}\n{{\"text\": \"a\"\n").into(),
            ":2: EOF while parsing an object at column 12",
        ),
        ("a.jsonl", format!("{good}\n{{\"body\": \"a\"}}").into(), ":2: it has no key \"text\""),
        (
            "a.jsonl",
            format!("{good}\n[1]").into(),
            ":2: invalid type: sequence, expected an object at column 0",
        ),
        (
            "a.txt",
            b"ab\xffc".to_vec(),
            ": its text is not UTF-8: invalid utf-8 sequence of 1 bytes from index 2",
        ),
        ("a.parquet", b"no".to_vec(), ""),
        ("a.gz", b"no gzip, and long enough to see it".to_vec(), ": cannot read it: invalid gzip header"),
    ];
    for (name, bytes, expected) in table {
        let directory = TempDir::new().unwrap();
        let job = job(directory.path(), &[(name, bytes), ("b.txt", b"more".to_vec())]);
        let refused = tokenize(&job).unwrap_err().to_string();
        let start = format!("{}{expected}", directory.path().join(name).display());
        assert!(refused.starts_with(&start), "{refused}");
        assert!(!job.output.exists());
        if !name.contains("parquet") && !name.contains("gz") {
            let counts = tokenize(&Job { skip_invalid: true, ..job }).unwrap();
            assert_eq!(counts.skipped, 1, "{name}");
        }
    }
    let directory = TempDir::new().unwrap();
    let job = job(directory.path(), &[("a.parquet", parquet(&documents(3)))]);
    let refused = tokenize(&Job { text_key: "body".to_owned(), ..job }).unwrap_err().to_string();
    assert!(refused.ends_with("it has no column \"body\"; there is \"id\", \"text\""), "{refused}");
}

/// A single text is split into training and validation tokens as by nanoGPT's and llm.c's scripts.
#[test]
fn one_text_is_split_as_by_nanogpt_and_llm_c() {
    let text = documents(900).join("\n\n");
    let encode = |text: &str| Tokenizer::Gpt2.encode(text).unwrap();
    let directory = TempDir::new().unwrap();
    let job = job(directory.path(), &[("input.txt", text.clone().into_bytes())]);
    // data[:int(n * 0.9)], encode_ordinary, tofile as uint16.
    let nano = Job { format: Format::NanoGpt, held_out: HeldOut::Fraction(0.1), ..job.clone() };
    tokenize(&nano).unwrap();
    let border = (text.chars().count() as f64 * 0.9) as usize;
    let border = text.char_indices().nth(border).unwrap().0;
    let raw = |text: &str| encode(text).iter().flat_map(|t| (*t as u16).to_le_bytes()).collect::<Vec<u8>>();
    let files =
        [("train.bin".to_owned(), raw(&text[..border])), ("val.bin".to_owned(), raw(&text[border..]))];
    assert!(contents(&nano.output) == files);
    // text.split("\n\n"), the separator before each section; the first tokens are for validation.
    let held_out = HeldOut::Tokens(3000);
    let document_end = Some("\n\n".to_owned());
    let output = directory.path().join("llmc");
    let llmc = Job { held_out, document_end, output, ..job };
    tokenize(&llmc).unwrap();
    let sections: Vec<&str> = text.split_inclusive("\n\n").collect();
    let all: Vec<u32> = sections.iter().flat_map(|s| [vec![50256], encode(s)].concat()).collect();
    let shard = |tokens: &[u32]| {
        let mut words = vec![0_u32; 256];
        words[..3].copy_from_slice(&[20_240_520, 1, tokens.len() as u32]);
        let header = words.into_iter().flat_map(u32::to_le_bytes);
        header.chain(tokens.iter().flat_map(|t| (*t as u16).to_le_bytes())).collect::<Vec<u8>>()
    };
    let (val, train) = all.split_at(3000);
    let files = [("train_000000.bin".to_owned(), shard(train)), ("val_000000.bin".to_owned(), shard(val))];
    assert!(contents(&llmc.output) == files);
}

/// Numbers of tokens equal those of nanoGPT's `data/shakespeare/prepare.py` and llm.c's
/// `dev/data/tinyshakespeare.py`. The text is not part of this project; `PLIMSOLL_TINYSHAKESPEARE` names it.
#[test]
fn tinyshakespeare_has_the_counts_of_the_projects_own_scripts() {
    let Some(text) = std::env::var_os("PLIMSOLL_TINYSHAKESPEARE") else {
        skipped::report(Need::Other("tinyshakespeare"), "PLIMSOLL_TINYSHAKESPEARE names no file");
        return;
    };
    let directory = TempDir::new().unwrap();
    let output = |name: &str| directory.path().join(name);
    let job = Job::new(vec![text.into()], Tokenizer::Gpt2, output("nanogpt")).unwrap();
    let counts = |job: &Job| {
        let counts = tokenize(job).unwrap();
        (counts.training_tokens, counts.validation_tokens)
    };
    let nanogpt = Job { format: Format::NanoGpt, held_out: HeldOut::Fraction(0.1), ..job.clone() };
    assert_eq!(counts(&nanogpt), (301_966, 36_059));
    let held_out = HeldOut::Tokens(32_768);
    let document_end = Some("\n\n".to_owned());
    let llmc = Job { held_out, document_end, output: output("llmc"), ..job };
    assert_eq!(counts(&llmc), (305_260, 32_768));
}

#[test]
fn a_trained_tokenizer_encodes_its_training_text() {
    let directory = TempDir::new().unwrap();
    let text = documents(500).join("\n");
    fs::write(directory.path().join("a.txt"), &text).unwrap();
    let files = || vec![directory.path().join("a.txt")];
    let path = directory.path().join("tokenizer.json");
    assert_eq!(train_tokenizer(files(), 400, "text", &path).unwrap(), 400);
    let tokenizer = Tokenizer::from_name(path.to_str().unwrap()).unwrap();
    assert_eq!((tokenizer.vocabulary(), tokenizer.separator()), (400, Some(0)));
    assert!(tokenizer.cuts_at_spaces());
    let encoded = tokenizer.encode(&text).unwrap();
    assert!(encoded.len() * 2 < text.len(), "{} {}", encoded.len(), text.len());
    assert_eq!(tokenizer.decode(&encoded), text);
    let lengths = tokenizer.byte_lengths().unwrap();
    assert_eq!(encoded.iter().map(|token| lengths[*token as usize] as usize).sum::<usize>(), text.len());
    // Every byte has a token, and the same training gives the same file.
    assert_eq!(tokenizer.decode(&tokenizer.encode("🦀\u{0}").unwrap()), "🦀\u{0}");
    let again = directory.path().join("again.json");
    train_tokenizer(files(), 400, "text", &again).unwrap();
    assert!(fs::read(&again).unwrap() == fs::read(&path).unwrap());
    assert!(matches!(train_tokenizer(files(), 256, "text", &again), Err(Error::Refused(_))));
}
