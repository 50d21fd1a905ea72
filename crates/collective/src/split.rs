//! The group of a rank in a split.

/// One rank's group in a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitGroup {
    /// Number of the group, unique within the split.
    pub number: usize,
    /// The rank's number in the group.
    pub rank: usize,
    /// The members' numbers in the parent group, in the order of the new group.
    pub members: Vec<usize>,
}

impl SplitGroup {
    /// Returns the group that contains `rank`, or a group of that rank alone.
    pub(crate) fn containing(groups: &[Vec<usize>], rank: usize) -> SplitGroup {
        let group = |(number, members): (usize, &Vec<usize>)| {
            let index = members.iter().position(|member| *member == rank)?;
            Some(SplitGroup { number, rank: index, members: members.clone() })
        };
        let alone = || SplitGroup { number: groups.len() + rank, rank: 0, members: vec![rank] };
        groups.iter().enumerate().find_map(group).unwrap_or_else(alone)
    }
}
