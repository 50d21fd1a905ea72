use memory::{Allocation, Allocator, Category, Settings, Stream, Tag, drivers::Counting};

use super::*;

/// A single-layer worker with a real worker's allocations.
struct Bench {
    allocator: Allocator<Counting>,
    weights: Allocation,
}

/// A fault injected into a step.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Keep,
    Late,
    Early,
    Extra,
    Resize,
    Skip,
}

impl Bench {
    fn new(settings: &str) -> Bench {
        let settings = Settings::parse(settings).unwrap();
        let mut allocator = Allocator::new(Counting::new(1 << 32), settings).unwrap();
        let weights =
            allocator.allocate(4 << 20, Stream(0), Tag::with_category(Category::Parameter)).unwrap();
        Bench { allocator, weights }
    }

    fn take(
        &mut self,
        bytes: u64,
        module: &str,
        operator: &'static str,
        category: Category,
        step: u32,
    ) -> Allocation {
        let module = self.allocator.intern(module);
        let tag = Tag { category, module, operator, step };
        self.allocator.allocate(bytes, Stream(0), tag).unwrap()
    }

    fn step(&mut self, step: u32, fault: Fault) -> StepTrace {
        self.allocator.record_history(10_000);
        self.allocator.mark(RunPart::Step.name(), u64::from(step));
        for micro_batch in 0..2 {
            self.micro_batch(micro_batch, step, if micro_batch == 1 { fault } else { Fault::None });
        }
        self.allocator.mark("optimizer", 0);
        let norm = self.take(100, "", "norm", Category::Workspace, step);
        self.allocator.free(norm.block).unwrap();
        StepTrace::read(&self.allocator.snapshot()).unwrap()
    }

    fn micro_batch(&mut self, number: u64, step: u32, fault: Fault) {
        let up = if fault == Fault::Resize { 7 << 20 } else { 3 << 20 };
        self.allocator.mark(MICRO_BATCH, number);
        self.allocator.mark("forward", 0);
        let input = self.take(3000, "", "batch", Category::Input, step);
        let hidden = self.take(up, "h.0.mlp", "linear", Category::Activation, step);
        let extra =
            (fault == Fault::Extra).then(|| self.take(5000, "probe", "gelu", Category::Activation, step));
        let gelu = self.take(3 << 20, "h.0.mlp", "gelu", Category::Activation, step);
        self.allocator.mark("backward", 0);
        if fault == Fault::Early {
            self.allocator.free(gelu.block).unwrap();
        }
        if fault != Fault::Skip {
            let gradient = self.take(3 << 20, "h.0.mlp", "gelu", Category::ActivationGradient, step);
            self.allocator.free(gradient.block).unwrap();
        }
        if ![Fault::Early, Fault::Keep, Fault::Late].contains(&fault) {
            self.allocator.free(gelu.block).unwrap();
        }
        for block in [Some(hidden), extra, Some(input)].into_iter().flatten() {
            self.allocator.free(block.block).unwrap();
        }
        if fault == Fault::Late {
            self.allocator.free(gelu.block).unwrap();
        }
    }
}

#[test]
fn traces_agree_with_the_allocators_counters() {
    for settings in ["", "expandable_segments:True", "roundup_power2_divisions:2"] {
        let mut bench = Bench::new(settings);
        let first = bench.step(1, Fault::None);
        let statistics = bench.allocator.statistics();
        let curve = first.curve();
        let last = curve.points.last().unwrap();
        assert_eq!(last.bytes, bench.allocator.category_bytes(), "{settings}");
        assert_eq!(last.reserved, statistics.reserved());
        assert_eq!(first.peak().bytes, statistics.peak_allocated());
        assert_eq!(curve.peak_reserved(), statistics.peak_reserved());
        // The categories agree at the peak, too.
        let live = first.live_after(first.peak().events);
        assert_eq!(live.by_category(), bench.allocator.peak_category_bytes());
        assert_eq!(live.bytes(), first.peak().bytes);
        let second = bench.step(2, Fault::None);
        let third = bench.step(3, Fault::None);
        assert!(second.repeats(&third) && third.difference(&second).is_none());
        // Only the first step took memory from the driver.
        assert!(!second.repeats(&first));
        assert_eq!(second.difference(&first).unwrap().kind, DifferenceKind::Driver);
        assert!(second.outlived().holdings.is_empty() && second.outlived_beyond(&first).holdings.is_empty());
    }
}

