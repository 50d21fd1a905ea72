//! Token files for tests, generated from the sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use data::Tokenizer;
use tokenize::{HeldOut, Job, tokenize, train_tokenizer};

/// Directory of the files, created once per test program.
static FILES: LazyLock<PathBuf> = LazyLock::new(|| {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let base = if target.is_dir() { target.to_owned() } else { std::env::temp_dir() };
    let directory = base.join(concat!("plimsoll-", env!("CARGO_CRATE_NAME")));
    let _ = fs::remove_dir_all(&directory);
    make(&directory);
    directory
});

/// Replaces `{files}` in a setting by the directory of the files: `tokenizer.json` with 512 tokens, and
/// `shards`, of which the first is for validation.
pub(crate) fn fill(setting: &str) -> String {
    match setting.contains("{files}") {
        true => setting.replace("{files}", FILES.to_str().unwrap()),
        false => setting.to_owned(),
    }
}

fn make(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    let texts =
        data::files(&super::root(), &["crates/tensor/src/*.rs".to_owned(), "*.md".to_owned()]).unwrap();
    let tokenizer = directory.join("tokenizer.json");
    train_tokenizer(texts.clone(), 512, "text", &tokenizer).unwrap();
    let tokenizer = Tokenizer::from_name(tokenizer.to_str().unwrap()).unwrap();
    let job = Job::new(texts, tokenizer, directory.join("shards")).unwrap();
    tokenize(&Job { shard_tokens: 8000, held_out: HeldOut::Shard, ..job }).unwrap();
}
