//! Tests of scaling runs as JSON lines, a table and plots.

use telemetry::scaling::{
    RankFigures, Scaling, ScalingRun, efficiency_plot, memory_plot, parse_runs, read_runs, scaling_table,
};

/// Output of `plimsoll bench scaling --json`, with rounded times.
const RECORDED: &str = include_str!("expected/scaling.jsonl");

fn recorded() -> Vec<ScalingRun> {
    parse_runs(RECORDED).unwrap()
}

/// Returns a baseline of two devices alone, with one micro-batch each: 64,000 and 60,000 tokens/s.
fn alone(round: usize) -> ScalingRun {
    let two = recorded()[1].clone();
    let mut by_rank = two.by_rank.clone();
    for (rank, seconds) in by_rank.iter_mut().zip([0.002, 128.0 / 60_000.0]) {
        rank.step_seconds = seconds;
        rank.device = format!("cuda:{}", rank.rank);
    }
    ScalingRun { scaling: Scaling::Alone, reduction: "none".to_owned(), round, by_rank, ..two }
}

/// Returns the recorded run on two ranks, changed to `ranks` ranks and a step of `seconds`.
fn on(ranks: usize, scaling: Scaling, seconds: f64) -> ScalingRun {
    let mut run = recorded()[1].clone();
    let one = run.by_rank[0].clone();
    let rank_figures = |rank| RankFigures { rank, device: format!("cuda:{rank}"), ..one.clone() };
    run.by_rank = (0..ranks).map(rank_figures).collect();
    let micro_batches = if scaling == Scaling::Strong { 8 } else { ranks };
    ScalingRun {
        ranks,
        scaling,
        micro_batches,
        tokens: 128 * micro_batches as u64,
        step_seconds: seconds,
        ..run
    }
}

#[test]
fn written_lines_read_back_the_same() {
    let runs = recorded();
    assert_eq!(runs.len(), 2);
    assert_eq!((runs[1].ranks, runs[1].scaling, runs[1].by_rank.len()), (2, Scaling::Strong, 2));
    assert_eq!(runs[1].exposed_seconds(), 250e-6);
    assert_eq!((runs[0].exposed_seconds(), runs[0].tokens_per_second()), (0.0, 128_000.0));
    let lines: Vec<_> = runs.iter().map(|run| run.to_line().unwrap()).collect();
    assert_eq!(lines.join("\n"), RECORDED.trim());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), RECORDED).unwrap();
    assert_eq!(read_runs(file.path()).unwrap(), runs);
}

#[test]
fn throughput_has_the_unit_of_the_model() {
    let images = || recorded().into_iter().map(|run| ScalingRun { unit: "images/s".to_owned(), ..run });
    let cases = [
        (recorded(), "tokens/s"),
        (images().collect(), "images/s"),
        (recorded().into_iter().chain(images()).collect(), "throughput"),
    ];
    for (runs, expected) in cases {
        let table = scaling_table(&runs);
        assert!(table.lines().any(|line| line.contains(&format!("  {expected}  efficiency"))), "{table}");
    }
}

#[test]
fn lines_of_older_versions_are_read() {
    let added = [
        ",\"warm_up_seconds\":0.5,\"warm_up_steps\":9,\"round\":1",
        ",\"device\":\"cpu\",\"step_seconds\":0.002",
        ",\"unit\":\"tokens/s\"",
    ];
    let older = added.iter().fold(RECORDED.to_owned(), |text, new| text.replace(new, ""));
    assert!(!older.contains("round") && older.matches("step_seconds").count() == 2, "{older}");
    let older = parse_runs(&older).unwrap();
    assert_eq!((older[0].round, older[0].warm_up_steps, older[0].warm_up_seconds), (1, 2, 0.0));
    assert_eq!(scaling_table(&older), scaling_table(&recorded()));
}

