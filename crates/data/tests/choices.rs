//! Questions with several endings, from both kinds of files, and as micro-batches.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the report of a failure")]

use data::{ChoiceSource, Ending, IGNORED, MicroBatch, Question, Questions, Source, Tokenizer};

const LINES: &str = r#"{"ctx": "ab", "endings": ["c", "de"], "label": 1}

{"context": "x", "endings": ["y"], "label": "0", "more": null}
"#;

fn read(name: &str, bytes: &[u8]) -> Result<Questions, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    Questions::read(&path, &Tokenizer::Bytes).map_err(|error| error.to_string())
}

/// A file as llm.c writes it: a header, and an example of two endings.
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
    let ending =
        |text: &str| Ending { tokens: text.bytes().map(u32::from).collect(), bytes: Some(text.len() - 1) };
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
    let ending = |token| Ending { tokens: vec![token], bytes: None };
    let endings = vec![ending(99), ending(100)];
    assert_eq!(file.questions, [Question { context: vec![97, 98], endings, label: 1 }]);
    assert_eq!((lines.sha256.len(), file.sha256.len()), (64, 64));
}

#[test]
fn a_micro_batch_is_one_context_with_one_ending() {
    let questions = read("q.jsonl", LINES.as_bytes()).unwrap().questions;
    assert!(ChoiceSource::new(questions.clone(), 3).is_err());
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
    let lines: [(&str, &str); 6] = [
        ("", "line 1: there is no question"),
        ("{\"ctx\": \"a\"}", "line 1: it has no list \"endings\""),
        (
            "{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": 1}",
            "line 1: its label is 1, and it has 1 endings",
        ),
        ("{\"ctx\": \"\", \"endings\": [\"b\"], \"label\": 0}", "line 1: its context has no token"),
        ("{\"ctx\": \"a\", \"endings\": [3], \"label\": 0}", "line 1: an ending is no text"),
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
