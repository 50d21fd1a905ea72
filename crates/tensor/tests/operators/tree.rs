use device::{Category, Description, Kind, LoggedCall, Request, StreamKind};
use tensor::ops::tree::{self, SumTree, subtrees};
use tensor::{DType, Tensor};

use crate::support::{Case, devices, meta, read};

/// Returns lengths, each with a number of parts. One length is not a whole number of vectors in any type; the
/// last makes all blocks of a GPU loop.
fn sizes() -> impl Iterator<Item = (usize, usize)> {
    [13, 4096].into_iter().flat_map(|length| (1..=8).map(move |count| (length, count))).chain([(1 << 20, 8)])
}

/// Returns the sum of `parts` at `index`, rounded at each node of the tree.
fn expected(case: &Case, parts: &[Vec<f64>], index: usize) -> f64 {
    let mut nodes: Vec<f64> = parts.iter().map(|part| part[index]).collect();
    while nodes.len() > 1 {
        let sum = |pair: &[f64]| match *pair {
            [a, b] => f64::from(case.round((a + b) as f32)),
            _ => pair[0],
        };
        nodes = nodes.chunks(2).map(sum).collect();
    }
    nodes[0]
}

#[test]
fn parts_are_added_as_a_tree_into_one_of_them_or_elsewhere() {
    for case in devices() {
        for (length, count) in sizes() {
            let targets = if length > 4096 { vec![count - 1] } else { (0..=count).collect() };
            for target in targets {
                let operand = |part: usize| case.operand(&format!("part {part}"), [length]);
                let (parts, wide): (Vec<Tensor>, Vec<Vec<f64>>) = (0..count).map(operand).unzip();
                let into = parts.get(target).cloned().unwrap_or_else(|| operand(count).0);
                tree::into_on(&into, &parts, &SumTree::balanced(count), StreamKind::Compute).unwrap();
                let actual = read(&into);
                let wrong = (0..length).find(|index| actual[*index] != expected(&case, &wide, *index));
                assert_eq!(wrong, None, "{} × {length} into {target}, {}", count, case.name());
            }
        }
    }
}

/// Tests runs of lanes on ranks whose parts have different sizes; the last has more parts than any kernel
/// adds.
#[test]
fn parts_that_are_sums_are_added_as_their_leaves_would_be() {
    for case in devices() {
        for (leaves, ranks) in [(8, 7), (8, 3), (12, 4), (35, 5), (7, 1), (61, 20), (140, 100)] {
            let length = 4096;
            let leaf = |leaf: usize| case.operand(&format!("leaf {leaf}"), [length]);
            let wide: Vec<Vec<f64>> = (0..leaves).map(|number| leaf(number).1).collect();
            let first = |rank: usize| rank * (leaves / ranks) + rank.min(leaves % ranks);
            let runs: Vec<_> = (0..ranks).flat_map(|r| subtrees(leaves, first(r)..first(r + 1))).collect();
            let part = |run: &std::ops::Range<usize>| {
                let parts: Vec<Tensor> = run.clone().map(|number| leaf(number).0).collect();
                tree::into_on(&parts[0], &parts, &SumTree::balanced(run.len()), StreamKind::Compute).unwrap();
                parts[0].clone()
            };
            let parts: Vec<Tensor> = runs.iter().map(part).collect();
            let tree = SumTree::from_subtrees(leaves, runs).unwrap();
            let into = parts[parts.len() / 2].clone();
            tree::into_on(&into, &parts, &tree, StreamKind::Compute).unwrap();
            let actual = read(&into);
            let wrong = (0..length).find(|index| actual[*index] != expected(&case, &wide, *index));
            assert_eq!(wrong, None, "{leaves} leaves on {ranks} ranks, {}", case.name());
        }
    }
}

