//! Tests of refusals of `plimsoll bench`.

use super::{plimsoll, text, workplace};

#[test]
fn benchmarks_refuse_a_gpu_that_is_not_there() {
    for benchmark in ["attention", "experts", "matmul", "predict", "recurrence", "sample", "scaling", "step"]
    {
        let workplace = workplace();
        let output =
            plimsoll(workplace.path()).args(["bench", benchmark, "--device", "cuda"]).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{benchmark}: {error}");
        assert!(error.contains("--device cuda: "), "{benchmark}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{benchmark}: {error}");
    }
}

#[test]
fn matmul_benchmarks_need_a_gpu() {
    let workplace = workplace();
    std::fs::write(workplace.path().join("table.txt"), "device X\n3x4x5 1-2\n").unwrap();
    let table: &[(&[&str], &str)] = &[
        (&[], "bench matmul needs a GPU"),
        (&["--device", "cpu"], "bench matmul needs a GPU: the CPU, as requested"),
        (&["--write", "table.txt"], "--write table.txt: line 2: "),
        (&["--model", "gpt5"], "--model gpt5"),
        (&["--sustained-seconds=-1"], "a number of seconds from 0"),
    ];
    for (arguments, expected) in table {
        let output = plimsoll(workplace.path()).args(["bench", "matmul"]).args(*arguments).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
