//! Assignment of micro-batches to the replicas of a model.

use std::ops::Range;

/// Assignment of a fixed number of micro-batches to model replicas.
///
/// Micro-batches are numbered from 0 and grouped into lanes of equally many neighbours; a lane runs on one
/// replica. Replicas form groups of neighbours. Each group runs contiguous lanes, dealt to its replicas in
/// turn. Groups run equally many lanes, or the first ones run one more; so do the replicas of a group. A
/// replica runs its micro-batches in increasing order.
///
/// ```
/// use parallel::data::Assignment;
/// let runs = Assignment::contiguous(3, 2).with_lanes_of(2); // 6 micro-batches in 3 lanes on 2 replicas
/// assert_eq!(runs.numbers(0).collect::<Vec<_>>(), [0, 1, 2, 3]);
/// assert_eq!(runs.owner(5), (1, 1)); // the second micro-batch of replica 1
/// let lanes = Assignment::round_robin(3, 2);
/// assert_eq!(lanes.numbers(0).collect::<Vec<_>>(), [0, 2]);
/// let groups = Assignment::in_groups(8, 4, 2); // two groups of two
/// assert_eq!(groups.numbers(2).collect::<Vec<_>>(), [4, 6]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    lanes: usize,
    micro_batches_per_lane: usize,
    replicas: usize,
    /// Number of replicas per group; divides `replicas`.
    group: usize,
    /// Whether all replicas of a group run as many micro-batches as its first replica.
    is_padded: bool,
}

impl Assignment {
    /// Assigns contiguous runs of `lanes` lanes, of one micro-batch each, to `replicas` replicas.
    #[must_use]
    pub fn contiguous(lanes: usize, replicas: usize) -> Self {
        Self::in_groups(lanes, replicas, 1)
    }

    /// Deals `lanes` lanes, of one micro-batch each, to `replicas` replicas in turn.
    #[must_use]
    pub fn round_robin(lanes: usize, replicas: usize) -> Self {
        Self::in_groups(lanes, replicas, replicas)
    }

    /// Assigns contiguous runs of `lanes` lanes, of one micro-batch each, to groups of `group` replicas;
    /// within a group, lanes are dealt in turn. `group` must divide `replicas`.
    #[must_use]
    pub fn in_groups(lanes: usize, replicas: usize, group: usize) -> Self {
        let micro_batches_per_lane = 1;
        let is_padded = false;
        Assignment {
            lanes,
            micro_batches_per_lane,
            replicas: replicas.max(1),
            group: group.max(1),
            is_padded,
        }
    }

    /// Pads the assignment, so that all replicas of a group make the same collective calls. A replica with
    /// fewer lanes than the first of its group also runs a lane of another replica, whose results are
    /// discarded.
    #[must_use]
    pub fn padded(self) -> Self {
        Assignment { is_padded: true, ..self }
    }

    /// Sets the number of micro-batches per lane.
    #[must_use]
    pub fn with_lanes_of(self, micro_batches: usize) -> Self {
        Assignment { micro_batches_per_lane: micro_batches.max(1), ..self }
    }

    /// Number of replicas.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// Number of lanes over all replicas.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Number of micro-batches per lane.
    #[must_use]
    pub fn micro_batches_per_lane(&self) -> usize {
        self.micro_batches_per_lane
    }

    /// Number of micro-batches over all replicas.
    #[must_use]
    pub fn total(&self) -> usize {
        self.lanes * self.micro_batches_per_lane
    }

    /// Number of replicas per group.
    #[must_use]
    pub fn group(&self) -> usize {
        self.group
    }

