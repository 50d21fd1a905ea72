//! Small schedules, written by hand from the papers' figures, and the drawings of schedules.

use parallel::pipeline::{ActionTimes, Schedule, ScheduleKind, simulate, svg, text};

use super::shapes::schedule;

/// Returns the rows of a drawing, without title and axis.
fn rows(schedule: &Schedule, passes: [u64; 3], unit: u64) -> String {
    let timeline = simulate(schedule, &ActionTimes::equal(schedule.stages, passes, 0)).unwrap();
    text(schedule, &timeline, unit).split_inclusive('\n').skip(2).collect()
}

fn assert_rows(schedule: &Schedule, passes: [u64; 3], unit: u64, figure: &str) {
    let drawn = rows(schedule, passes, unit);
    assert_eq!(drawn, figure.trim_start_matches('\n'), "\n{drawn}");
}

/// GPipe, figure 2c, with backward as long as forward and first-in-first-out.
#[test]
fn gpipe() {
    let figure = "
rank 0  F0 F1 F2 F3 ·  ·  ·  ·  ·  ·  B0 B1 B2 B3
rank 1  ·  F0 F1 F2 F3 ·  ·  ·  ·  B0 B1 B2 B3 ·
rank 2  ·  ·  F0 F1 F2 F3 ·  ·  B0 B1 B2 B3 ·  ·
rank 3  ·  ·  ·  F0 F1 F2 F3 B0 B1 B2 B3 ·  ·  ·
";
    assert_rows(&schedule(ScheduleKind::GPipe, 4, 1, 4), [2, 1, 1], 2, figure);
}

/// Megatron-LM (2021), figure 4, top, with half as many micro-batches: backward takes twice as long as
/// forward.
#[test]
fn one_forward_one_backward() {
    let figure = "
rank 0  F0 F1 F2 F3 ·  ·  ·  ·  ·  ·  B0─── ·  B1─── ·  B2─── ·  B3───
rank 1  ·  F0 F1 F2 ·  ·  ·  ·  B0─── F3 B1─── ·  B2─── ·  B3─── ·  ·
rank 2  ·  ·  F0 F1 ·  ·  B0─── F2 B1─── F3 B2─── ·  B3─── ·  ·  ·  ·
rank 3  ·  ·  ·  F0 B0─── F1 B1─── F2 B2─── F3 B3─── ·  ·  ·  ·  ·  ·
";
    assert_rows(&schedule(ScheduleKind::OneForwardOneBackward, 4, 1, 4), [1, 1, 1], 1, figure);
}

/// Megatron-LM's interleaved schedule of two ranks with two stages each (a and b), backward as long as
/// forward.
#[test]
fn interleaved() {
    let figure = "
rank 0  F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a ·   B2b ·   B3b B2a B3a
rank 1  ·   F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a ·
";
    assert_rows(&schedule(ScheduleKind::Interleaved, 2, 2, 4), [2, 1, 1], 2, figure);
}

/// The schedule ZB-H1 of figure 2 in *Zero Bubble Pipeline Parallelism* (2023): four stages, eight
/// micro-batches.
#[test]
fn zero_bubble() {
    let figure = "
rank 0  F0 F1 F2 F3 ·  ·  ·  B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7
rank 1  ·  F0 F1 F2 ·  ·  B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7
rank 2  ·  ·  F0 F1 ·  B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7
rank 3  ·  ·  ·  F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7
";
    assert_rows(&schedule(ScheduleKind::ZeroBubble, 4, 1, 8), [1, 1, 1], 1, figure);
}

/// The complete list of the last of two ranks, with transfers.
#[test]
fn transfers_are_listed_where_they_are_needed() {
    let schedule = schedule(ScheduleKind::OneForwardOneBackward, 2, 1, 3);
    let list = |rank: usize| {
        schedule.actions[rank]
            .iter()
            .map(|a| format!("{:?} {}", a.kind, a.micro_batch))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let first = "Forward 0, SendForward 0, Forward 1, SendForward 1, ReceiveBackward 0, Backward 0, \
                 Forward 2, ReceiveBackward 1, SendForward 2, Backward 1, ReceiveBackward 2, Backward 2";
    let second = "ReceiveForward 0, Forward 0, ReceiveForward 1, Backward 0, SendBackward 0, Forward 1, \
                  Backward 1, SendBackward 1, ReceiveForward 2, Forward 2, Backward 2, SendBackward 2";
    assert_eq!([list(0), list(1)], [first, second]);
}

#[test]
fn the_text_has_a_title_and_a_time_axis() {
    let schedule = schedule(ScheduleKind::OneForwardOneBackward, 2, 1, 3);
    let timeline = simulate(&schedule, &ActionTimes::equal(2, [10, 5, 5], 0)).unwrap();
    let picture = text(&schedule, &timeline, 10);
    let mut lines = picture.lines();
    assert_eq!(lines.next(), Some("1f1b: 2 ranks, 3 micro-batches, 25.0 % idle"));
    assert_eq!(lines.next(), Some("time    0              50"));
    assert_eq!(lines.clone().count(), 2);
}

/// The SVG has a bar for every pass of every rank, the title and the ranks' idle fractions, and closed tags.
#[test]
fn the_svg_shows_every_pass() {
    for kind in ScheduleKind::ALL {
        let chunks = if kind == ScheduleKind::Interleaved { 2 } else { 1 };
        let schedule = schedule(kind, 4, chunks, 8);
        let timeline = simulate(&schedule, &ActionTimes::equal(schedule.stages, [100, 100, 100], 3)).unwrap();
        let picture = svg(&schedule, &timeline, "µs");
        for action in schedule.actions.iter().flatten().filter(|action| action.kind.is_compute()) {
            assert_eq!(picture.matches(&format!("<title>{action}: ")).count(), 1, "{kind}: {action}");
        }
        assert!(picture.contains(&format!("{kind}: 4 ranks")));
        let thousands = timeline.makespan / 1000;
        let rest = timeline.makespan % 1000;
        assert!(picture.contains(&format!("{thousands}\u{202f}{rest:03} µs in all")));
        assert!((0..4).all(|rank| picture.contains(&format!("{:.1} % idle", 100.0 * timeline.idle(rank)))));
        for tag in ["svg", "g", "text", "title"] {
            let opened =
                picture.matches(&format!("<{tag} ")).count() + picture.matches(&format!("<{tag}>")).count();
            assert_eq!(opened, picture.matches(&format!("</{tag}>")).count(), "{kind}: <{tag}>");
        }
    }
}
