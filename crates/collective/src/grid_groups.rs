//! The process groups of one rank: the world's, and one for each axis that runs collectives.
//!
//! | call | axis |
//! | --- | --- |
//! | sums of gradients and of losses, gathering of updated weights | [`Axis::Data`] |
//! | shards of gradients, gathering of sharded weights | neighbours along [`Axis::Data`] ([`DividedGroup`]) |
//! | rows, sums and statistics of layers that ranks share | [`Axis::Tensor`] |
//! | keys and values, gradients and losses of sequences that ranks share | [`Axis::Context`] |
//! | activations and their gradients between stages | [`Axis::Pipeline`] |
//! | gradients of tied weights, the loss from the last stage | [`Axis::Pipeline`] |
//! | sums for the norm of the whole model's gradient | the world |

use std::fmt;

use device::{Region, StreamKind};

use crate::collective::Collective;
use crate::communicator::Communicator;
use crate::control::{ControlChannel, Observer};
use crate::error::{CollectiveError, Result};
use crate::grid::{AXES, Axis, RankGrid};
use crate::process_group::ProcessGroup;
use crate::traffic::{AxisTraffic, Traffic};

/// The groups of a rank along the axes on which it has peers, for the operators of a pass.
///
/// The default has no groups, as for a single rank.
#[derive(Clone, Debug, Default)]
pub struct AxisGroups([Option<ProcessGroup>; AXES]);

impl AxisGroups {
    /// Sets the group along an axis; a group of one rank is ignored.
    #[must_use]
    pub fn with(mut self, axis: Axis, group: ProcessGroup) -> Self {
        self.0[axis.index()] = (group.world_size() > 1).then_some(group);
        self
    }

    /// This rank's group along an axis; `None` if it has no peers there.
    pub fn along(&self, axis: Axis) -> Option<&ProcessGroup> {
        self.0[axis.index()].as_ref()
    }
}

/// This rank's groups along an axis that may be divided into groups of neighbours.
#[derive(Clone, Debug)]
pub struct DividedGroup {
    /// All ranks along the axis.
    pub all: ProcessGroup,
    /// This rank and its neighbours; all ranks if the axis is not divided.
    pub within: ProcessGroup,
    /// The ranks with this rank's index among neighbours; this rank alone if the axis is not divided.
    pub across: ProcessGroup,
}

impl DividedGroup {
    /// Returns the groups of an undivided axis.
    pub fn undivided(all: ProcessGroup) -> Self {
        DividedGroup { within: all.clone(), across: Communicator::solo().group, all }
    }

    /// Returns counted groups of the first of `ranks` ranks, divided into groups of `size`. `size` must
    /// divide `ranks`.
    pub fn counted(ranks: usize, size: usize) -> Self {
        let [all, within, across] =
            [ranks, size, ranks / size.max(1)].map(|ranks| Communicator::counted(0, ranks.max(1)).group);
        DividedGroup { all, within, across }
    }
}

/// All process groups of one rank of a grid.
///
/// An axis that contains all ranks of the world uses the world's group. An axis of size 1 has a group of one
/// rank. Groups along other axes are split from the world's. Pipeline ranks only send to each other, so they
/// use the world's group as well.
pub struct GridGroups {
    communicator: Communicator,
    grid: RankGrid,
    /// Groups other than the world's, by axis.
    own: [Option<ProcessGroup>; AXES],
    /// An axis whose group spans several axes, and these axes.
    joined: Option<(Axis, Vec<Axis>)>,
    /// A divided axis, with its groups within and across neighbours.
    divided: Option<(Axis, [ProcessGroup; 2])>,
}

impl GridGroups {
    /// Splits the groups of a grid from the world's group. All ranks call it.
    ///
    /// # Errors
    /// The grid and the world differ in size, or a rank or the transport failed.
    pub fn new(mut communicator: Communicator, grid: RankGrid) -> Result<Self> {
        if communicator.world_size() != grid.world_size() {
            let ranks = communicator.world_size();
            let size = grid.world_size();
            return Err(CollectiveError::Grid(format!(
                "a grid of {size} ranks does not fit a world of {ranks}"
            )));
        }
        let mut own = [const { None }; AXES];
        for axis in Axis::ALL.into_iter().filter(|axis| axis.runs_collectives()) {
            own[axis.index()] = match grid.size(axis) {
                size if size == grid.world_size() => None,
                1 => Some(Communicator::solo().group),
                _ => Some(communicator.divide(&grid.groups(axis))?),
            };
        }
        Ok(GridGroups { communicator, grid, own, joined: None, divided: None })
    }

    /// Extends the group of an axis to the ranks along `others` as well, numbered by
    /// [`RankGrid::coordinate_over`]. All ranks call it, before [`GridGroups::divide`].
    pub fn join(&mut self, axis: Axis, others: &[Axis]) -> Result<()> {
        let axes = [&[axis], others].concat();
        self.own[axis.index()] = match self.grid.shape().size_over(&axes) {
            size if size == self.grid.world_size() => None,
            1 => Some(Communicator::solo().group),
            _ => Some(self.communicator.divide(&self.grid.groups_over(&axes))?),
        };
        self.joined = Some((axis, axes));
        Ok(())
    }

    /// The axes that the group of `axis` spans.
    fn axes_of(&self, axis: Axis) -> Vec<Axis> {
        match &self.joined {
            Some((joined, axes)) if *joined == axis => axes.clone(),
            _ => vec![axis],
        }
    }

