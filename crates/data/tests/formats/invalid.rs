//! Tests of invalid lines, which are refused or skipped.

use std::fs;

use data::{ChatReading, ChatTemplate, Error, PairReading, Tokenizer, TrainOn};

use super::{reading, template, texts};

const GOOD: &str =
    r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;
const QUESTION: &str = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;
const PAIR: &str = r#"{"prompt": "q", "chosen": "a", "rejected": "b"}"#;

/// Reads files of these texts, and returns the number of conversations in each.
fn conversations(files: &[&str], skip_invalid: bool) -> Result<Vec<usize>, Error> {
    let directory = tempfile::tempdir().unwrap();
    let paths: Vec<_> =
        (0..files.len()).map(|index| directory.path().join(format!("{index}.jsonl"))).collect();
    for (path, text) in paths.iter().zip(files) {
        fs::write(path, text).unwrap();
    }
    let template = template();
    let reading = ChatReading { skip_invalid, ..reading(&template, &TrainOn::Answers) };
    let read = reading.read(&paths)?;
    assert!(read.iter().flatten().all(|one| texts(one).1 == "ho</>"));
    Ok(read.iter().map(Vec::len).collect())
}

#[test]
fn invalid_lines_are_left_out_on_request() {
    for bad in [
        "{\"messages\": [",
        "words",
        "7",
        "{\"other\": 1}",
        "{\"messages\": []}",
        "{\"messages\": [{\"role\": \"gpt\", \"content\": \"a\"}]}",
        QUESTION,
    ] {
        let text = format!("{GOOD}\n{bad}\n{GOOD}\n");
        let refused = conversations(&[&text], false).unwrap_err().to_string();
        assert!(refused.contains("0.jsonl:2: "), "{bad}: {refused}");
        assert_eq!(conversations(&[&text], true).unwrap(), [2], "{bad}");
        let listed = format!("[{GOOD},\n{{\"other\": 1}},\n{GOOD}]");
        assert_eq!(conversations(&[&text, &listed], true).unwrap(), [2, 2], "{bad}");
        // A file of which nothing is left.
        let refused = conversations(&[GOOD, &format!("{bad}\n{bad}")], true).unwrap_err().to_string();
        assert!(refused.contains("1.jsonl: nothing is left of it: 2 of its lines are invalid"), "{refused}");
        assert!(refused.contains("1.jsonl:1: "), "{refused}");
    }
    assert_eq!(conversations(&[GOOD, ""], true).unwrap(), [1, 0]);
    // A list without an end is no line.
    assert!(conversations(&[&format!("[{GOOD},")], true).is_err());
}

#[test]
fn conversations_that_the_template_refuses_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let [path, file] = ["c.jsonl", "t.jinja"].map(|name| directory.path().join(name));
    let refusing = "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('not that') }}{% endif %}\
                    {{ m.content }}{% endfor %}";
    fs::write(&file, refusing).unwrap();
    let template = ChatTemplate::of_file(&file, &Tokenizer::Bytes).unwrap();
    let bad = GOOD.replace("hi", "no");
    fs::write(&path, format!("{GOOD}\n{bad}\n{bad}\n{bad}\n{bad}\n{GOOD}\n")).unwrap();
    for (skip_invalid, expected) in [(false, None), (true, Some(2))] {
        let reading = ChatReading { skip_invalid, ..reading(&template, &TrainOn::Answers) };
        match (reading.read(std::slice::from_ref(&path)), expected) {
            (Ok(read), Some(expected)) => assert_eq!(read[0].len(), expected),
            (Err(refused), None) => {
                let refused = refused.to_string();
                assert!(refused.contains("c.jsonl:2: ") && refused.ends_with("not that"), "{refused}");
            }
            (read, expected) => panic!("{read:?}, {expected:?}"),
        }
    }
}

/// A missing template or an unknown token is an error even if invalid lines are skipped.
#[test]
fn faults_of_the_settings_are_refused_anyway() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    fs::write(&path, format!("{GOOD}\nwords\n{GOOD}\n")).unwrap();
    let template = template();
    let missing = Error::NoPaths;
    let good = ChatReading { skip_invalid: true, ..reading(&template, &TrainOn::Answers) };
    assert_eq!(good.read(std::slice::from_ref(&path)).unwrap()[0].len(), 2);
    for reading in [ChatReading { vocabulary: 64, ..good }, ChatReading { template: Err(&missing), ..good }] {
        assert!(reading.read(std::slice::from_ref(&path)).is_err());
    }
}

#[test]
fn invalid_pairs_are_left_out_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("p.jsonl");
    let missing = Error::NoPaths;
    let messages = r#"{"chosen": [{"role": "user", "content": "q"}], "rejected": []}"#;
    let read = |text: &str, skip_invalid| {
        fs::write(&path, text).unwrap();
        let reading = PairReading {
            template: Err(&missing),
            tokenizer: &Tokenizer::Bytes,
            vocabulary: 256,
            skip_invalid,
        };
        let read = reading.read(std::slice::from_ref(&path)).map_err(|error| error.to_string())?;
        Ok::<_, String>(read.iter().map(Vec::len).sum::<usize>())
    };
    for bad in ["words", "{\"chosen\": \"a\"}", "{\"chosen\": \"a\", \"rejected\": 1}"] {
        let text = format!("{PAIR}\n{bad}\n{PAIR}");
        assert!(read(&text, false).unwrap_err().contains("p.jsonl:2: "), "{bad}");
        assert_eq!(read(&text, true), Ok(2), "{bad}");
        assert!(read(bad, true).unwrap_err().contains("p.jsonl: nothing is left of it"), "{bad}");
    }
    // Messages without a template.
    assert!(read(&format!("{PAIR}\n{messages}"), true).unwrap_err().contains("p.jsonl:2: "));
}
