//! Tests of statistics in messages, tables and files.

use std::time::Duration;

use collective::threads::{Options, run};
use collective::{CallKind, Communicator, Traffic};
use memory::drivers::Counting;
use memory::{Allocator, Category, Settings, Stream, Tag, Usage};
use proptest::prelude::*;
use telemetry::table::{device_table, full_table, memory_table, phase_table};
use telemetry::{
    DriverAccount, Phase, PhaseTimes, RankStatistics, Sources, Statistic, TelemetryError, Unit, gather,
};

/// Returns the statistics of an allocator with `mebibytes` MiB of parameters and as many freed activations.
fn statistics(rank: usize, host: &str, mebibytes: u64) -> RankStatistics {
    offloading(rank, host, mebibytes, Usage::default())
}

/// Returns the same statistics with bytes of a host pool.
fn offloading(rank: usize, host: &str, mebibytes: u64, pool: Usage) -> RankStatistics {
    let mut allocator = Allocator::new(Counting::new(1 << 40), Settings::default()).unwrap();
    allocator.allocate(mebibytes << 20, Stream(0), Tag::with_category(Category::Parameter)).unwrap();
    let activation =
        allocator.allocate(mebibytes << 20, Stream(0), Tag::with_category(Category::Activation)).unwrap();
    allocator.free(activation.block).unwrap();
    let mut traffic = Traffic::default();
    traffic.record(CallKind::AllReduce, 100, 200);
    traffic.record(CallKind::Barrier, 0, 0);
    let sources = Sources {
        statistics: allocator.statistics(),
        live: allocator.category_bytes(),
        at_peak: allocator.peak_category_bytes(),
        host: pool,
        traffic,
        driver: DriverAccount {
            context: 500,
            modules: 30,
            communicators: 11,
            warm_up: 7,
            used: 1000,
            unaccounted: 5,
            unaccounted_growth: 1,
            contexts: 2,
            ranks: 1,
        },
        phases: PhaseTimes::default(),
    };
    RankStatistics::take(rank, host, "cpu", &sources)
}

/// Returns the statistics of an allocator that ran out of memory.
fn exhausted(rank: usize) -> RankStatistics {
    let mut allocator = Allocator::new(Counting::new(1 << 20), Settings::default()).unwrap();
    allocator.allocate(1 << 30, Stream(0), Tag::default()).unwrap_err();
    let sources = Sources {
        statistics: allocator.statistics(),
        live: allocator.category_bytes(),
        at_peak: allocator.peak_category_bytes(),
        host: Usage::default(),
        traffic: Traffic::default(),
        driver: DriverAccount::default(),
        phases: PhaseTimes::default(),
    };
    RankStatistics::take(rank, "a", "cpu", &sources)
}

#[test]
fn values_come_from_their_sources() {
    let statistics = statistics(3, "a", 32);
    let mib = |count: u64| count << 20;
    for (statistic, value) in [
        (Statistic::AllocatedBytes, mib(32)),
        (Statistic::ReservedBytes, mib(64)),
        (Statistic::PeakAllocatedBytes, mib(64)),
        (Statistic::PeakReservedBytes, mib(64)),
        (Statistic::RequestedBytes, mib(32)),
        (Statistic::ActiveBytes, mib(32)),
        (Statistic::InactiveSplitBytes, 0),
        (Statistic::InactiveSplitBlocks, 0),
        (Statistic::Segments, 2),
        (Statistic::ContextBytes, 500),
        (Statistic::ModuleBytes, 30),
        (Statistic::CommunicatorBytes, 11),
        (Statistic::WarmUpBytes, 7),
        (Statistic::DriverUsedBytes, 1000),
        (Statistic::UnaccountedBytes, 5),
        (Statistic::UnaccountedGrowthBytes, 1),
        (Statistic::DeviceContexts, 2),
        (Statistic::DeviceRanks, 1),
        (Statistic::AllocatedBlocks, 1),
        (Statistic::Allocations, 2),
        (Statistic::Retries, 0),
        (Statistic::OutOfMemory, 0),
        (Statistic::DriverAllocations, 2),
        (Statistic::DriverFrees, 0),
        (Statistic::BytesSent, 100),
        (Statistic::BytesReceived, 200),
        (Statistic::CollectiveCalls, 2),
        (Statistic::LiveBytes(Category::Parameter), mib(32)),
        (Statistic::LiveBytes(Category::Activation), 0),
        (Statistic::PeakBytes(Category::Activation), mib(32)),
    ] {
        assert_eq!(statistics.get(statistic), value, "{}", statistic.name());
    }
    let sum = |to_statistic: fn(Category) -> Statistic| {
        Category::ALL.into_iter().map(|c| statistics.get(to_statistic(c))).sum::<u64>()
    };
    assert_eq!(sum(Statistic::LiveBytes), statistics.get(Statistic::AllocatedBytes));
    assert_eq!(sum(Statistic::PeakBytes), statistics.get(Statistic::PeakAllocatedBytes));
    assert_eq!(exhausted(0).get(Statistic::OutOfMemory), 1);
}

