//! Axes divided into groups of neighbours, and shards exchanged among the ranks of a group.

use crate::common::{Failed, Outcome, STREAM, buffer, cpu, filled, values};
use collective::threads::{Options, run};
use collective::{Axis, Collective, DividedGroup, GridGroups, ProcessGroup, RankGrid, exchange_shards};
use device::{Category, Device};
use tensor::Tensor;

/// Gathers the world numbers of a group's ranks.
fn members(group: &ProcessGroup, device: &Device, rank: usize) -> Outcome<Vec<usize>> {
    let own = filled(device, &[rank as f32]);
    let all = buffer(device, 4 * group.world_size());
    group
        .run(Collective::AllGather { input: own.region(0, 4), output: all.region(0, all.bytes()) }, STREAM)?;
    Ok(values::<f32>(device, &all, 0, group.world_size())?.into_iter().map(|rank| rank as usize).collect())
}

/// The groups of a rank along a divided axis, on grids with other axes.
#[test]
fn groups_of_divided_axes_have_the_ranks_of_the_grid() {
    for (data, pipeline, size) in
        [(1, 1, 1), (2, 1, 1), (2, 1, 2), (4, 1, 2), (6, 1, 3), (4, 2, 2), (4, 2, 1), (6, 2, 2), (2, 3, 2)]
    {
        let sizes = [(Axis::Data, data), (Axis::Pipeline, pipeline)];
        let outcome = run(data * pipeline, Options::default(), move |communicator| -> Outcome<()> {
            let rank = communicator.rank();
            let device = cpu(rank);
            let failed = |error: collective::CollectiveError| Failed::Other(error.to_string());
            let grid = RankGrid::new(&sizes, rank).map_err(failed)?;
            let mut groups = GridGroups::new(communicator, grid)?;
            groups.divide(Axis::Data, size)?;
            let DividedGroup { all, within, across } = groups.divided(Axis::Data)?;
            let group_of = |groups: Vec<Vec<usize>>| groups.into_iter().find(|ranks| ranks.contains(&rank));
            let neighbours = group_of(grid.neighbours(Axis::Data, size)).unwrap_or_default();
            assert_eq!(members(&all, &device, rank)?, grid.group(Axis::Data).ranks);
            assert_eq!(members(&within, &device, rank)?, neighbours);
            let others = group_of(grid.across_neighbours(Axis::Data, size)).unwrap_or_default();
            assert_eq!(members(&across, &device, rank)?, others);
            let coordinate = grid.coordinate(Axis::Data);
            assert_eq!((within.rank(), within.world_size()), (coordinate % size, size));
            assert_eq!((across.rank(), across.world_size()), (coordinate / size, data / size));
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{data} × {pipeline} in groups of {size}: {error}"));
    }
}

#[test]
fn counted_groups_have_the_sizes_of_divided_ones() {
    for (ranks, size) in [(1, 1), (4, 4), (4, 2), (6, 3), (3, 1)] {
        let DividedGroup { all, within, across } = DividedGroup::counted(ranks, size);
        assert_eq!([all, within, across].map(|group| group.world_size()), [ranks, size, ranks / size]);
    }
}

/// Each rank gets its shard of the parts of the first ranks; the parts of other ranks stay with them.
#[test]
fn shards_come_from_the_first_ranks_in_their_order() {
    const SHARD: usize = 3;
    let value = |from: usize, index: usize| (100 * from + index) as f32;
    for ranks in 1..=5 {
        for senders in 1..=ranks {
            let outcome = run(ranks, Options::default(), move |mut communicator| -> Outcome<()> {
                let rank = communicator.rank();
                let device = cpu(rank);
                let own: Vec<_> = (0..SHARD * ranks).map(|index| value(rank, index)).collect();
                let part = Tensor::from_host(&device, &own, [own.len()], Category::Gradient).unwrap();
                let scratch = Tensor::from_host(&device, &own, [own.len()], Category::Communication).unwrap();
                let group = &mut communicator.group;
                let shards = exchange_shards(group, &part, senders, &scratch, STREAM)?;
                assert_eq!(shards.len(), senders);
                for (from, shard) in shards.iter().enumerate() {
                    let expected: Vec<_> =
                        (SHARD * rank..SHARD * (rank + 1)).map(|index| value(from, index)).collect();
                    assert_eq!(shard.to_vec::<f32>().unwrap(), expected, "from {from} to {rank}");
                }
                assert_eq!(part.to_vec::<f32>().unwrap(), own);
                Ok(())
            });
            outcome.unwrap_or_else(|error| panic!("{senders} of {ranks} ranks: {error}"));
        }
    }
}
