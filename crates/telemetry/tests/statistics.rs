//! Statistics over the wire, in tables and in files.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::time::Duration;

use collective::threads::{Options, run};
use collective::{Communicator, Operation, Traffic};
use memory::drivers::Counting;
use memory::{Allocator, Category, Settings, Stream, Tag};
use proptest::prelude::*;
use telemetry::table::{device_table, full_table, memory_table, phase_table};
use telemetry::{
    DriverAccount, Phase, PhaseTimes, RankStatistics, Sources, Statistic, TelemetryError, Unit, gather,
};

/// An allocator that holds `mebibytes` of parameters and had an activation of as many.
fn statistics(rank: usize, host: &str, mebibytes: u64) -> RankStatistics {
    let mut allocator = Allocator::new(Counting::new(1 << 40), Settings::default()).unwrap();
    allocator.allocate(mebibytes << 20, Stream(0), Tag::of(Category::Parameter)).unwrap();
    let activation = allocator.allocate(mebibytes << 20, Stream(0), Tag::of(Category::Activation)).unwrap();
    allocator.free(activation.block).unwrap();
    let mut traffic = Traffic::default();
    traffic.record(Operation::AllReduce, 100, 200);
    traffic.record(Operation::Barrier, 0, 0);
    let sources = Sources {
        statistics: allocator.statistics(),
        live: allocator.category_bytes(),
        at_peak: allocator.peak_category_bytes(),
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
        },
        phases: PhaseTimes::default(),
    };
    RankStatistics::take(rank, host, "cpu", &sources)
}

/// One whose allocator refused a request.
fn exhausted(rank: usize) -> RankStatistics {
    let mut allocator = Allocator::new(Counting::new(1 << 20), Settings::default()).unwrap();
    allocator.allocate(1 << 30, Stream(0), Tag::default()).unwrap_err();
    let sources = Sources {
        statistics: allocator.statistics(),
        live: allocator.category_bytes(),
        at_peak: allocator.peak_category_bytes(),
        traffic: Traffic::default(),
        driver: DriverAccount::default(),
        phases: PhaseTimes::default(),
    };
    RankStatistics::take(rank, "a", "cpu", &sources)
}

#[test]
fn values_are_the_allocators_and_the_wires() {
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
    let sum =
        |of: fn(Category) -> Statistic| Category::ALL.into_iter().map(|c| statistics.get(of(c))).sum::<u64>();
    assert_eq!(sum(Statistic::LiveBytes), statistics.get(Statistic::AllocatedBytes));
    assert_eq!(sum(Statistic::PeakBytes), statistics.get(Statistic::PeakAllocatedBytes));
    assert_eq!(exhausted(0).get(Statistic::OutOfMemory), 1);
}