#[test]
fn names_are_distinct_keys_with_their_unit() {
    let mut names: Vec<_> = Statistic::all().iter().map(|statistic| statistic.name()).collect();
    for statistic in Statistic::all() {
        assert_eq!(
            statistic.name().contains("bytes"),
            statistic.unit() == Unit::Bytes,
            "{}",
            statistic.name()
        );
        assert_eq!(
            statistic.name().ends_with("_microseconds"),
            statistic.unit() == Unit::Microseconds,
            "{}",
            statistic.name()
        );
    }
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')));
}

#[test]
fn rank_0_gathers_all_ranks() {
    let outcome = run(4, Options::default(), |mut communicator| {
        let rank = communicator.rank();
        gather(&mut *communicator.control, &statistics(rank, "a", 32 + rank as u64))
    });
    let mut gathered = outcome.unwrap().into_iter();
    let on_0 = gathered.next().unwrap().unwrap();
    assert_eq!(on_0, (0..4).map(|rank| statistics(rank, "a", 32 + rank as u64)).collect::<Vec<_>>());
    assert!(gathered.all(|elsewhere| elsewhere.is_none()));
}

#[test]
fn a_counted_communicator_repeats_its_own_rank() {
    let mut communicator = Communicator::counted(0, 2);
    let own = statistics(0, "a", 32);
    let gathered = gather(&mut *communicator.control, &own).unwrap().unwrap();
    assert_eq!(gathered, [own.clone(), own]);
}

#[test]
fn a_bad_message_names_its_rank() {
    let options = Options { timeout: Duration::from_secs(600), ..Options::default() };
    let outcome = run(2, options, |mut communicator| -> Result<(), TelemetryError> {
        if communicator.rank() == 1 {
            communicator.control.gather(0, b"not statistics")?;
            return Ok(());
        }
        gather(&mut *communicator.control, &statistics(0, "a", 32)).map(drop)
    });
    let text = outcome.unwrap_err().to_string();
    assert!(text.starts_with("rank 0: the statistics from rank 1 cannot be read: "), "{text}");
}

proptest! {
    #[test]
    fn decoding_never_panics(message in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = RankStatistics::decode(0, &message);
    }

    #[test]
    fn damaged_messages_do_not_pass(index in 0usize..1000, value in any::<u8>(), cut in 0usize..1000) {
        let sent = statistics(1, "some-host", 48);
        let message = sent.encode().unwrap();
        prop_assert_eq!(RankStatistics::decode(1, &message).unwrap(), sent.clone());
        let cut = cut % message.len();
        prop_assert!(RankStatistics::decode(1, &message[..cut]).is_err());
        let mut longer = message.clone();
        longer.push(value);
        prop_assert!(RankStatistics::decode(1, &longer).is_err());
        let mut damaged = message.clone();
        let index = index % message.len();
        damaged[index] = value;
        if let Ok(read) = RankStatistics::decode(1, &damaged) {
            prop_assert_eq!(read == sent, damaged == message);
        }
    }
}

#[test]
fn the_memory_table_of_one_rank_has_one_row() {
    assert_eq!(memory_table(&[statistics(0, "box", 32)]), include_str!("expected/memory_one_rank.txt"));
}

#[test]
fn the_memory_table_has_the_host_if_a_rank_offloads() {
    let title = "peak host reserved";
    assert!(!memory_table(&[statistics(0, "a", 1)]).contains(title));
    let pool = Usage { allocated: 3 << 20, reserved: 20 << 20 };
    let table = memory_table(&[statistics(0, "a", 1), offloading(1, "a", 1, pool)]);
    let values = ["0 (0 B)", "20,971,520 (20.00 MiB)"];
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].ends_with(title), "{table}");
    for (line, value) in lines[3..5].iter().zip(values) {
        assert!(line.ends_with(value), "{table}");
    }
    assert_eq!(offloading(1, "a", 1, pool).get(Statistic::HostAllocatedBytes), 3 << 20);
}

#[test]
fn the_memory_table_of_several_ranks_has_extremes() {
    let ranks = [statistics(0, "a", 48), statistics(1, "b", 32), exhausted(2)];
    assert_eq!(memory_table(&ranks), include_str!("expected/memory_three_ranks.txt"));
}

