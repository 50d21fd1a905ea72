//! Times communication between GPUs by the number of hosts, the ranks per host, and the operand's bytes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use collective::{
    Collective, Communicator, PEER_SUMS, PeerAccess, PeerAccessOptions, ProcessGroup, RankTree, SumKernels,
    TreeSum, tree_sums,
};
use device::{Category, DType, Device, DeviceOptions, Request, StreamKind};
use plan::MeasuredCalls;
use tensor::Tensor;

use crate::error::{BenchError, Result};

const STREAM: StreamKind = StreamKind::Reduce;
const ROUNDS: usize = 5;
/// Number of calls in a round.
const CALLS: u32 = 8;
/// Maximum time to wait for other hosts.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Largest and smallest operand in bytes.
pub(crate) const LARGEST: usize = 1 << 28;
const SMALLEST: usize = 1 << 13;
/// Ratio between the sizes of consecutive operands.
const FACTOR: usize = 8;

/// Groups of equally many ranks, which communicate at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    hosts: usize,
    on_host: usize,
    members: Vec<Vec<usize>>,
}

impl Groups {
    /// Returns the groups of 2, 4 and more of the `ranks` ranks of one host. `ranks` must be a power of two.
    pub(crate) fn of_host(ranks: usize) -> Vec<Self> {
        let sizes = std::iter::successors(Some(2), |size| Some(2 * size)).take_while(|size| *size <= ranks);
        let all: Vec<_> = (0..ranks).collect();
        let groups =
            |size| Groups { hosts: 1, on_host: size, members: all.chunks(size).map(<[_]>::to_vec).collect() };
        sizes.map(groups).collect()
    }

    /// Returns the groups that span hosts, for ranks on the hosts named `hosts`: all ranks and, if hosts have
    /// several ranks, groups with one rank of each host.
    ///
    /// # Errors
    /// There is only one host, or hosts have different numbers of ranks.
    pub(crate) fn between(hosts: &[String]) -> Result<Vec<Self>> {
        let mut by_host: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (rank, host) in hosts.iter().enumerate() {
            by_host.entry(host).or_default().push(rank);
        }
        let by_host: Vec<_> = by_host.into_values().collect();
        let count = by_host.len();
        let on_host = by_host.first().map_or(0, Vec::len);
        if count < 2 {
            let text = "--describe: all processes of the job are on one host, between which there is no \
                        network: start it on several hosts, or without a launcher to describe this one";
            return Err(BenchError::Refused(text.to_owned()));
        }
        if by_host.iter().any(|ranks| ranks.len() != on_host) {
            let text = "--describe: the hosts of the job have different numbers of processes: start one for \
                        each GPU of every host";
            return Err(BenchError::Refused(text.to_owned()));
        }
        let mut all = vec![Groups { hosts: count, on_host, members: vec![by_host.concat()] }];
        if on_host > 1 {
            let one_of_each = |index| by_host.iter().map(|ranks| ranks[index]).collect();
            all.push(Groups { hosts: count, on_host: 1, members: (0..on_host).map(one_of_each).collect() });
        }
        Ok(all)
    }

    fn ranks(&self) -> usize {
        self.hosts * self.on_host
    }
}

/// Checks that the network between the hosts of a job can be measured.
///
/// # Errors
/// There is only one host, or hosts have different numbers of ranks.
pub fn check_hosts(hosts: &[String]) -> Result<()> {
    Groups::between(hosts).map(drop)
}

/// Measures communication between the GPUs of several hosts. Every rank of a job calls it with its GPU's
/// ordinal and the host names of all ranks. Returns the times of the slowest rank.
///
/// # Errors
/// As for [`check_hosts`]; a GPU is missing or fails.
pub fn measure_network(
    communicator: Communicator,
    ordinal: usize,
    hosts: &[String],
) -> Result<Vec<MeasuredCalls>> {
    let groups = Groups::between(hosts)?;
    let rank = communicator.rank();
    let device = Device::cuda(rank, ordinal, tensor::ops::FAMILIES, &DeviceOptions::default())?;
    let mut communicator =
        device.connecting(|| Ok::<_, BenchError>(communicator.over_nccl(&device, TIMEOUT)?))?;
    measure(&mut communicator, (&device, LARGEST), &groups)
}

