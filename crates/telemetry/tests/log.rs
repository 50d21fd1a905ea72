//! Tests of the logs of ranks that share a process.

use std::fs::read_to_string;

use telemetry::TelemetryError;
use telemetry::log::{Log, rank_span, step_span};
use tracing::subscriber::with_default;
use tracing::{debug, error, info};

/// Returns a line without its time.
fn without_time(line: &str) -> &str {
    line.split_once(' ').unwrap().1.trim_start()
}

#[test]
fn each_rank_has_a_file_with_its_lines() {
    let directory = tempfile::tempdir().unwrap();
    let logs = directory.path().join("logs");
    let log = Log::files_only();
    log.set_directory(&logs).unwrap();
    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            let log = log.clone();
            std::thread::spawn(move || {
                with_default(log.subscriber("").unwrap(), || {
                    let _rank = rank_span(rank).entered();
                    info!("begins");
                    for step in 1..=2 {
                        let _step = step_span(step).entered();
                        info!(bytes = 512, name = "a b", "allocated {}", rank + 10);
                        debug!("not at this level");
                    }
                    error!(rank = 7, "a field is not the rank");
                });
            })
        })
        .collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
    log.flush();
    for rank in 0..2 {
        let text = read_to_string(logs.join(format!("rank-{rank}.log"))).unwrap();
        let lines: Vec<_> = text.lines().map(without_time).collect();
        assert_eq!(
            lines,
            [
                format!("INFO rank {rank}: begins"),
                format!("INFO rank {rank} step 1: allocated {} bytes=512 name=a b", rank + 10),
                format!("INFO rank {rank} step 2: allocated {} bytes=512 name=a b", rank + 10),
                format!("ERROR rank {rank}: a field is not the rank rank=7"),
            ]
        );
    }
}

#[test]
fn a_process_of_one_rank_needs_no_span() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::files_only();
    with_default(log.subscriber("telemetry=off,debug").unwrap(), || {
        debug!("before there is a directory");
        log.set_directory(directory.path()).unwrap();
        debug!("without a rank");
        log.set_rank(5);
        debug!("with one");
    });
    log.flush();
    let names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["rank-5.log"]);
    let text = read_to_string(directory.path().join("rank-5.log")).unwrap();
    assert_eq!(text.lines().map(without_time).collect::<Vec<_>>(), ["DEBUG rank 5: with one"]);
}

#[test]
fn errors_name_the_filter_or_the_file() {
    for wrong in ["plimsoll=loud", "loud", "warn,loud", "6"] {
        let Err(error) = Log::new().subscriber(wrong) else { panic!("{wrong} is not a level") };
        assert!(error.to_string().starts_with(&format!("PLIMSOLL_LOG={wrong}: ")), "{error}");
    }
    for right in ["", "debug", "warn,collective=trace", "OFF", "run[step]=debug"] {
        assert!(Log::new().subscriber(right).is_ok(), "{right}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Log::files_only().set_directory(&file.path().join("logs")).unwrap_err();
    assert!(matches!(&error, TelemetryError::File(failed) if failed.path.ends_with("logs")), "{error}");
}
