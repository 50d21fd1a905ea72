//! Pages of artificial runs.

use memory::drivers::Counting;
use memory::{Allocator, Category, Settings, Stream, Tag};

use super::chart::{line, round_ticks, steps};
use super::*;
use crate::expert_loads::ExpertLoads;
use crate::step_trace::{MICRO_BATCH, RunPart};

/// Returns the trace of a step of two micro-batches; the second activation has `second` bytes.
fn trace(second: u64) -> StepTrace {
    let mut allocator = Allocator::new(Counting::new(1 << 30), Settings::default()).unwrap();
    let module = allocator.intern("h.3.<mlp>");
    let activation = Tag { module, operator: "linear", ..Tag::with_category(Category::Activation) };
    let _weights = allocator.allocate(4 << 20, Stream(0), Tag::with_category(Category::Parameter)).unwrap();
    allocator.record_history(1000);
    allocator.mark(RunPart::Step.name(), 7);
    for (number, bytes) in [(0, 1 << 20), (1, second)] {
        allocator.mark(MICRO_BATCH, number);
        allocator.mark("forward", 0);
        let allocation = allocator.allocate(bytes, Stream(0), activation).unwrap();
        allocator.mark("backward", 0);
        allocator.free(allocation.block).unwrap();
    }
    StepTrace::read(&allocator.snapshot()).unwrap()
}

fn rank(rank: usize, measured: Option<u64>, planned: Option<u64>) -> RankMemory {
    RankMemory {
        ranks: vec![rank],
        device: "cpu on <host>".to_owned(),
        figures: [1, 2, 3, 4],
        measured: measured.map(trace),
        planned: planned.map(trace),
        limit: None,
    }
}

fn page(ranks: Vec<RankMemory>) -> String {
    let history = (1..=2000).map(|step| StepPoint {
        step,
        loss: (step != 5).then(|| 8.0 / step as f64),
        validation_loss: (step % 500 == 0).then_some(1.5),
        reward_accuracy: [Some(0.75), None],
        tokens_per_second: Some(1e4 + (step % 7) as f64),
        is_finite: step != 5,
        ..StepPoint::default()
    });
    let report = Report {
        title: "a <run> & \"more\"".to_owned(),
        subtitle: "GPT".to_owned(),
        tiles: vec![Tile { name: "Steps", value: "3".to_owned(), note: String::new() }],
        notices: vec![Notice { good: false, text: "rank 0 <leaves> its plan".to_owned() }],
        ranks,
        schedule: Some(SchedulePicture {
            picture: "<svg id=\"schedule-picture\"/>".to_owned(),
            note: "so".to_owned(),
        }),
        sessions: vec![SessionRow {
            started: "2026-01-01T00:00:00Z".to_owned(),
            cells: ["complete", "0 to 3", "1 × 1", "9 tokens/s", "1 KiB", "1 s", "host"].map(str::to_owned),
            notes: vec!["train.steps is <3> and was 2".to_owned()],
        }],
        curves: vec![Curve { name: "<script>other".to_owned(), history: history.clone().collect() }],
        differences: "optim.seed: <1> and 2".to_owned(),
        operators: None,
        expert_loads: (7, vec![ExpertLoads { layer: 1, tokens: vec![4, 0, 2] }]),
        phases: vec![PhaseRow { rank: 0, microseconds: vec![("<forward>".to_owned(), 1500)] }],
        history: history.collect(),
        unit: "Tokens",
        configuration: "[train]\nsteps = 3 # </pre><script>".to_owned(),
    };
    report.to_html()
}

/// Parses the JSON of every chart on the page.
fn hovers(page: &str) -> Vec<serde_json::Value> {
    let parts = page.split("<script type=\"application/json\">").skip(1);
    parts.map(|part| serde_json::from_str(part.split("</script>").next().unwrap()).unwrap()).collect()
}

#[test]
fn steps_that_are_not_finite_are_marked() {
    let page = page(Vec::new());
    assert!(page.contains("In 1, marked red, the loss or the gradient norm is not finite."));
    // The charts of loss, rewards and throughput have values, and therefore marks.
    assert_eq!(page.matches("<path class=\"lost\"").count(), 3);
}

#[test]
fn a_page_is_self_contained_and_escapes_text() {
    let page = page(vec![rank(0, Some(2 << 20), Some(2 << 20))]);
    for foreign in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    for text in [
        "a &lt;run&gt; &amp; &quot;more&quot;",
        "&lt;leaves&gt;",
        "h.*.&lt;mlp&gt;",
        "on &lt;host&gt;",
        "&lt;/pre&gt;",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("<run>") && !page.contains("<mlp>"));
    assert!(page.contains("layer 1, expert 0: 4 tokens, 2.00 × the mean"));
    // Colours are variables of the style.
    for name in page.split("var(--").skip(1).map(|rest| rest.split(')').next().unwrap()) {
        assert!(page.contains(&format!("--{name}:")), "{name}");
    }
    // Every element that is opened is closed.
    for element in ["svg", "figure", "section", "table", "div", "dl", "g", "script", "style", "p"] {
        let opened =
            page.matches(&format!("<{element}>")).count() + page.matches(&format!("<{element} ")).count();
        let itself = usize::from(element == "svg");
        assert_eq!(opened - itself, page.matches(&format!("</{element}>")).count(), "{element}");
    }
}

