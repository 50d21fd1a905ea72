//! Tests of `launch/sanitize` with a stand-in for compute-sanitizer: a report is attributed to the owner of
//! its kernels.

use std::fs;
use std::process::Command;

use crate::common::scripts;

/// Returns a sanitizer record about memory accesses of kernels.
fn record(kernels: &[&str]) -> String {
    let index = |kernel: &&str| format!("<where>\n<func>{kernel}</func>\n<pc>0xaf0</pc>\n</where>\n");
    format!("<record>\n<kind>Analysis</kind>\n{}</record>\n", kernels.iter().map(index).collect::<String>())
}

/// Tool, records, the tests' output, the expected result of the group, exit status.
type Case<'a> = (&'a str, &'a [&'a [&'a str]], &'a str, &'a str, i32);

#[test]
fn reports_count_by_the_owner_of_their_kernels() {
    let library = ["nvjet_sm90_tss_64x8_64x16_1x1_h_bx_splitK_NNT"; 2];
    let ours = ["columns_f32", "columns_f32"];
    let mixed = [library[0], "columns_f32"];
    let passed = "test result: ok. 8 passed; 0 failed";
    let failed = "test result: FAILED. 7 passed; 1 failed'; exit 101; '";
    let nothing = "test result: ok. 0 passed; 0 failed";
    let cases: [Case<'_>; 9] = [
        ("racecheck", &[], passed, "linear: 8 tests, no reports\n", 0),
        ("racecheck", &[&library, &library], passed, "no reports but 2 inside cuBLASLt's kernels\n", 0),
        ("racecheck", &[&library, &ours], passed, "reports: 1  columns_f32\n", 1),
        (
            "racecheck",
            &[&mixed],
            passed,
            "reports: 1  nvjet_sm90_tss_64x8_64x16_1x1_h_bx_splitK_NNT columns_f32\n",
            1,
        ),
        ("racecheck", &[&[]], passed, "reports: 1  not a kernel\n", 1),
        ("memcheck", &[&library], passed, "reports: 1  nvjet_sm90", 1),
        ("memcheck", &[], passed, "memcheck: no reports on Plimsoll's kernels\n", 0),
        ("memcheck", &[], failed, "linear: failed (status 101, no tests passed)", 1),
        ("initcheck", &[], nothing, "linear: failed (status 0, 0 tests passed)", 1),
    ];
    let directory = tempfile::tempdir().unwrap();
    let bin = directory.path().join("bin");
    let bundle = directory.path().join("bundle");
    let records = directory.path().join("records.xml");
    let save = "while [[ $1 == --* ]]; do case $1 in\n--save) file=$2; shift 2;;\n--xml) shift;;\n*) shift 2;;\nesac; done";
    scripts::write(
        &bin.join("compute-sanitizer"),
        &format!("{save}\ncp '{}' \"$file\"\n\"$@\"", records.display()),
    );
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    for (tool, reports, tests, message, status) in cases {
        let reports: String = reports.iter().map(|kernels| record(kernels)).collect();
        fs::write(
            &records,
            format!("<?xml version=\"1.0\"?>\n<ComputeSanitizerOutput>\n{reports}</ComputeSanitizerOutput>"),
        )
        .unwrap();
        scripts::write(&bundle.join("tests/tensor-operators"), &format!("echo '{tests}'"));
        let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/launch/sanitize"));
        command.arg("--bundle").arg(&bundle).arg("--out").arg(directory.path().join("out"));
        let output = command.args([tool, "linear"]).env("PATH", &path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(message) && output.status.code() == Some(status), "{tool} {reports}\n{text}");
    }
}

/// Checks that the stand-in receives each tool's options and number of repeats.
#[test]
fn each_tool_has_its_groups_and_options() {
    let directory = tempfile::tempdir().unwrap();
    let bin = directory.path().join("bin");
    let bundle = directory.path().join("bundle");
    let arguments = directory.path().join("given.txt");
    let stand_in = format!("echo \"$* $PLIMSOLL_TEST_REPEATS\" >>'{}'", arguments.display());
    scripts::write(
        &bin.join("compute-sanitizer"),
        &format!("{stand_in}\necho 'test result: ok. 1 passed; 0 failed'"),
    );
    scripts::write(&bundle.join("tests/tensor-operators"), "exit 1");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    for (tool, groups, own, streams) in
        [("memcheck", 11, true, true), ("racecheck", 11, false, true), ("initcheck", 10, false, false)]
    {
        fs::write(&arguments, "").unwrap();
        let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/launch/sanitize"));
        command.arg("--bundle").arg(&bundle).arg("--out").arg(directory.path().join("out")).arg(tool);
        let output = command.env("PATH", &path).env_remove("PLIMSOLL_TEST_REPEATS").output().unwrap();
        assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stdout));
        let arguments = fs::read_to_string(&arguments).unwrap();
        assert_eq!(arguments.lines().count(), groups, "{tool}: {arguments}");
        let all = |part: &str| arguments.lines().all(|line| line.contains(part));
        assert!(all(&format!("--tool {tool} ")) && all(" --test-threads 1 2"), "{tool}: {arguments}");
        assert_eq!(arguments.contains("--report-api-errors no"), own, "{tool}: {arguments}");
        assert_eq!(arguments.contains(" arriving:: "), streams, "{tool}: {arguments}");
    }
}

#[test]
fn invalid_calls_are_refused_in_one_line() {
    let cases: [(&[&str], &str); 6] = [
        (&[], "name a tool"),
        (&["valgrind"], "unknown tool valgrind"),
        (&["synccheck"], "unknown tool synccheck"),
        (&["--quick", "memcheck"], "unknown option --quick"),
        (&["--bundle"], "--bundle needs a directory"),
        (&["memcheck"], "compute-sanitizer, which comes with CUDA, is missing"),
    ];
    // An environment without the sanitizer, even if this machine has it.
    let tools = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/usr/bin/dirname", tools.path().join("dirname")).unwrap();
    for (arguments, message) in cases {
        let mut command = Command::new("/bin/bash");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/launch/sanitize")).args(arguments);
        let output = command.env("PATH", tools.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(message) && errors.lines().count() == 1, "{arguments:?}: {errors}");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
