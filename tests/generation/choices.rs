//! Tests of multiple-choice questions in JSON lines. Tokens, accuracies and losses must equal those of
//! lm-evaluation-harness 0.4.13, recorded by `tests/golden/choices/lm_eval_scores.py`.

use std::fs;

use data::{Questions, Tokenizer};
use inference::EvaluateOptions;
use run::Startup;
use serde_json::{Value, json};
use worker::DeviceChoice;

use crate::common::golden;
use crate::families::folder;

/// Context in tokens; some of the questions are longer.
const CONTEXT: usize = 48;

#[test]
fn thirty_questions_are_scored_as_by_lm_evaluation_harness() {
    let files = golden("choices");
    let questions = files.join("questions.jsonl");
    let expected: Value = serde_json::from_slice(&fs::read(files.join("expected.json")).unwrap()).unwrap();
    for name in ["pieces", "byte_level"] {
        let directory = tempfile::tempdir().unwrap();
        let model = folder("models/llama");
        for file in ["config.json", "model.safetensors"] {
            fs::copy(model.join(file), directory.path().join(file)).unwrap();
        }
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(files.join(name).join(file), directory.path().join(file)).unwrap();
        }
        let expected = &expected[name];
        let tokenizer = Tokenizer::from_name(directory.path().to_str().unwrap()).unwrap();
        let read = Questions::read(&questions, &tokenizer).unwrap();
        assert_eq!(read.questions.len(), 30);
        let rows = read.questions.iter().flat_map(|question| {
            question.endings.iter().map(|ending| json!([question.context, ending.tokens]))
        });
        for (number, (row, expected)) in rows.zip(expected["rows"].as_array().unwrap()).enumerate() {
            assert_eq!(row, *expected, "{name}: ending {number} of all");
        }
        let options = EvaluateOptions {
            model: directory.path().to_owned(),
            choices: Some(questions.clone()),
            context: Some(CONTEXT),
            device: DeviceChoice::Cpu,
            ..EvaluateOptions::default()
        };
        let evaluation = inference::evaluate(Startup::alone(), &options).unwrap().unwrap();
        let choices = evaluation.choices.unwrap();
        assert_eq!(json!(choices.accuracy), expected["acc"], "{name}");
        assert_eq!(json!(choices.accuracy_per_character), expected["acc_norm"], "{name}");
        assert_eq!(json!(choices.accuracy_per_byte), expected["acc_bytes"], "{name}");
        assert_eq!(json!(evaluation.tokens), expected["tokens"], "{name}");
        let loss = expected["loss"].as_f64().unwrap();
        assert!((evaluation.loss - loss).abs() < 1e-5 * loss, "{name}: {} and {loss}", evaluation.loss);
        // With whole contexts there are equally many predicted tokens, and the loss differs.
        let whole = EvaluateOptions { context: None, ..options };
        let whole = inference::evaluate(Startup::alone(), &whole).unwrap().unwrap();
        assert_eq!(whole.tokens, evaluation.tokens, "{name}");
        assert!((whole.loss - loss).abs() > 1e-4, "{name}: {} and {loss}", whole.loss);
    }
}
