//! Tests of multiple-choice questions, from both file formats and as micro-batches.

use crate::common::{byte_level, sentence_pieces, tokenizer};
use data::{ChoiceSource, Ending, IGNORED, MicroBatch, Question, Questions, Source, TextLengths, Tokenizer};
use serde_json::{Value, json};

const LINES: &str = r#"{"ctx": "ab", "endings": ["c", "de"], "label": 1}

{"context": "x", "ctx": null, "endings": ["y"], "label": "0", "more": null}
"#;

fn read(name: &str, bytes: &[u8]) -> Result<Questions, String> {
    read_with(name, bytes, &Tokenizer::Bytes)
}

fn read_with(name: &str, bytes: &[u8], tokenizer: &Tokenizer) -> Result<Questions, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    Questions::read(&path, tokenizer).map_err(|error| error.to_string())
}

/// Builds a file as llm.c writes it: a header, and an example with two endings.
fn eval_file(edit: impl Fn(&mut Vec<u32>, &mut Vec<u16>)) -> Vec<u8> {
    let mut header = vec![0; 256];
    header[..4].copy_from_slice(&[20_240_522, 1, 1, 24]);
    let mut example = vec![65_535, 24, 0, 1, 2, 2, 97, 98, 1, 99, 1, 100];
    edit(&mut header, &mut example);
    let words = header.iter().flat_map(|word| word.to_le_bytes());
    words.chain(example.iter().flat_map(|number| number.to_le_bytes())).collect()
}

#[test]
fn both_kinds_of_files_are_read() {
    let ending = |text: &str| Ending {
        tokens: text.bytes().map(u32::from).collect(),
        lengths: Some(TextLengths { characters: text.len() - 1, bytes: text.len() - 1 }),
    };
    let lines = read("q.jsonl", LINES.as_bytes()).unwrap();
    assert_eq!(
        lines.questions,
        [
            Question { context: vec![97, 98], endings: vec![ending(" c"), ending(" de")], label: 1 },
            Question { context: vec![120], endings: vec![ending(" y")], label: 0 },
        ]
    );
    assert_eq!(lines.longest(), 5);
    let file = read("q.bin", &eval_file(|_, _| ())).unwrap();
    let ending = |token| Ending { tokens: vec![token], lengths: None };
    let endings = vec![ending(99), ending(100)];
    assert_eq!(file.questions, [Question { context: vec![97, 98], endings, label: 1 }]);
    assert_eq!((lines.sha256.len(), file.sha256.len()), (64, 64));
}

#[test]
fn a_micro_batch_is_one_context_with_one_ending() {
    let questions = read("q.jsonl", LINES.as_bytes()).unwrap().questions;
    // An ending needs as many inputs as it has tokens.
    assert!(ChoiceSource::new(questions.clone(), 2).is_err());
    let cut = ChoiceSource::new(questions.clone(), 3).unwrap();
    let mut short = MicroBatch::default();
    cut.validation(1, &mut short).unwrap();
    assert_eq!(short.inputs.tokens().unwrap(), [98, 32, 100]);
    assert_eq!(short.targets.tokens().unwrap(), [32, 100, 101]);
    let source = ChoiceSource::new(questions, 4).unwrap();
    let mut batch = MicroBatch::default();
    let none = IGNORED;
    let expected = [
        ([97, 98, 32, 99], [none, 32, 99, none]),
        ([97, 98, 32, 100], [none, 32, 100, 101]),
        ([120, 32, 121, 0], [32, 121, none, none]),
    ];
    assert_eq!(source.validation_micro_batches(), 3);
    for (index, (inputs, targets)) in expected.iter().enumerate() {
        source.validation(index as u64, &mut batch).unwrap();
        assert_eq!(
            (batch.inputs.tokens().unwrap(), batch.targets.tokens().unwrap()),
            (&inputs[..], &targets[..])
        );
        assert_eq!(batch.inputs.shape, [1, 4]);
    }
    assert!(source.validation(3, &mut batch).is_err());
}