/// Measures communication within each of the groups `all`, with operands of at most `largest` bytes on
/// `device`. Every rank must call it. Returns the times of the slowest rank.
pub(crate) fn measure(
    communicator: &mut Communicator,
    (device, largest): (&Device, usize),
    all: &[Groups],
) -> Result<Vec<MeasuredCalls>> {
    let request = Request::new(Category::Other, "links").on(STREAM);
    let [first, second] = [(); 2].map(|()| Tensor::zeros(device, [largest / 4], DType::F32, request));
    let mut links = Links { first: first?, second: second?, samples: Vec::new() };
    device.synchronize()?;
    for groups in all {
        let ranks = groups.ranks();
        let group = device.connecting(|| {
            let group = communicator.group.split(&groups.members)?;
            group.warm_up(&Collective::everything(ranks))?;
            Ok::<_, BenchError>(group)
        })?;
        links.of_group(&group, groups, device)?;
    }
    let seconds: Vec<f64> = links.samples.iter().map(|(_, [.., seconds])| *seconds).collect();
    for (index, slowest) in slowest(communicator, &seconds)?.into_iter().enumerate() {
        links.samples[index].1[3] = slowest;
    }
    let mut measured: BTreeMap<&str, Vec<[f64; 4]>> = BTreeMap::new();
    for (operation, sample) in links.samples {
        measured.entry(operation).or_default().push(sample);
    }
    let calls = |(call, samples): (&str, _)| MeasuredCalls { call: call.to_owned(), samples };
    Ok(measured.into_iter().map(calls).collect())
}

/// Returns the element-wise maximum of all ranks' times.
fn slowest(communicator: &mut Communicator, seconds: &[f64]) -> Result<Vec<f64>> {
    let own: Vec<u8> = seconds.iter().flat_map(|seconds| seconds.to_le_bytes()).collect();
    let mut slowest = seconds.to_vec();
    for of_rank in communicator.control.all_gather(&own)? {
        for (slowest, bytes) in slowest.iter_mut().zip(of_rank.chunks_exact(8)) {
            let seconds = bytes.try_into().map_or(0.0, f64::from_le_bytes);
            *slowest = slowest.max(seconds);
        }
    }
    Ok(slowest)
}

/// One rank's operands and results.
struct Links {
    first: Tensor,
    second: Tensor,
    samples: Vec<(&'static str, [f64; 4])>,
}

impl Links {
    /// Measures the collectives that runs use, in one of the groups.
    fn of_group(&mut self, group: &ProcessGroup, groups: &Groups, device: &Device) -> Result<()> {
        let rank = group.rank();
        let ranks = groups.ranks();
        for bytes in self.sizes() {
            // One part for each rank, in whole vectors.
            let part = bytes / ranks / 16 * 16;
            let first = self.first.region();
            let second = self.second.region();
            let whole = second.part(0, part * ranks);
            let own = second.part(rank * part, part);
            let others: Vec<_> = (0..ranks).filter(|other| *other != rank).collect();
            let sends = others.iter().map(|to| (*to, first.part(to * part, part))).collect();
            let receives = others.iter().map(|by| (*by, second.part(by * part, part))).collect();
            // The partner is on another host, if there are several.
            let half = ranks / 2;
            let message = match rank / half {
                0 => Some(Collective::Send { to: rank + half, region: whole }),
                1 => Some(Collective::Receive { from: rank - half, region: whole }),
                _ => None,
            };
            let measured = [
                (part * ranks, Some(Collective::AllReduce { region: whole, dtype: DType::F32 })),
                (part * ranks, Some(Collective::AllGather { input: own, output: whole })),
                (part * others.len(), Some(Collective::Exchange { sends, receives })),
                (part * ranks, message),
            ];
            let names = ["all-reduce", "all-gather", "exchange", "send"];
            let mut times = Vec::new();
            for (name, (bytes, collective)) in names.into_iter().zip(measured) {
                let run = |group: &ProcessGroup| match &collective {
                    Some(collective) => group.run(collective.clone(), STREAM),
                    None => Ok(()),
                };
                times.push((name, bytes, fastest(group, run)?));
            }
            self.add(groups, times);
        }
        if groups.hosts == 1 {
            device.synchronize()?;
            self.in_peer_memory(group, groups, device)?;
        }
        Ok(())
    }