#[test]
fn invalid_lines_are_refused_by_number() {
    let [first, second] = [RECORDED.lines().next().unwrap(), RECORDED.lines().nth(1).unwrap()];
    for (text, reason) in [
        ("nonsense".to_owned(), "line 1 is not a measured run: expected"),
        (format!("{first}\n\n{{\"model\":\"small\"}}"), "line 3 is not a measured run: missing field"),
        (second.replace("\"ranks\":2", "\"ranks\":3"), "figures of 2 ranks but `ranks` is 3"),
        (first.replace("\"ranks\":1", "\"ranks\":0"), "`ranks` is 0"),
        (first.replace("\"step_seconds\":0.002", "\"step_seconds\":0"), "not all positive"),
        (first.replace("strong", "sideways"), "unknown variant"),
        (first[..first.len() / 2].to_owned(), "EOF"),
    ] {
        let error = parse_runs(&text).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(parse_runs("\n \n").unwrap(), []);
    let mut no_time = alone(1);
    no_time.by_rank[1].step_seconds = 0.0;
    assert!(parse_runs(&no_time.to_line().unwrap()).unwrap_err().to_string().contains("not all positive"));
    let missing = read_runs("/nowhere/runs.jsonl".as_ref()).unwrap_err().to_string();
    assert!(missing.starts_with("/nowhere/runs.jsonl: cannot read it"), "{missing}");
}

#[test]
fn a_strong_series_has_a_table() {
    assert_eq!(scaling_table(&recorded()), include_str!("expected/scaling_table.txt"));
}

#[test]
fn runs_are_compared_with_devices_alone() {
    let weak = |ranks: usize, seconds: f64| ScalingRun { round: 1, ..on(ranks, Scaling::Weak, seconds) };
    // One rank reaches 80,000 tokens/s, two reach 116,000.
    let runs = [weak(1, 0.0016), weak(2, 256.0 / 116_000.0), alone(1)];
    assert_eq!(scaling_table(&runs), include_str!("expected/scaling_table_alone.txt"));
    let svg = efficiency_plot(&runs);
    let dashed = svg.split("class=\"line dashed\"").nth(1).unwrap();
    assert_eq!(numbers(&svg, "cx").len(), 4);
    assert!(
        dashed.contains("weak, tree, 2 ranks: 93.5 % against alone")
            && svg.contains("solid: relative to one rank; dashed: "),
        "{svg}"
    );
    assert_eq!(svg.matches("class=\"label\"").count(), 2);
    // Runs with more work per device, with other devices or with fewer devices are no baseline.
    let others: [fn(&mut ScalingRun); 7] = [
        |alone| alone.by_rank[1].device = "cuda:3".to_owned(),
        |alone| alone.by_rank[1].host = "another".to_owned(),
        |alone| alone.by_rank.iter_mut().for_each(|rank| rank.device.clear()),
        |alone| alone.micro_batches = 4,
        |alone| alone.device_model = "another".to_owned(),
        |alone| alone.ranks_are = "processes".to_owned(),
        |alone| {
            alone.ranks = 1;
            alone.micro_batches = 1;
            alone.by_rank.truncate(1);
        },
    ];
    for change in others {
        let mut other = alone(1);
        change(&mut other);
        let table = scaling_table(&[runs[1].clone(), other.clone()]);
        assert!(table.contains("against alone") && !table.contains("93.5 %"), "{table}");
        // Such runs do not hide a baseline either.
        for both in [[alone(1), other.clone()], [other, alone(1)]] {
            let table = scaling_table(&[&runs[1..2], &both].concat());
            assert!(table.contains("93.5 %") && table.matches("alone    –").count() == 2, "{table}");
        }
    }
    // Lines of older versions do not name devices.
    let older = runs.map(|mut run| {
        run.by_rank.iter_mut().for_each(|rank| rank.device.clear());
        run
    });
    assert!(!scaling_table(&older).contains("93.5 %"));
}

#[test]
fn the_median_of_several_rounds_counts() {
    let round = |round: usize, seconds: f64| ScalingRun { round, ..on(2, Scaling::Weak, seconds) };
    let rounds = [round(1, 0.004), round(2, 0.001), round(3, 0.002)];
    let speed = |runs: &[ScalingRun]| {
        let table = scaling_table(runs);
        let row = table.lines().find(|line| line.starts_with("weak ")).unwrap();
        row.split_whitespace().nth(4).unwrap().to_owned()
    };
    assert_eq!(speed(&rounds), "128,000");
    let table = scaling_table(&rounds);
    let message = "3 rounds, of which the median counts; their speeds differ by at most 300.0 % (weak, tree, \
                2 ranks)";
    assert!(table.contains(message) && table.matches("weak     tree").count() == 1, "{table}");
    // Of two rounds the slower is used, and a repeated first round replaces all.
    assert_eq!(speed(&rounds[..2]), "64,000");
    assert_eq!(speed(&[&rounds[..], &[round(1, 0.0005)]].concat()), "512,000");
    assert_eq!(speed(&[&rounds[..], &[round(3, 0.0005)]].concat()), "256,000");
    // The baseline also uses its median round.
    let slower = ScalingRun { round: 2, ..alone(2) };
    let with = [&rounds[..1], &[alone(1), slower, alone(3)]].concat();
    let table = scaling_table(&with);
    assert!(table.contains("\n3 rounds") && table.contains("at most 0.0 % (alone, 2 ranks)"), "{table}");
    let mut other = on(2, Scaling::Strong, 0.001);
    (other.round, other.loss) = (2, 5.0);
    let third = ScalingRun { round: 3, ..on(2, Scaling::Strong, 0.001) };
    let strong = [on(1, Scaling::Strong, 0.002), on(2, Scaling::Strong, 0.001), other, third];
    let table = scaling_table(&strong);
    // Each distinct loss is printed once.
    assert!(table.contains("on 1, 2 ranks differ: 5.556") && table.contains(" or 5e0\n"), "{table}");
}

#[test]
fn tables_show_differences_between_runs() {
    let recorded = recorded();
    let with = |change: &dyn Fn(&mut ScalingRun)| {
        let mut runs = recorded.clone();
        change(&mut runs[1]);
        scaling_table(&runs)
    };
    let cases: [(String, &[&str], &[&str]); 7] = [
        (scaling_table(&[]), &["no runs"], &["strong"]),
        (scaling_table(&recorded[..1]), &["128,000", " – "], &["100.0 %", "the last loss"]),
        (
            with(&|run| run.loss = f32::from_bits(run.loss.to_bits() + 1)),
            &["the last losses on 1, 2 ranks differ: 5.556", "80.0 %"],
            &["same to the bit"],
        ),
        (with(&|run| run.steps = 6), &["80.0 %"], &["the last loss"]),
        (
            with(&|run| run.by_rank[1].peak_reserved_bytes = 6_291_456),
            &[
                "6.00 MiB",
                "peaks of strong, tree, 2 ranks: 2,276,352 bytes allocated and 4,194,304 reserved on rank 0; \
                 2,276,352 bytes allocated and 6,291,456 reserved on rank 1",
            ],
            &[],
        ),
        // Runs with different global batches are different series.
        (with(&|run| run.micro_batches = 4), &["204,800"], &["80.0 %", "the last loss"]),
        (
            with(&|run| run.model = "gpt2-124m".to_owned()),
            &["2 series", "gpt2-124m, f32, micro-batch 4 on AMD EPYC, threads"],
            &["80.0 %"],
        ),
    ];
    for (table, there, absent) in cases {
        assert!(there.iter().all(|words| table.contains(words)), "{there:?}: {table}");
        assert!(!absent.iter().any(|words| table.contains(words)), "{absent:?}: {table}");
    }
}

#[test]
fn efficiency_without_one_rank_is_relative_to_the_fewest() {
    let runs = [on(8, Scaling::Weak, 0.004), on(2, Scaling::Weak, 0.003), on(2, Scaling::Weak, 0.002)];
    let table = scaling_table(&runs);
    // The later of two measurements on 2 ranks is used.
    assert!(
        table.contains("weak, tree: efficiency relative to 2 ranks") && table.contains("50.0 %"),
        "{table}"
    );
    assert_eq!(table.matches("weak     tree").count(), 2, "{table}");
    assert!(efficiency_plot(&runs).contains("relative to 2 ranks"));
}

/// Returns every number after `name="`.
fn numbers(svg: &str, name: &str) -> Vec<f64> {
    let start = format!(" {name}=\"");
    svg.split(&start).skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn plots_are_well_formed_and_within_their_bounds() {
    let both =
        |scaling: Scaling, slow: f64| [1, 2, 4, 8].map(|ranks| on(ranks, scaling, slow / ranks as f64));
    let mut many: Vec<ScalingRun> = Vec::new();
    for (index, reduction) in ["tree", "nccl", "tree, again", "<other> & more"].into_iter().enumerate() {
        for scaling in [Scaling::Strong, Scaling::Weak] {
            let runs = both(scaling, 0.01 + index as f64 / 1000.0);
            many.extend(runs.map(|run| ScalingRun { reduction: reduction.to_owned(), ..run }));
        }
    }
    // Runs, their number of series, and the number of series with an efficiency.
    for (runs, series, compared) in
        [(Vec::new(), 0, 0), (recorded()[..1].to_vec(), 1, 0), (recorded(), 1, 1), (many, 8, 8)]
    {
        for (svg, labels) in [(efficiency_plot(&runs), compared), (memory_plot(&runs), series)] {
            for element in ["svg", "style", "text", "tspan", "title"] {
                let opened = svg.matches(&format!("<{element}>")).count()
                    + svg.matches(&format!("<{element} ")).count();
                assert_eq!(opened, svg.matches(&format!("</{element}>")).count(), "{element}: {svg}");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf\"") && !svg.contains("<other>"), "{svg}");
            assert_eq!(svg.matches("class=\"label\"").count(), labels, "{svg}");
            assert_eq!(svg.contains("nothing to compare"), labels == 0);
            let inside =
                |name: &str, most: f64| numbers(&svg, name).iter().all(|at| (0.0..=most).contains(at));
            assert!(
                inside("cx", 940.0) && inside("x", 940.0) && inside("cy", 470.0) && inside("y", 470.0),
                "{svg}"
            );
            assert!(numbers(&svg, "height").iter().all(|height| *height >= 0.0));
        }
        let points = runs.len() - usize::from(compared == 0 && !runs.is_empty());
        assert_eq!(efficiency_plot(&runs).matches("<circle").count(), points);
        assert_eq!(memory_plot(&runs).matches("fill-opacity=\"1\"").count(), runs.len());
    }
}

#[test]
fn labels_do_not_cover_each_other() {
    let mut runs = Vec::new();
    for index in 0..8 {
        let reduction = format!("kind {index}");
        for ranks in [1, 2] {
            // All lines end at almost the same value.
            let seconds = 0.01 / ranks as f64 + f64::from(index) * 1e-9;
            runs.push(ScalingRun { reduction: reduction.clone(), ..on(ranks, Scaling::Strong, seconds) });
        }
    }
    let svg = efficiency_plot(&runs);
    let labels = svg.split("class=\"label\"").skip(1);
    let mut positions: Vec<f64> = labels.map(|label| numbers(label, "y")[0]).collect();
    assert_eq!(positions.len(), 8);
    positions.sort_by(f64::total_cmp);
    assert!(positions.windows(2).all(|pair| pair[1] - pair[0] >= 16.9), "{positions:?}");
}