#[test]
fn the_memory_table_of_many_ranks_groups_equal_rows() {
    let ranks: Vec<_> = (0..64).map(|rank| statistics(rank, "a", if rank == 7 { 48 } else { 32 })).collect();
    assert_eq!(memory_table(&ranks), include_str!("expected/memory_many_ranks.txt"));
}

#[test]
fn the_full_table_has_a_row_for_each_statistic() {
    let one = full_table(&[statistics(0, "a", 32)]);
    assert!(one.contains("bytes_received") && !one.contains("ooms"), "{one}");
    assert_eq!(
        full_table(&[statistics(0, "a", 48), statistics(1, "a", 32)]),
        include_str!("expected/all_statistics.txt")
    );
}

#[test]
fn the_device_table_needs_a_driver() {
    assert_eq!(device_table(&[exhausted(0)]), "");
    let table = device_table(&[statistics(0, "a", 32), exhausted(1)]);
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[1].ends_with("used (driver)"), "{table}");
    let words = lines[3].split_whitespace().map(|word| word.replace(",", ""));
    let first: Vec<_> = words.filter(|word| word.parse::<u64>().is_ok()).collect();
    assert_eq!(first, ["0", "500", "30", "11", "7", "67108864", "5", "1000"], "{table}");
}

/// Returns the statistics of a rank with three steps that took `median` microseconds in each phase.
fn timed(rank: usize, median: [u64; Phase::ALL.len()]) -> RankStatistics {
    let allocator = Allocator::new(Counting::new(1 << 20), Settings::default()).unwrap();
    let sources = Sources {
        statistics: allocator.statistics(),
        live: allocator.category_bytes(),
        at_peak: allocator.peak_category_bytes(),
        host: Usage::default(),
        traffic: Traffic::default(),
        driver: DriverAccount::default(),
        phases: PhaseTimes {
            steps: 3,
            median,
            whole: median.map(|time| 3 * time),
            median_step: median.iter().sum(),
        },
    };
    RankStatistics::take(rank, "a", "cpu", &sources)
}

#[test]
fn phase_times_are_statistics() {
    let statistics = timed(0, [1, 20, 300, 0, 0, 4000, 50000]);
    for (statistic, value) in [
        (Statistic::TimedSteps, 3),
        (Statistic::MedianStepTime, 54321),
        (Statistic::WholeStepTime, 3 * 54321),
        (Statistic::MedianTime(Phase::Inputs), 1),
        (Statistic::MedianTime(Phase::Reduce), 4000),
        (Statistic::WholeTime(Phase::Update), 150_000),
    ] {
        assert_eq!(statistics.get(statistic), value, "{}", statistic.name());
    }
    let entry = serde_json::Value::from(statistics.to_json());
    assert_eq!(entry["median_optimizer_microseconds"], 50000);
    assert_eq!(entry["whole_backward_microseconds"], 900);
    assert_eq!(RankStatistics::decode(0, &statistics.encode().unwrap()).unwrap(), statistics);
}

#[test]
fn the_phase_table_of_one_rank_has_medians() {
    assert_eq!(phase_table(&[statistics(0, "a", 32)]), "", "nothing was timed");
    assert_eq!(
        phase_table(&[timed(0, [500, 30_000, 60_500, 0, 0, 8000, 1000])]),
        include_str!("expected/phases_one_rank.txt")
    );
    let waiting = phase_table(&[timed(0, [500, 30_000, 60_500, 3000, 0, 8000, 1000])]);
    assert!(waiting.contains("\npipeline           3.000 ms"), "{waiting}");
}

#[test]
fn the_phase_table_names_slower_ranks() {
    let ranks = [
        timed(0, [500, 30_000, 60_000, 0, 0, 8500, 1000]),
        timed(1, [500, 30_000, 66_000, 0, 0, 2500, 1000]),
        timed(2, [500, 30_999, 60_000, 0, 0, 7501, 1000]),
    ];
    let table = phase_table(&ranks);
    // Only the words and their order matter, not the widths of the columns.
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let normalized = |text: &str| words(&text.replace('-', ""));
    assert_eq!(normalized(&table), normalized(include_str!("expected/phases_three_ranks.txt")), "{table}");
    let words_under =
        |ranks: &[RankStatistics]| phase_table(ranks).lines().skip(10).map(str::to_owned).collect::<Vec<_>>();
    let near = [timed(0, [0, 40_000, 60_000, 0, 0, 0, 0]), timed(1, [0, 41_000, 59_000, 0, 0, 0, 0])];
    assert!(words_under(&near).is_empty(), "1 % of a step is not beyond it");
}