    /// Number of groups.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.replicas / self.group
    }

    /// Returns the lanes of a group.
    #[must_use]
    pub fn lanes_of_group(&self, group: usize) -> Range<usize> {
        let each = self.lanes / self.groups();
        let longer = self.lanes % self.groups();
        let first = |group: usize| group * each + group.min(longer);
        first(group)..first(group + 1)
    }

    /// Returns the number of a replica's own lanes, without padding.
    #[must_use]
    pub fn lanes_of(&self, replica: usize) -> usize {
        let lanes = self.lanes_of_group(replica / self.group).len();
        let index = replica % self.group;
        lanes / self.group + usize::from(index < lanes % self.group)
    }

    /// Returns whether all replicas have equally many lanes.
    #[must_use]
    pub fn is_even(&self) -> bool {
        self.lanes.is_multiple_of(self.replicas)
    }

    /// Mean fraction of time, from 0 to 1, that a replica waits for replicas with more lanes, if every lane
    /// takes equally long.
    #[must_use]
    pub fn idle(&self) -> f64 {
        if self.is_even() {
            return 0.0;
        }
        1.0 - self.lanes as f64 / (self.replicas * self.lanes_of(0)) as f64
    }

    /// Returns the number of micro-batches that a replica runs. Replica 0 has the most, the last replica the
    /// fewest.
    #[must_use]
    pub fn count(&self, replica: usize) -> usize {
        let first = replica - replica % self.group;
        self.lanes_of(if self.is_padded { first } else { replica }) * self.micro_batches_per_lane
    }

    /// Returns the number of a replica's `index`-th micro-batch; `index` must be below [`Assignment::count`].
    #[must_use]
    pub fn number(&self, replica: usize, index: usize) -> usize {
        let lane = index / self.micro_batches_per_lane;
        let offset = index % self.micro_batches_per_lane;
        let lanes = self.lanes_of_group(replica / self.group);
        let lane = replica % self.group + self.group * lane;
        // A padded lane repeats one of the group's first lanes, which another replica owns.
        let lane = lanes.start + if self.is_padded { lane % lanes.len().max(1) } else { lane };
        lane * self.micro_batches_per_lane + offset
    }

    /// The numbers of a replica's micro-batches, in order.
    pub fn numbers(&self, replica: usize) -> impl Iterator<Item = usize> + use<> {
        let assignment = *self;
        (0..self.count(replica)).map(move |index| assignment.number(replica, index))
    }

    /// Ranges of consecutive micro-batches in a replica's own lanes, in order.
    pub fn runs(&self, replica: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let each = self.micro_batches_per_lane;
        let first = self.first_lane(replica);
        let own = self.lanes_of(replica);
        let step = self.group;
        let (count, lanes) = if step == 1 { (1, own) } else { (own, 1) };
        (0..count).map(move |run| {
            let lane = first + run * step;
            each * lane..each * (lane + lanes)
        })
    }

    /// Returns the replica that owns micro-batch `number`, and its index among the replica's micro-batches.
    #[must_use]
    pub fn owner(&self, number: usize) -> (usize, usize) {
        let lane = number / self.micro_batches_per_lane;
        let offset = number % self.micro_batches_per_lane;
        let group = self.group_of(lane);
        let lane = lane - self.lanes_of_group(group).start;
        let replica = group * self.group + lane % self.group;
        (replica, lane / self.group * self.micro_batches_per_lane + offset)
    }

    pub(crate) fn first_lane(&self, replica: usize) -> usize {
        self.lanes_of_group(replica / self.group).start + replica % self.group
    }

    /// Returns the group that runs a lane.
    fn group_of(&self, lane: usize) -> usize {
        let each = self.lanes / self.groups();
        let longer = self.lanes % self.groups();
        match lane.checked_sub(longer * (each + 1)) {
            None => lane / (each + 1),
            Some(after) => longer + after / each.max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Assignment;

    #[test]
    fn padded_replicas_run_as_many_micro_batches() {
        let padded = Assignment::round_robin(5, 3).with_lanes_of(2).padded();
        assert_eq!(numbers(padded), [vec![0, 1, 6, 7], vec![2, 3, 8, 9], vec![4, 5, 0, 1]]);
        assert_eq!((padded.lanes_of(2), padded.owner(0)), (1, (0, 0)));
    }

    fn numbers(assignment: Assignment) -> Vec<Vec<usize>> {
        (0..assignment.replicas()).map(|replica| assignment.numbers(replica).collect()).collect()
    }

    #[test]
    fn seven_replicas_run_eight_lanes() {
        let runs = Assignment::contiguous(8, 7);
        assert_eq!(numbers(runs), [vec![0, 1], vec![2], vec![3], vec![4], vec![5], vec![6], vec![7]]);
        let lanes = Assignment::round_robin(8, 7).with_lanes_of(2);
        assert_eq!(lanes.numbers(0).collect::<Vec<_>>(), [0, 1, 14, 15]);
        assert_eq!((lanes.count(6), lanes.owner(13), lanes.owner(14)), (2, (6, 1), (0, 2)));
    }

    #[test]
    fn contiguous_runs_follow_each_other() {
        for replicas in 1..6 {
            let runs = Assignment::contiguous(6, replicas).with_lanes_of(3);
            assert_eq!(numbers(runs).concat(), (0..18).collect::<Vec<_>>());
        }
    }

    #[test]
    fn lanes_are_dealt_to_one_replica_after_the_other() {
        for lane in 0..9 {
            assert_eq!(Assignment::round_robin(9, 4).owner(lane), (lane % 4, lane / 4));
        }
    }

    proptest! {
        #[test]
        fn each_micro_batch_has_one_owner(
            lanes in 0_usize..40,
            replicas in 1_usize..12,
            each in 1_usize..5,
            group in 1_usize..6,
        ) {
            let assignment = Assignment::in_groups(lanes, replicas * group, group).with_lanes_of(each);
            let all = numbers(assignment);
            for (replica, own) in all.iter().enumerate() {
                prop_assert_eq!(own.len(), assignment.count(replica));
                prop_assert!(own.is_sorted());
                let is_lane =
                    |lane: &[usize]| lane[0].is_multiple_of(each) && lane[each - 1] == lane[0] + each - 1;
                prop_assert!(own.chunks(each).all(is_lane));
                let of_group = assignment.lanes_of_group(replica / group).len();
                prop_assert!([of_group / group, of_group.div_ceil(group)].contains(&own.len().div_ceil(each)));
                prop_assert_eq!(&assignment.runs(replica).flatten().collect::<Vec<_>>(), own);
                for (index, number) in own.iter().enumerate() {
                    prop_assert_eq!(assignment.owner(*number), (replica, index));
                }
            }
            let mut every = all.concat();
            every.sort_unstable();
            prop_assert_eq!(every, (0..assignment.total()).collect::<Vec<_>>());
        }
    }
}