#[test]
fn names_are_keys() {
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
fn rank_0_hears_of_all_ranks() {
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
fn a_counted_rank_stands_for_all() {
    let mut communicator = Communicator::counted(0, 2);
    let own = statistics(0, "a", 32);
    let gathered = gather(&mut *communicator.control, &own).unwrap().unwrap();
    assert_eq!(gathered, [own.clone(), own]);
}

#[test]
fn garbage_from_a_rank_is_named() {
    let options = Options { timeout: Duration::from_secs(5), ..Options::default() };
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
    fn a_damaged_message_is_refused_or_differs(place in 0usize..1000, value in any::<u8>(), cut in 0usize..1000) {
        let sent = statistics(1, "some-host", 48);
        let message = sent.encode().unwrap();
        prop_assert_eq!(RankStatistics::decode(1, &message).unwrap(), sent.clone());
        let cut = cut % message.len();
        prop_assert!(RankStatistics::decode(1, &message[..cut]).is_err());
        let mut longer = message.clone();
        longer.push(value);
        prop_assert!(RankStatistics::decode(1, &longer).is_err());
        let (mut damaged, place) = (message.clone(), place % message.len());
        damaged[place] = value;
        if let Ok(read) = RankStatistics::decode(1, &damaged) {
            prop_assert_eq!(read == sent, damaged == message);
        }
    }
}

#[test]
fn one_rank_has_one_line() {
    let expected = "\
memory by rank, host box, device cpu
rank               allocated                reserved          peak allocated           peak reserved
----------------------------------------------------------------------------------------------------
0     33,554,432 (32.00 MiB)  67,108,864 (64.00 MiB)  67,108,864 (64.00 MiB)  67,108,864 (64.00 MiB)
";
    assert_eq!(memory_table(&[statistics(0, "box", 32)]), expected);
}

#[test]
fn several_ranks_end_with_maximum_and_minimum() {
    let ranks = [statistics(0, "a", 48), statistics(1, "b", 32), exhausted(2)];
    let expected = "\
memory by rank, device cpu
rank     host               allocated                 reserved           peak allocated            peak reserved
----------------------------------------------------------------------------------------------------------------
0        a     50,331,648 (48.00 MiB)  100,663,296 (96.00 MiB)  100,663,296 (96.00 MiB)  100,663,296 (96.00 MiB)
1        b     33,554,432 (32.00 MiB)   67,108,864 (64.00 MiB)   67,108,864 (64.00 MiB)   67,108,864 (64.00 MiB)
2        a                    0 (0 B)                  0 (0 B)                  0 (0 B)                  0 (0 B)
----------------------------------------------------------------------------------------------------------------
maximum           48.00 MiB on rank 0      96.00 MiB on rank 0      96.00 MiB on rank 0      96.00 MiB on rank 0
minimum                 0 B on rank 2            0 B on rank 2            0 B on rank 2            0 B on rank 2
rank 2: retries 1, out of memory 1
";
    assert_eq!(memory_table(&ranks), expected);
}

#[test]
fn many_ranks_share_lines() {
    let ranks: Vec<_> = (0..64).map(|rank| statistics(rank, "a", if rank == 7 { 48 } else { 32 })).collect();
    let expected = "\
memory by rank, host a, device cpu
rank                   allocated                 reserved           peak allocated            peak reserved
-----------------------------------------------------------------------------------------------------------
0-6,8-63  33,554,432 (32.00 MiB)   67,108,864 (64.00 MiB)   67,108,864 (64.00 MiB)   67,108,864 (64.00 MiB)
7         50,331,648 (48.00 MiB)  100,663,296 (96.00 MiB)  100,663,296 (96.00 MiB)  100,663,296 (96.00 MiB)
-----------------------------------------------------------------------------------------------------------
maximum      48.00 MiB on rank 7      96.00 MiB on rank 7      96.00 MiB on rank 7      96.00 MiB on rank 7
minimum      32.00 MiB on rank 0      64.00 MiB on rank 0      64.00 MiB on rank 0      64.00 MiB on rank 0
";
    assert_eq!(memory_table(&ranks), expected);
}

#[test]
fn every_statistic_has_a_line() {
    let one = full_table(&[statistics(0, "a", 32)]);
    assert!(one.contains("bytes_received") && !one.contains("ooms"), "{one}");
    let expected = "\
statistic                             maximum              minimum
------------------------------------------------------------------
allocated_bytes           48.00 MiB on rank 0  32.00 MiB on rank 1
reserved_bytes            96.00 MiB on rank 0  64.00 MiB on rank 1
peak_allocated_bytes      96.00 MiB on rank 0  64.00 MiB on rank 1
peak_reserved_bytes       96.00 MiB on rank 0  64.00 MiB on rank 1
requested_bytes           48.00 MiB on rank 0  32.00 MiB on rank 1
active_bytes              48.00 MiB on rank 0  32.00 MiB on rank 1
segments                             2 on all             2 on all
allocated_blocks                     1 on all             1 on all
allocations                          2 on all             2 on all
driver_allocations                   2 on all             2 on all
bytes_sent                       100 B on all         100 B on all
bytes_received                   200 B on all         200 B on all
collective_calls                     2 on all             2 on all
context_bytes                    500 B on all         500 B on all
module_bytes                      30 B on all          30 B on all
communicator_bytes                11 B on all          11 B on all
warm_up_bytes                      7 B on all           7 B on all
driver_used_bytes               1000 B on all        1000 B on all
unaccounted_bytes                  5 B on all           5 B on all
unaccounted_growth_bytes           1 B on all           1 B on all
device_contexts                      2 on all             2 on all
live_parameter_bytes      48.00 MiB on rank 0  32.00 MiB on rank 1
at_peak_parameter_bytes   48.00 MiB on rank 0  32.00 MiB on rank 1
at_peak_activation_bytes  48.00 MiB on rank 0  32.00 MiB on rank 1
";
    assert_eq!(full_table(&[statistics(0, "a", 48), statistics(1, "a", 32)]), expected);
}

#[test]
fn devices_with_a_driver_have_an_account() {
    assert_eq!(device_table(&[exhausted(0)]), "");
    let table = device_table(&[statistics(0, "a", 32), exhausted(1)]);
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[1].ends_with("used, says the driver"), "{table}");
    let words = lines[3].split_whitespace().map(|word| word.replace(",", ""));
    let first: Vec<_> = words.filter(|word| word.parse::<u64>().is_ok()).collect();
    assert_eq!(first, ["0", "500", "30", "11", "7", "67108864", "5", "1000"], "{table}");
}

/// A rank whose steps took so many microseconds in each phase, three of them.
fn timed(rank: usize, median: [u64; Phase::ALL.len()]) -> RankStatistics {
    let allocator = Allocator::new(Counting::new(1 << 20), Settings::default()).unwrap();
    let sources = Sources {
        statistics: allocator.statistics(),
        live: allocator.category_bytes(),
        at_peak: allocator.peak_category_bytes(),
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
fn times_are_statistics() {
    let statistics = timed(0, [1, 20, 300, 0, 4000, 50000]);
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
fn phases_have_a_table() {
    assert_eq!(phase_table(&[statistics(0, "a", 32)]), "", "nothing was timed");
    let one = "\
time by phase, median of 3 steps
phase                median  part of the step  all steps
--------------------------------------------------------
inputs             0.500 ms             0.5 %    0.002 s
forward           30.000 ms            30.0 %    0.090 s
backward          60.500 ms            60.5 %    0.181 s
reduce, exposed    8.000 ms             8.0 %    0.024 s
optimizer          1.000 ms             1.0 %    0.003 s
--------------------------------------------------------
step             100.000 ms           100.0 %    0.300 s
";
    assert_eq!(phase_table(&[timed(0, [500, 30_000, 60_500, 0, 8000, 1000])]), one);
    let waiting = phase_table(&[timed(0, [500, 30_000, 60_500, 3000, 8000, 1000])]);
    assert!(waiting.contains("\npipeline           3.000 ms"), "{waiting}");
}

#[test]
fn ranks_that_are_behind_are_named() {
    let ranks = [
        timed(0, [500, 30_000, 60_000, 0, 8500, 1000]),
        timed(1, [500, 30_000, 66_000, 0, 2500, 1000]),
        timed(2, [500, 30_999, 60_000, 0, 7501, 1000]),
    ];
    let table = phase_table(&ranks);
    let expected = "\
time by phase, median of 3 steps
phase                      maximum               minimum  part of the step  all steps
-------------------------------------------------------------------------------------
inputs             0.500 ms on all       0.500 ms on all             0.5 %    0.002 s
forward       30.999 ms on rank 2   30.000 ms on rank 0            30.3 %    0.091 s
backward      66.000 ms on rank 1   60.000 ms on rank 0            62.0 %    0.186 s
reduce, exposed     8.500 ms on rank 0    2.500 ms on rank 1             6.2 %    0.019 s
optimizer          1.000 ms on all       1.000 ms on all             1.0 %    0.003 s
-------------------------------------------------------------------------------------
step             100.000 ms on all     100.000 ms on all           100.0 %    0.300 s
backward: rank 1 takes 6.000 ms longer than rank 0, 6.0 % of a step
reduce: rank 0 waits 6.000 ms longer than rank 1, 6.0 % of a step
";
    // The columns' places are those of the rank table; words and their order are what matters here.
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let told = |text: &str| words(&text.replace('-', ""));
    assert_eq!(told(&table), told(expected), "{table}");
    let words_under =
        |ranks: &[RankStatistics]| phase_table(ranks).lines().skip(10).map(str::to_owned).collect::<Vec<_>>();
    let near = [timed(0, [0, 40_000, 60_000, 0, 0, 0]), timed(1, [0, 41_000, 59_000, 0, 0, 0])];
    assert!(words_under(&near).is_empty(), "1 % of a step is not beyond it");
}