/// Tests parts of a shard received from every rank, with one rank's own parts elsewhere: more than the other
/// kernels add.
#[test]
fn received_parts_are_added_as_their_leaves_would_be() {
    for case in devices() {
        // Leaves and ranks, the rank whose parts lie elsewhere, and the length of a shard.
        for (leaves, ranks, own, length) in [
            (65, 65, 0, 64),
            (1024, 1024, 1, 40),
            (1024, 1024, 1023, 33),
            (4096, 4096, 2000, 8),
            (300, 200, 100, 16),
            (1000, 70, 69, 7),
        ] {
            let first = |rank: usize| rank * (leaves / ranks) + rank.min(leaves % ranks);
            let runs: Vec<Vec<_>> =
                (0..ranks).map(|rank| subtrees(leaves, first(rank)..first(rank + 1)).collect()).collect();
            let before: usize = runs[..own].iter().map(Vec::len).sum();
            let elsewhere = before..before + runs[own].len();
            let runs = runs.concat();
            let wide: Vec<Vec<f64>> = {
                let all = case.operand("leaves", [leaves * length]).1;
                all.chunks(length).map(<[f64]>::to_vec).collect()
            };
            // Each part is the sum of its leaves.
            let part = |run: &std::ops::Range<usize>| -> Vec<f32> {
                (0..length).map(|index| expected(&case, &wide[run.clone()], index) as f32).collect()
            };
            let received: Vec<f32> = runs.iter().flat_map(part).collect();
            let own_values: Vec<f32> = runs[elsewhere.clone()].iter().flat_map(part).collect();
            let mut scratch = received;
            scratch[elsewhere.start * length..elsewhere.end * length].fill(f32::NAN);
            let scratch = case.tensor(&scratch, [runs.len() * length]);
            let own = case.tensor(&own_values, [own_values.len()]);
            let view = |buffer: &Tensor, index: usize| buffer.view(index * length, [length]).unwrap();
            let part = |part: usize| match elsewhere.contains(&part) {
                true => view(&own, part - elsewhere.start),
                false => view(&scratch, part),
            };
            let parts: Vec<Tensor> = (0..runs.len()).map(part).collect();
            let into = view(&own, 0);
            let tree = SumTree::from_subtrees(leaves, runs).unwrap();
            tree::into_on(&into, &parts, &tree, StreamKind::Compute).unwrap();
            let actual = read(&into);
            let wrong = (0..length).find(|index| actual[*index] != expected(&case, &wide, *index));
            assert_eq!(wrong, None, "{leaves} leaves of {ranks} ranks, own {own:?}, {}", case.name());
        }
    }
}

/// A GPU adds all parts of a bucket in one launch, from 2 to 4,096 ranks.
#[test]
fn parts_at_equal_distances_are_one_launch() {
    let gpu = Description { multiprocessors: 132, compute_capability: (9, 0), ..Description::host() };
    let device = meta(&Description { kind: Kind::Cuda, ..gpu });
    let request = Request::new(Category::Other, "test");
    for (ranks, length) in [(2, 64), (8, 64), (64, 64), (65, 64), (1000, 3), (1024, 64), (4096, 64)] {
        let tensor = |elements| Tensor::empty(&device, [elements], DType::F32, request).unwrap();
        let scratch = tensor(ranks * length);
        let own = tensor(length);
        let mut parts: Vec<Tensor> =
            (0..ranks).map(|rank| scratch.view(rank * length, [length]).unwrap()).collect();
        parts[ranks / 3] = own.clone();
        device.begin_log();
        tree::into_on(&own, &parts, &SumTree::balanced(ranks), StreamKind::Reduce).unwrap();
        let log = device.end_log();
        let [LoggedCall::Kernel(kernel)] = &log.calls[..] else { panic!("{ranks}: {:?}", log.calls) };
        assert_eq!(kernel.work.bytes, 4 * (length * (ranks + 1)) as u64, "{ranks} parts and the sum");
        assert_eq!((kernel.work.flops, kernel.stream), ((length * (ranks - 1)) as u64, StreamKind::Reduce));
    }
}

#[test]
fn parts_of_another_shape_are_refused() {
    for case in devices() {
        let a = case.operand("a", [4]).0;
        let b = case.operand("b", [8]).0;
        let sum = |parts: &[Tensor], count: usize| {
            let tree = SumTree::balanced(count);
            tree::into_on(&a, parts, &tree, StreamKind::Compute).unwrap_err().to_string()
        };
        assert!(sum(&[a.clone(), b], 2).contains("part"));
        assert!(sum(&[], 0).contains("parts to be the sum of"));
        assert!(sum(std::slice::from_ref(&a), 2).contains("2 parts to be the sum of, and not 1"));
    }
}