    /// Measures sums in the memory of the ranks' GPUs, if peer access is available.
    fn in_peer_memory(&mut self, group: &ProcessGroup, groups: &Groups, device: &Device) -> Result<()> {
        let options = PeerAccessOptions { sums: Some(SumKernels::OF_TREES), ..PeerAccessOptions::default() };
        let share = |group: &ProcessGroup| group.share(&[self.first.region()], options);
        let shared = device.connecting(|| Ok::<_, BenchError>(share(group)?))?;
        if !matches!(shared, PeerAccess::Granted) {
            return Ok(());
        }
        let ranks = groups.ranks();
        let tree = RankTree::balanced(groups.ranks());
        for bytes in self.sizes() {
            let elements = bytes / ranks / 16 * ranks * 4;
            let parts = [self.first.view(0, [elements])?];
            let scratch = self.second.view(0, [elements])?;
            let sum = TreeSum { parts: &parts, scratch: &scratch, everywhere: true };
            let seconds =
                fastest(group, |group| tree_sums(group, std::slice::from_ref(&sum), &tree, true, STREAM))?;
            // Each rank reads its share of every part, and writes the sum to all ranks.
            self.add(groups, [(PEER_SUMS, 2 * 4 * elements, seconds)]);
        }
        group.share(&[], options)?;
        Ok(())
    }

    /// Returns the operand sizes in bytes, in descending order.
    fn sizes(&self) -> Vec<usize> {
        let sizes = std::iter::successors(Some(self.first.bytes()), |bytes| Some(bytes / FACTOR));
        sizes.take_while(|bytes| *bytes >= SMALLEST).collect()
    }

    fn add(&mut self, groups: &Groups, times: impl IntoIterator<Item = (&'static str, usize, f64)>) {
        let [hosts, on_host] = [groups.hosts, groups.on_host].map(|count| count as f64);
        let sample = |(operation, bytes, seconds)| (operation, [hosts, on_host, bytes as f64, seconds]);
        self.samples.extend(times.into_iter().map(sample));
    }
}

/// Returns the seconds of a collective call: the fastest of several rounds, in which calls are enqueued one
/// after another as in a step.
pub(crate) fn fastest(
    group: &ProcessGroup,
    call: impl Fn(&ProcessGroup) -> collective::Result<()>,
) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        group.run(Collective::Barrier, STREAM)?;
        group.synchronize(STREAM)?;
        let began = Instant::now();
        (0..CALLS).try_for_each(|_| call(group))?;
        group.synchronize(STREAM)?;
        best = best.min(began.elapsed().as_secs_f64() / f64::from(CALLS));
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use collective::threads;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn ranks_of_several_hosts_are_in_groups_that_cross_them() {
        let groups = Groups::between(&names(&["b", "a", "a", "b"])).unwrap();
        let expected = [(2, vec![vec![1, 2, 0, 3]]), (1, vec![vec![1, 0], vec![2, 3]])];
        let expected = expected.map(|(on_host, members)| Groups { hosts: 2, on_host, members });
        assert_eq!(groups, expected);
        assert_eq!(Groups::between(&names(&["a", "b", "c"])).unwrap().len(), 1);
        for (hosts, reason) in [(&["a", "a"][..], "all processes"), (&["a", "a", "b"], "different numbers")] {
            let error = Groups::between(&names(hosts)).unwrap_err();
            assert!(error.to_string().contains(reason) && error.is_refused(), "{error}");
        }
    }

    /// Uses threads of one host instead of GPUs.
    #[test]
    fn all_ranks_get_the_times_of_the_slowest() {
        let ranks = 4;
        let run = move |mut communicator: Communicator| {
            let device = Device::cpu(communicator.rank(), &DeviceOptions::default())?;
            let near = Groups::of_host(ranks);
            let far = Groups::between(&names(&["a", "a", "b", "b"]))?;
            let all: Vec<_> = near.into_iter().chain(far).collect();
            measure(&mut communicator, (&device, 1 << 20), &all)
        };
        let all = threads::run(ranks, threads::Options::default(), run).unwrap();
        assert!(all.iter().all(|of_rank| of_rank == &all[0]));
        let calls: Vec<_> = all[0].iter().map(|calls| calls.call.as_str()).collect();
        assert_eq!(calls, ["all-gather", "all-reduce", "exchange", "send"]);
        for MeasuredCalls { call, samples } in &all[0] {
            for (hosts, on_host) in [(1.0, 2.0), (1.0, 4.0), (2.0, 2.0), (2.0, 1.0)] {
                let of_group = samples.iter().filter(|sample| sample[..2] == [hosts, on_host]);
                let times: Vec<_> = of_group.map(|[.., bytes, seconds]| (*bytes, *seconds)).collect();
                assert_eq!(times.len(), 3, "{call}: {samples:?}");
                assert!(times.iter().all(|(bytes, seconds)| *bytes > 0.0 && *seconds > 0.0), "{times:?}");
            }
        }
    }
}