#[test]
fn what_is_no_question_is_refused_with_its_place() {
    let lines = [
        ("", "line 1: there is no question"),
        ("{\"ctx\": \"a\"}", "line 1: it has no list \"endings\""),
        (
            "{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": 1}",
            "line 1: its label names ending 2, and it has 1",
        ),
        (
            "{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": \"C\"}",
            "line 1: its label names ending 3, and it has 1",
        ),
        (
            "{\"ctx\": \"a\", \"endings\": [\"B\", \"A\"], \"label\": \"A\"}",
            "line 1: its label is A, which is the letter of ending 1 and the text of ending 2",
        ),
        ("{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": \"b c\"}", "line 1: it has no \"label\""),
        ("{\"ctx\": \"a\", \"endings\": [3], \"label\": 0}", "line 1: an ending is no text"),
        (
            "{\"ctx\": \"a\", \"context\": \"b\", \"endings\": [\"c\"], \"label\": 0}",
            "line 1: its \"context\" and \"ctx\" are two texts",
        ),
        (
            "{\"ctx\": \"a\", \"endings\": [\"b\\ud83d\"], \"label\": 0}",
            "line 1: its \"endings\" has NaN, Infinity or half of a surrogate pair",
        ),
        (
            "{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": 0, \"weight\": 0.5}",
            "line 1: \"weight\" = 0.5 is not supported",
        ),
        (
            "{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": 0, \"gold\": 1}",
            "line 1: \"gold\" = 1 is not supported",
        ),
        ("\n\nnone", "line 3: it is no JSON: expected"),
    ];
    for (text, expected) in lines {
        let error = read("q.jsonl", text.as_bytes()).unwrap_err();
        assert!(error.contains("q.jsonl") && error.contains(expected), "{error}");
    }
    type Edit = fn(&mut Vec<u32>, &mut Vec<u16>);
    let files: [(Edit, &str); 6] = [
        (|header, _| header[0] = 1, "magic 1 and version 1"),
        (|_, example| example[0] = 1, "begins with 1"),
        (|_, example| example[1] = 26, "26 bytes"),
        (|_, example| example[2] = 1, "its number is 1"),
        (|_, example| example[5] = 200, "cut short"),
        (|_, example| example.push(7), "bytes follow"),
    ];
    for (edit, expected) in files {
        let error = read("q.bin", &eval_file(edit)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

/// Reads one question.
fn question(question: &Value, tokenizer: &Tokenizer) -> Result<Question, String> {
    let read = read_with("q.jsonl", question.to_string().as_bytes(), tokenizer)?;
    Ok(read.questions.into_iter().next().unwrap())
}

#[test]
fn endings_are_encoded_with_their_context() {
    let pieces = tokenizer(&sentence_pieces(&["the", "sky", "is", "blue"], &["</s>"]), &[]);
    let token = |text: &str| pieces.token(text).unwrap();
    let the = token("\u{2581}the");
    let is = token("\u{2581}is");
    let blue = token("\u{2581}blue");
    // A token of "b" and the mark for a space would join context and ending.
    let mut described = byte_level(&[["b", "\u{120}"]], &["<|bos|>"]);
    described["pre_tokenizer"]["use_regex"] = false.into();
    let joined = tokenizer(&described, &[]);
    let plain = tokenizer(&byte_level(&[], &[]), &[]);
    for (tokenizer, context, endings, expected) in [
        (&pieces, "the", vec!["is", "blue"], (vec![1, the], vec![vec![is], vec![blue]])),
        (&pieces, "<s>the", vec!["is"], (vec![1, the], vec![vec![is]])),
        // White space at the end of a context belongs to the endings.
        (&pieces, "the ", vec!["is"], (vec![1, the], vec![vec![token("\u{2581}"), is]])),
        (&pieces, "", vec!["is"], (vec![1], vec![vec![token("\u{2581}"), is]])),
        (&pieces, " ", vec!["is"], (vec![1], vec![vec![token("\u{2581}"), token("\u{2581}"), is]])),
        (&joined, "ab", vec!["c"], (vec![97, 98], vec![vec![99]])),
        (&joined, "a\u{1F}", vec!["c"], (vec![97], vec![vec![0x1F, 32, 99]])),
        (&joined, "", vec!["c"], (vec![257], vec![vec![32, 99]])),
        (&Tokenizer::Bytes, "", vec!["c"], (vec![0], vec![vec![32, 99]])),
        (&Tokenizer::Gpt2, "", vec!["hello"], (vec![50256], vec![vec![23748]])),
    ] {
        let text = json!({"context": context, "endings": endings, "label": 0});
        let Question { context, endings, .. } = question(&text, tokenizer).unwrap();
        let endings: Vec<_> = endings.into_iter().map(|ending| ending.tokens).collect();
        assert_eq!((context, endings), expected, "{text}");
    }
    let empty = question(&json!({"context": "", "endings": ["c"], "label": 0}), &plain).unwrap_err();
    assert!(empty.contains("its context is empty, and no file of the tokenizer"), "{empty}");
}

#[test]
fn labels_are_numbers_or_letters() {
    for (label, expected) in [(json!(1), 1), (json!("1"), 1), (json!("B"), 1), (json!("c"), 2)] {
        let text = json!({"context": "x", "endings": ["1", "2", "3"], "label": label});
        assert_eq!(question(&text, &Tokenizer::Bytes).unwrap().label, expected, "{label}");
    }
    let letters = json!({"context": "x", "endings": ["A", "B"], "label": "B"});
    assert_eq!(question(&letters, &Tokenizer::Bytes).unwrap().label, 1);
}

/// A file larger than memory is refused before anything is allocated.
#[test]
fn endless_questions_and_tokenizers_are_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["q.jsonl", "q.bin", "tokenizer.json"] {
        let path = directory.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(1 << 42).unwrap();
        let refused = match name {
            "tokenizer.json" => Tokenizer::from_name(path.to_str().unwrap()).unwrap_err(),
            _ => Questions::read(&path, &Tokenizer::Bytes).unwrap_err(),
        };
        let expected = "cannot be read: it has more than ";
        assert!(refused.to_string().starts_with(&format!("{} {expected}", path.display())), "{refused}");
    }
}
