//! Tests of modules that predict later tokens where they are excluded.

use super::*;

#[test]
fn modules_are_refused_where_they_cannot_be() {
    let table: [(&[&str], &str); 7] = [
        (&[], "train.predict_tokens = 2 adds modules to the model, which this model.kind excludes"),
        (
            &["model.kind=llama", "model.layer_embedding_width=8"],
            "train.predict_tokens = 2 adds modules to the model, which model.layer_embedding_width = 8 \
             excludes",
        ),
        (
            &["model.kind=llama", "model.shared_layers=1"],
            "train.predict_tokens = 2 adds modules to the model, which model.shared_layers = 1 excludes",
        ),
        (
            &["model.kind=llama", "model.base_width=64"],
            "train.predict_tokens = 2 adds modules to the model, which model.base_width = 64 excludes",
        ),
        (
            &["model.kind=llama", "model.single_branches=true"],
            "train.predict_tokens = 2 adds modules to the model, which model.single_branches = true without \
             attention or without feed-forward layers excludes",
        ),
        (
            &["model.kind=llama", "data.kind=preference"],
            "train.predict_tokens = 2 has no loss for data.kind = \"preference\": use 1",
        ),
        (
            &["model.kind=llama", "model.context=1"],
            "train.predict_tokens = 2 is more than the 1 tokens of a sequence",
        ),
    ];
    for (sets, expected) in table {
        let refused = refusal(LEAST, &[&["train.predict_tokens=2"], sets].concat());
        assert!(refused.contains(expected), "{sets:?}: {refused}");
    }
}