#[test]
fn the_peak_has_a_phase_and_spans_are_contiguous() {
    let mut bench = Bench::new("");
    let trace = bench.step(1, Fault::None);
    let peak = trace.peak();
    let owner = peak.owner.clone().unwrap();
    assert_eq!((peak.phase.as_str(), peak.micro_batch), ("backward", Some(0)));
    assert_eq!((owner.module.as_str(), owner.operator.as_str()), ("h.0.mlp", "gelu"));
    assert_eq!((owner.category, peak.requested), (Category::ActivationGradient, 3 << 20));
    let spans = trace.spans();
    let named: Vec<_> = spans.iter().map(|s| (s.phase.as_str(), s.micro_batch)).collect();
    let expected = [("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1), ("optimizer", 1)];
    assert_eq!(named, expected.map(|(phase, number)| (phase, Some(number))));
    assert!(spans.windows(2).all(|pair| pair[0].to == pair[1].from));
    assert_eq!((spans[0].from, spans.last().unwrap().to), (0, trace.events.len()));
    let curve = trace.curve();
    for count in [1, 3, 10, 10_000] {
        let thin = curve.thinned(count);
        assert!(thin.points.len() <= count + 2 && thin.points.iter().all(|p| curve.points[p.events] == *p));
        let most = |curve: &Curve| curve.points.iter().map(|p| p.bytes.total()).max();
        assert_eq!(most(&thin), most(&curve));
    }
    let layers = trace.live_after(peak.events).by_module();
    assert!(
        layers.holdings.iter().any(|h| h.owner.module == "h.*.mlp" && h.blocks == 2 && h.bytes == 6 << 20)
    );
}

#[test]
fn differences_name_the_first_allocation() {
    use DifferenceKind::{Early, Extra, Missing, Resized, Unfreed};
    let cases = [
        (Fault::Keep, Unfreed, "gelu", 3 << 20, Some("gelu"), "keeps 3"),
        (Fault::Late, Unfreed, "gelu", 3 << 20, None, "keeps 3"),
        (Fault::Early, Early, "gelu", 3 << 20, None, "before the plan does"),
        (Fault::Extra, Extra, "gelu", 5000, None, "that the plan does not have"),
        (Fault::Resize, Resized, "linear", 7 << 20, None, "instead of 3"),
        (Fault::Skip, Missing, "gelu", 3 << 20, None, "does not allocate"),
    ];
    for (fault, kind, operator, bytes, leftover, words) in cases {
        let mut planned = Bench::new("");
        let mut measured = Bench::new("");
        for step in 1..=2 {
            assert!(measured.step(step, Fault::None).repeats(&planned.step(step, Fault::None)));
        }
        let planned = planned.step(3, Fault::None);
        let measured = measured.step(3, fault);
        let difference = measured.difference(&planned).unwrap();
        assert_eq!(
            (difference.kind, difference.owner.operator.as_str(), difference.bytes),
            (kind, operator, bytes),
            "{difference}"
        );
        assert!(difference.to_string().contains(words), "{difference}");
        let beyond = measured.outlived_beyond(&planned);
        let names: Vec<_> = beyond.holdings.iter().map(|h| h.owner.operator.as_str()).collect();
        assert_eq!(names, leftover.into_iter().collect::<Vec<_>>(), "{difference}");
        assert_eq!(measured.outlived().holdings, beyond.holdings);
        assert!(beyond.holdings.iter().all(|h| h.since == 3));
    }
}

#[test]
fn differences_name_driver_calls() {
    let mut planned = Bench::new("");
    let mut measured = Bench::new("");
    planned.step(1, Fault::None);
    measured.step(1, Fault::None);
    measured.allocator.empty_cache().unwrap();
    let difference = measured.step(2, Fault::None).difference(&planned.step(2, Fault::None)).unwrap();
    assert_eq!((difference.kind, difference.phase.as_str()), (DifferenceKind::Driver, "forward"));
    assert!(difference.bytes > 0 && difference.planned_bytes.is_none());
}

#[test]
fn histories_without_a_mark_have_no_trace() {
    let mut bench = Bench::new("");
    bench.step(1, Fault::None);
    bench.allocator.record_history(5);
    bench.allocator.mark(RunPart::Step.name(), 2);
    assert!(StepTrace::read(&bench.allocator.snapshot()).is_some());
    bench.micro_batch(0, 2, Fault::None);
    assert!(StepTrace::read(&bench.allocator.snapshot()).is_none());
    bench.allocator.free(bench.weights.block).unwrap();
}

#[test]
fn files_hold_equal_traces_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut bench = Bench::new("");
    let (first, second, third) =
        (bench.step(1, Fault::None), bench.step(2, Fault::None), bench.step(3, Fault::Keep));
    let equal = TracePair::new(Some(second.clone()), Some(second.clone()));
    let cases = [
        (equal, None),
        (TracePair::new(Some(first.clone()), None), None),
        (TracePair::new(None, Some(first)), Some(TracePair::new(Some(third), Some(second)))),
    ];
    for (number, (steady, diverged)) in cases.into_iter().enumerate() {
        let path = directory.path().join(format!("{number}.json.gz"));
        let traces = RankTraces { rank: 7, steady, diverged };
        traces.write(&path).unwrap();
        let read = RankTraces::read(&path).unwrap();
        assert_eq!(read, traces);
        assert_eq!(read.steady.planned().is_some(), number != 1);
        if number == 0 {
            assert_eq!(read.steady.planned(), read.steady.measured.as_ref());
        }
    }
    std::fs::write(directory.path().join("x"), b"not gzip").unwrap();
    assert!(
        RankTraces::read(&directory.path().join("x")).unwrap_err().to_string().contains("cannot read it")
    );
}
