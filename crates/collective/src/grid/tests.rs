use proptest::prelude::*;

use super::{AXES, Axis, GridShape, RankGrid};

const THREE_BY_TWO: [(Axis, usize); 2] = [(Axis::Data, 3), (Axis::Pipeline, 2)];

#[test]
fn pipeline_neighbours_are_adjacent_ranks() {
    for rank in 0..6 {
        let grid = RankGrid::new(&THREE_BY_TWO, rank).unwrap();
        assert_eq!((grid.coordinate(Axis::Data), grid.coordinate(Axis::Pipeline)), (rank / 2, rank % 2));
        assert_eq!(grid.group(Axis::Pipeline).ranks, [rank / 2 * 2, rank / 2 * 2 + 1]);
        assert_eq!(grid.group(Axis::Data).ranks, [rank % 2, rank % 2 + 2, rank % 2 + 4]);
        for axis in Axis::ALL {
            let group = grid.group(axis);
            assert_eq!(group.ranks[group.index], rank);
            assert!(grid.groups(axis).contains(&group.ranks));
        }
    }
}

#[test]
fn the_order_of_the_axes_decides_the_numbering() {
    let grid = RankGrid::new(&[(Axis::Pipeline, 2), (Axis::Data, 3)], 4).unwrap();
    assert_eq!((grid.coordinate(Axis::Pipeline), grid.coordinate(Axis::Data)), (1, 1));
    assert_eq!(grid.groups(Axis::Pipeline), [[0, 3], [1, 4], [2, 5]]);
    assert_eq!(grid.groups(Axis::Data), [[0, 1, 2], [3, 4, 5]]);
}

#[test]
fn a_rank_is_found_by_its_coordinates() {
    let grid = RankGrid::new(&THREE_BY_TWO, 3).unwrap();
    assert_eq!(grid.rank_at(&[(Axis::Data, 2), (Axis::Pipeline, 0)]), 4);
    assert_eq!(grid.rank_at(&[(Axis::Data, 0)]), 1);
    assert_eq!(grid.rank_at(&[(Axis::Pipeline, 0)]), 2);
    assert_eq!(grid.rank_at(&[]), 3);
    assert_eq!(grid.seen_from(5).unwrap(), RankGrid::new(&THREE_BY_TWO, 5).unwrap());
    assert_eq!(RankGrid::new(&[(Axis::Data, 2)], 1).unwrap().size(Axis::Pipeline), 1);
}

#[test]
fn ranks_and_axes_outside_the_grid_are_refused() {
    let refused = |axes: &[(Axis, usize)], rank| RankGrid::new(axes, rank).unwrap_err().to_string();
    let shape = GridShape::new(&THREE_BY_TWO).unwrap();
    assert_eq!(refused(&THREE_BY_TWO, 6), format!("rank 6 is not one of {shape} ranks"));
    assert!(shape.to_string().starts_with("3 × 2"));
    assert!(refused(&[(Axis::Data, 0)], 0).starts_with("rank 0 is not one of 0 "));
    for axis in Axis::ALL {
        let name = axis.name();
        assert_eq!(refused(&[(axis, 2), (axis, 2)], 0), format!("axis {name} is listed twice"));
        assert!(RankGrid::new(&[(axis, 0)], 0).is_err() && RankGrid::new(&[(axis, usize::MAX)], 0).is_err());
    }
    assert!(RankGrid::new(&[(Axis::Data, usize::MAX), (Axis::Pipeline, 2)], 0).is_err());
    assert!(RankGrid::new(&THREE_BY_TWO, 0).unwrap().seen_from(6).is_err());
}

#[test]
fn a_size_follows_from_the_number_of_ranks() {
    let shape = GridShape::new(&THREE_BY_TWO).unwrap();
    for axis in Axis::ALL {
        let others = shape.world_size() / shape.size(axis);
        let filled = shape.filled_along(axis, 5 * others).unwrap();
        assert_eq!((filled.size(axis), filled.world_size()), (5, 5 * others));
        assert_eq!(filled.with_size(axis, shape.size(axis)), shape);
        assert!(others == 1 || shape.filled_along(axis, 5 * others + 1).is_none());
    }
}

/// Every subset of the axes.
fn subsets() -> impl Iterator<Item = Vec<Axis>> {
    (0..1_usize << AXES)
        .map(|set| Axis::ALL.into_iter().filter(|axis| set >> axis.index() & 1 == 1).collect())
}

