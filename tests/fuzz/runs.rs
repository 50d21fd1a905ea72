//! Fuzzes files of a run: the report uses the intact ones, or names a damaged one.

use std::fs;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use run::report_run;
use worker::DeviceChoice;

use crate::common::random::{Budget, Random};
use crate::common::runs::{GPT, config, train_in};

const PIECES: [&[u8]; 10] = [
    b"18446744073709551615",
    b"-1",
    b"1e999",
    b"null",
    b"[]",
    b"{}",
    b"\"",
    b"\n",
    b"\"\\u0000<script>\"",
    b"\xff",
];

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

fn unpacked(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_report_of_damaged_files_is_a_page_or_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let overrides = ["train.steps=3", "parallel.pipeline=2"];
    train_in(&run_dir, config(GPT, &overrides), DeviceChoice::Cpu).unwrap();
    let names = ["config.toml", "metrics.jsonl", "summary.json", "traces/rank-0.json.gz"];
    let files: Vec<PathBuf> = names.iter().map(|name| run_dir.join(name)).collect();
    let budget = Budget::of_fuzzer();
    let mut random = Random::new(13);
    let mut round = 0;
    while budget.within(round, 60) {
        let file = random.one(&files).clone();
        let whole = fs::read(&file).unwrap();
        let is_packed = file.extension().is_some_and(|extension| extension == "gz");
        let damaged = match is_packed && !random.once_in(4) {
            true => packed(&random.damaged(&unpacked(&file), &PIECES)),
            false => random.damaged(&whole, &PIECES),
        };
        fs::write(&file, damaged).unwrap();
        let result =
            catch_unwind(AssertUnwindSafe(|| report_run(&run_dir, &[]).map(|report| report.to_html())));
        match result.unwrap_or_else(|_| panic!("a panic in round {round} at {}", file.display())) {
            Ok(page) => assert!(page.ends_with("</html>\n") && !page.contains("<script>\""), "round {round}"),
            Err(error) => assert_eq!(error.to_string().lines().count(), 1, "round {round}: {error}"),
        }
        fs::write(&file, whole).unwrap();
        round += 1;
    }
}
