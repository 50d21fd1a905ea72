use super::*;
use crate::PhaseFigures;

/// Returns a prediction of 100 ms for two stages of two ranks each.
fn prediction() -> Prediction {
    let stage = |backward: f64| {
        let phases = [("inputs", 0.001), ("forward", 0.030), ("backward", backward), ("reduce", 0.002)];
        phases.into_iter().map(|(name, seconds)| (name.to_owned(), seconds)).collect()
    };
    Prediction {
        device_model: "NVIDIA H200".to_owned(),
        is_measured: true,
        step_seconds: 0.1,
        stages: vec![stage(0.060), stage(0.050)],
        stage_of: vec![0, 1, 0, 1],
        ..Prediction::default()
    }
}

/// Returns a rank with these milliseconds of inputs, forward, backward and reduction.
fn rank(rank: usize, times: [u64; 4], gpu: Option<GpuLoad>) -> RankStep {
    let names = ["inputs", "forward", "backward", "reduce"];
    let phases = names.into_iter().zip(times).map(|(name, milliseconds)| {
        let microseconds = Some(1000 * milliseconds);
        (name.to_owned(), PhaseFigures { microseconds, ..PhaseFigures::default() })
    });
    RankStep { rank, phases: phases.collect(), gpu, ..RankStep::default() }
}

#[test]
fn the_slow_part_and_its_rank_are_named() {
    let throttled = GpuLoad {
        clock_mhz: Some(1200),
        max_clock_mhz: Some(1980),
        throttled: vec!["power cap".to_owned()],
        ..GpuLoad::default()
    };
    let usual = |number| rank(number, [1, 30, if number % 2 == 0 { 60 } else { 50 }, 2], None);
    let with = |slow: RankStep| -> Vec<RankStep> {
        (0..4).map(|number| if number == slow.rank { slow.clone() } else { usual(number) }).collect()
    };
    for (slow, words) in [
        (
            rank(3, [1, 30, 75, 2], Some(throttled)),
            "phase backward takes 75.0 ms on rank 3 instead of 50.0 ms: its GPU or host is slow, 31.2 % behind the \
             other ranks; its GPU is throttled, at 1200 of 1980 MHz: power cap",
        ),
        (
            rank(2, [1, 55, 60, 2], None),
            "phase forward takes 55.0 ms on rank 2 instead of 30.0 ms: its GPU or host is slow, 27.8 % behind the \
             other ranks",
        ),
        (
            rank(1, [40, 30, 50, 2], None),
            "phase inputs takes 40.0 ms on rank 1 instead of 1.0 ms: its loader or its host is slow",
        ),
    ] {
        let slowdown = prediction().slowdown(0.125, &with(slow)).unwrap().to_string();
        assert_eq!(
            slowdown,
            format!("steps take 125.0 ms, 25.0 % more than the 100.0 ms predicted for NVIDIA H200: {words}")
        );
    }
    // A phase that is equally long on all ranks is not attributed to one of them.
    let all: Vec<_> = (0..4).map(|number| rank(number, [1, 40, 60 + number as u64, 2], None)).collect();
    let slowdown = prediction().slowdown(0.125, &all).unwrap().to_string();
    assert!(
        slowdown.ends_with("on rank 3 instead of 50.0 ms, and about as long on the other ranks"),
        "{slowdown}"
    );
    // Ranks that all wait have slow links; a single one waits for another rank.
    let waiting: Vec<_> = (0..4).map(|number| rank(number, [1, 30, 50, 30 + number as u64], None)).collect();
    let slowdown = prediction().slowdown(0.125, &waiting).unwrap().to_string();
    assert!(
        slowdown.contains("phase reduce takes 30.0 ms on rank 0 instead of 2.0 ms, and no less on"),
        "{slowdown}"
    );
    let one = prediction().slowdown(0.125, &with(rank(1, [1, 30, 50, 90], None))).unwrap();
    assert_eq!(one.cause, None);
}

#[test]
fn steps_that_are_not_slow_or_only_estimated_are_no_finding() {
    assert_eq!(prediction().slowdown(0.109, &[]), None);
    assert!(prediction().slowdown(0.111, &[]).is_some_and(|slowdown| slowdown.cause.is_none()));
    let slow = prediction().slowdown(0.35, &[]).unwrap().to_string();
    assert_eq!(slow, "steps take 350.0 ms, 3.5 times the 100.0 ms predicted for NVIDIA H200");
    let estimated = Prediction { is_measured: false, ..prediction() };
    assert_eq!(estimated.slowdown(0.2, &[]), None);
}

#[test]
fn predictions_are_read_back() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(Prediction::read(directory.path()).unwrap(), None);
    prediction().write(directory.path()).unwrap();
    assert_eq!(Prediction::read(directory.path()).unwrap(), Some(prediction()));
    Prediction::remove(directory.path()).unwrap();
    Prediction::remove(directory.path()).unwrap();
    assert_eq!(Prediction::read(directory.path()).unwrap(), None);
}