proptest! {
    /// Compares groups over any axes of any grid with their definition.
    #[test]
    fn groups_are_the_ranks_that_differ_along_their_axes(
        sizes in proptest::collection::vec(1_usize..4, AXES),
        order in Just(Axis::ALL.to_vec()).prop_shuffle(),
    ) {
        let axes: Vec<_> = order.iter().map(|axis| (*axis, sizes[axis.index()])).collect();
        let shape = GridShape::new(&axes).unwrap();
        let all: Vec<_> = (0..shape.world_size()).map(|rank| shape.seen_from(rank).unwrap()).collect();
        prop_assert_eq!(shape.axes().collect::<Vec<_>>(), axes);
        for over in subsets() {
            let groups = all[0].groups_over(&over);
            prop_assert_eq!(groups.len() * shape.size_over(&over), shape.world_size());
            for grid in &all {
                let alike = |other: &&RankGrid| {
                    let others = Axis::ALL.iter().filter(|axis| !over.contains(axis));
                    others.into_iter().all(|axis| other.coordinate(*axis) == grid.coordinate(*axis))
                };
                let expected: Vec<_> = all.iter().filter(alike).map(RankGrid::rank).collect();
                let reversed: Vec<_> = over.iter().rev().copied().collect();
                let group = grid.group_over(&reversed);
                prop_assert_eq!(group.index, grid.coordinate_over(&over));
                prop_assert_eq!(group.ranks[group.index], grid.rank());
                prop_assert_eq!(&group.ranks, &expected);
                prop_assert_eq!(groups.iter().filter(|group| **group == expected).count(), 1);
            }
        }
    }

    /// Neighbours have consecutive coordinates; groups across them have equal coordinates within each
    /// neighbourhood.
    #[test]
    fn neighbours_divide_an_axis_in_two_ways(
        sizes in proptest::collection::vec(1_usize..4, AXES),
        axis in proptest::sample::select(&Axis::ALL[..]),
        group in 1_usize..4,
        groups in 1_usize..4,
    ) {
        let shape = GridShape::from_sizes(|axis| sizes[axis.index()]).with_size(axis, group * groups);
        let all: Vec<_> = (0..shape.world_size()).map(|rank| shape.seen_from(rank).unwrap()).collect();
        let (neighbours, across) =
            (all[0].neighbours(axis, group), all[0].across_neighbours(axis, group));
        for (divided, size) in [(&neighbours, group), (&across, groups)] {
            prop_assert!(divided.iter().all(|ranks| ranks.len() == size && ranks.is_sorted()));
            let mut ranks = divided.concat();
            ranks.sort_unstable();
            prop_assert_eq!(ranks, (0..shape.world_size()).collect::<Vec<_>>());
        }
        let others = |rank: usize| {
            Axis::ALL.map(|other| if other == axis { 0 } else { all[rank].coordinate(other) })
        };
        let coordinate = |rank: usize| all[rank].coordinate(axis);
        for ranks in neighbours {
            prop_assert!(ranks.iter().all(|rank| others(*rank) == others(ranks[0])));
            prop_assert!(ranks.iter().all(|rank| coordinate(*rank) / group == coordinate(ranks[0]) / group));
        }
        for ranks in across {
            prop_assert!(ranks.iter().all(|rank| others(*rank) == others(ranks[0])));
            prop_assert!(ranks.iter().all(|rank| coordinate(*rank) % group == coordinate(ranks[0]) % group));
        }
    }

    /// Ranks are numbered like the digits of a number, one digit per axis.
    #[test]
    fn the_last_axis_varies_fastest(sizes in proptest::collection::vec(1_usize..4, AXES)) {
        let shape = GridShape::from_sizes(|axis| sizes[axis.index()]);
        for rank in 0..shape.world_size() {
            let grid = shape.seen_from(rank).unwrap();
            let number = shape.axes().fold(0, |number, (axis, size)| number * size + grid.coordinate(axis));
            prop_assert_eq!(number, rank);
            let coordinates = Axis::ALL.map(|axis| (axis, grid.coordinate(axis)));
            prop_assert_eq!(shape.seen_from(0).unwrap().rank_at(&coordinates), rank);
            prop_assert_eq!(grid.coordinate_over(&Axis::ALL), rank);
        }
    }
}