#[test]
fn hover_values_are_those_of_the_run() {
    let page = page(vec![rank(0, Some(2 << 20), Some(2 << 20))]);
    let hovers = hovers(&page);
    // Two charts of learning curves, loss, rewards, throughput and memory; other values have no chart.
    assert_eq!(hovers.len(), 6);
    assert_eq!(hovers[3]["rows"][0]["values"][0], 0.75);
    let memory = &hovers[5];
    let values = |name: &str| -> Vec<f64> {
        let row = memory["rows"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        row["values"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    // The first event takes memory from the driver.
    let mib = |count: u32| f64::from(count << 20);
    assert_eq!(values("activation"), [mib(0), mib(0), mib(1), mib(0), mib(2), mib(0)]);
    assert_eq!(values("parameter"), [mib(4); 6]);
    assert_eq!(values("allocated"), [mib(4), mib(4), mib(5), mib(4), mib(6), mib(4)]);
    assert_eq!(memory["heads"][4], "forward, micro-batch 1, after 4 calls");
    for hover in &hovers {
        let count = hover["x"].as_array().unwrap().len();
        assert_eq!(hover["heads"].as_array().unwrap().len(), count);
        assert!(count <= 1000);
        assert!(
            hover["rows"]
                .as_array()
                .unwrap()
                .iter()
                .all(|row| row["values"].as_array().unwrap().len() == count)
        );
    }
    // The peak with its phase and module.
    assert!(page.contains("6.00 MiB · forward · h.3.&lt;mlp&gt;"));
    assert!(page.contains("measured and planned are the same"));
}

#[test]
fn a_step_is_drawn_as_states() {
    let states = trace(2 << 20).states();
    let mib = |count: u64| count << 20;
    assert_eq!((states.before, states.after), (mib(4), mib(4)));
    let phases: Vec<_> = states
        .phases
        .iter()
        .map(|state| {
            (state.phase.as_str(), state.visits, state.before, state.peak.bytes.total(), state.after)
        })
        .collect();
    assert_eq!(phases, [("forward", 2, mib(4), mib(6), mib(6)), ("backward", 2, mib(5), mib(6), mib(4))]);
    let transitions: Vec<_> =
        states.transitions.iter().map(|t| (t.from, t.to, t.times, t.least, t.most)).collect();
    let expected = [
        (None, Some(0), 1, mib(4), mib(4)),
        (Some(0), Some(1), 2, mib(5), mib(6)),
        (Some(1), Some(0), 1, mib(4), mib(4)),
        (Some(1), None, 1, mib(4), mib(4)),
    ];
    assert_eq!(transitions, expected);
    // The page has each of them: two to the next box, and two back.
    let page = page(vec![rank(0, Some(2 << 20), Some(2 << 20))]);
    assert!(page.contains("<section id=\"states\""));
    assert_eq!(page.matches("<rect class=\"state\"").count(), 3);
    assert_eq!(page.matches("<path class=\"way\"").count(), 4);
    assert!(page.contains("5,242,880 to 6,291,456 bytes, 2 ×"));
    assert!(page.contains("<td>parameter 4.00 MiB, activation 2.00 MiB</td>"));
}

#[test]
fn equal_ranks_share_a_drawing() {
    let same = Some(2 << 20);
    let other = Some(3 << 20);
    let ranks = vec![rank(0, same, same), rank(1, same, same), rank(2, same, other), rank(3, same, same)];
    let page = page(ranks);
    assert!(page.contains(">ranks 0–1, 3</label>") && page.contains(">rank 2</label>"));
    assert_eq!(page.matches("class=\"plan-line\"").count(), 1);
    // Two of memory, two of learning curves, loss, rewards and throughput.
    assert_eq!(hovers(&page).len(), 2 + 5);
    // Ranks with equal figures share a row.
    assert!(page.contains("<th scope=\"row\">0–3</th>"));
}

#[test]
fn empty_sections_are_left_out() {
    let empty = Report { title: "nothing".to_owned(), ..Report::default() }.to_html();
    assert!(!empty.contains("<section") && empty.contains("nothing"));
    let planned = page(vec![rank(0, None, Some(1 << 20))]);
    assert!(planned.contains("planned</span>") && planned.contains("schedule-picture"));
}

#[test]
fn ticks_and_paths() {
    for (least, most, expected) in [
        (0.0, 10.0, &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0][..]),
        (3.4, 5.5, &[3.5, 4.0, 4.5, 5.0, 5.5]),
        (0.0, 0.001, &[0.0, 0.0002, 0.0004, 0.0006, 0.0008, 0.001]),
        (7.0, 7.0, &[7.0]),
    ] {
        let ticks = round_ticks(least, most);
        assert_eq!(ticks.len(), expected.len(), "{ticks:?}");
        assert!(ticks.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{ticks:?}");
    }
    assert_eq!(steps(&[(0.0, 1.0), (2.0, 3.0)]), "M0.0 1.0H2.0V3.0");
    assert_eq!(
        line([Some((0.0, 1.0)), None, Some((2.0, 3.0)), Some((3.0, 3.0))]),
        "M0.0 1.0M2.0 3.0L3.0 3.0"
    );
}