    /// Divides the group of an axis into groups of `size` neighbours, if it has more ranks. All ranks call
    /// it.
    pub fn divide(&mut self, axis: Axis, size: usize) -> Result<()> {
        let axes = self.axes_of(axis);
        if size < self.grid.shape().size_over(&axes) {
            let within = match size {
                1 => Communicator::solo().group,
                _ => self.communicator.divide(&self.grid.neighbours_over(&axes, size))?,
            };
            let across = self.communicator.divide(&self.grid.across_neighbours_over(&axes, size))?;
            self.divided = Some((axis, [within, across]));
        }
        Ok(())
    }

    /// Returns this rank's groups along an axis.
    pub fn divided(&self, axis: Axis) -> Result<DividedGroup> {
        let all = self.along(axis)?;
        Ok(match &self.divided {
            Some((divided, [within, across])) if *divided == axis => {
                DividedGroup { all, within: within.clone(), across: across.clone() }
            }
            _ => DividedGroup::undivided(all),
        })
    }

    /// The grid of ranks.
    pub fn grid(&self) -> &RankGrid {
        &self.grid
    }

    /// The communicator of the world.
    pub fn communicator(&mut self) -> &mut Communicator {
        &mut self.communicator
    }

    /// The channel for small messages between all ranks' hosts.
    pub fn control(&mut self) -> &mut dyn ControlChannel {
        &mut *self.communicator.control
    }

    /// The process group of all ranks.
    pub fn world(&self) -> ProcessGroup {
        self.communicator.group.clone()
    }

    /// Returns this rank's group along an axis, for collectives. A rank's number in the group is its
    /// coordinate.
    ///
    /// # Errors
    /// The axis's ranks only send and receive, and the grid has other axes.
    pub fn along(&self, axis: Axis) -> Result<ProcessGroup> {
        if let Some(group) = &self.own[axis.index()] {
            return Ok(group.clone());
        }
        if self.grid.shape().size_over(&self.axes_of(axis)) == self.grid.world_size() {
            return Ok(self.communicator.group.clone());
        }
        Err(CollectiveError::Grid(format!("ranks along the {} axis run no collectives", axis.name())))
    }

    /// Returns the groups of all axes that run collectives.
    pub fn handles(&self) -> AxisGroups {
        let axes = Axis::ALL.into_iter().filter(|axis| axis.runs_collectives());
        let groups = axes.filter_map(|axis| Some((axis, self.along(axis).ok()?)));
        groups.fold(AxisGroups::default(), |handles, (axis, group)| handles.with(axis, group))
    }

    /// Runs sends and receives along an axis; peers are coordinates. May wait for the other ranks.
    pub fn transfer(&self, axis: Axis, transfer: Collective<Region<'_>>, stream: StreamKind) -> Result<()> {
        let own = &self.own[axis.index()];
        let number = |coordinate: usize| match own {
            Some(_) => coordinate,
            None => self.grid.rank_at(&[(axis, coordinate)]),
        };
        own.as_ref().unwrap_or(&self.communicator.group).run(transfer.with_peers(number), stream)
    }

    /// Connects the devices for the collectives of `world` on the world's group, and of `along` on each
    /// axis's group, ahead of their first use.
    pub fn warm_up(
        &mut self,
        mut world: Vec<Collective<()>>,
        along: &[(Axis, Vec<Collective<()>>)],
    ) -> Result<()> {
        let shared = along.iter().filter(|(axis, _)| self.own[axis.index()].is_none());
        world.extend(shared.flat_map(|(_, uses)| uses).cloned());
        self.communicator.group.warm_up(&world)?;
        for (axis, uses) in along {
            if let Some(group) = &self.own[axis.index()] {
                group.warm_up(uses)?;
            }
            let Some((_, groups)) = self.divided.as_ref().filter(|(divided, _)| divided == axis) else {
                continue;
            };
            for group in groups {
                let exists =
                    |used: &&Collective<()>| used.peer_rank().is_none_or(|peer| peer < group.world_size());
                let uses: Vec<_> = uses.iter().filter(exists).cloned().collect();
                group.warm_up(&uses)?;
            }
        }
        Ok(())
    }

    /// Calls `observer` at the start of every later call, on all groups.
    pub fn observe(&mut self, observer: &Observer) {
        self.communicator.control.observe(observer.clone());
        self.communicator.group.observe(observer.clone());
        let divided = self.divided.iter().flat_map(|(_, groups)| groups);
        self.own.iter().flatten().chain(divided).for_each(|group| group.observe(observer.clone()));
    }

    /// Bytes and calls of all groups so far.
    pub fn traffic(&self) -> Traffic {
        self.communicator.traffic()
    }

    /// Bytes and calls of all groups so far, by axis.
    pub fn traffic_by_axis(&self) -> AxisTraffic {
        let mut by_axis = AxisTraffic::default();
        let total = |group: &ProcessGroup| group.traffic().total();
        for (traffic, group) in by_axis.0.iter_mut().zip(&self.own) {
            group.iter().for_each(|group| *traffic += total(group));
        }
        if let Some((axis, groups)) = &self.divided {
            groups.iter().for_each(|group| by_axis.0[axis.index()] += total(group));
        }
        let whole = |axis: &Axis| self.grid.shape().size_over(&self.axes_of(*axis)) == self.grid.world_size();
        let axis = Axis::ALL.into_iter().filter(|axis| self.grid.size(*axis) > 1).find(whole);
        by_axis.0[axis.unwrap_or(Axis::Pipeline).index()] += total(&self.communicator.group);
        by_axis
    }
}

impl fmt::Debug for GridGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GridGroups").field("grid", &self.grid).finish_non_exhaustive()
    }
}
