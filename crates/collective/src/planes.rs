//! The data planes of one rank: one for the world, and one for each axis whose ranks run collectives.
//!
//! | call | axis |
//! | --- | --- |
//! | sums of gradients and of losses, gathering of updated weights | [`Axis::Data`] |
//! | shards of gradients, gathering of sharded weights | neighbours along [`Axis::Data`] ([`DividedPlane`]) |
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

/// Handles to the planes of the axes along which a rank has others, for the operators of its passes.
///
/// The default is that of a rank alone.
#[derive(Clone, Debug, Default)]
pub struct AxisPlanes([Option<ProcessGroup>; AXES]);

impl AxisPlanes {
    /// Returns the same handles, with the plane of an axis.
    #[must_use]
    pub fn with(mut self, axis: Axis, plane: ProcessGroup) -> Self {
        self.0[axis.index()] = (plane.world_size() > 1).then_some(plane);
        self
    }

    /// The plane of this rank's group along an axis; `None` if the rank is alone there.
    pub fn along(&self, axis: Axis) -> Option<&ProcessGroup> {
        self.0[axis.index()].as_ref()
    }
}

/// The planes of the ranks along an axis, which may be divided into groups of neighbours.
#[derive(Clone, Debug)]
pub struct DividedPlane {
    /// The plane of all ranks along the axis.
    pub all: ProcessGroup,
    /// The plane of this rank's group; that of all ranks if there is one group.
    pub within: ProcessGroup,
    /// The plane of the ranks with this rank's index in each group; of a rank alone if there is one group.
    pub across: ProcessGroup,
}

impl DividedPlane {
    /// Returns the planes of an axis that is one group.
    pub fn undivided(all: ProcessGroup) -> Self {
        DividedPlane { within: all.clone(), across: Communicator::solo().data, all }
    }

    /// Returns planes that only count, of the first of `ranks` ranks in groups of `size`, which divides them.
    pub fn counted(ranks: usize, size: usize) -> Self {
        let [all, within, across] =
            [ranks, size, ranks / size.max(1)].map(|ranks| Communicator::counted(0, ranks.max(1)).data);
        DividedPlane { all, within, across }
    }
}

/// The transports of one rank of a grid.
///
/// A group that is the whole world uses the world's plane, and a rank alone along an axis has a plane of its
/// own. Any other group along an axis with collectives has a plane split from the world's. Pipeline ranks
/// only send to each other, which needs no communicator of their own: their transfers use the world's plane.
pub struct Planes {
    communicator: Communicator,
    grid: RankGrid,
    /// Planes of the groups that have their own, by axis.
    own: [Option<ProcessGroup>; AXES],
    /// An axis whose plane is that of a group over several axes, and those axes.
    joined: Option<(Axis, Vec<Axis>)>,
    /// Planes within and across the groups of an axis that is divided.
    divided: Option<(Axis, [ProcessGroup; 2])>,
}

impl Planes {
    /// Splits the planes of a grid from the world's plane. All ranks call it.
    ///
    /// # Errors
    /// A grid with another number of ranks than the world; a failure of a rank or of the transport.
    pub fn new(mut communicator: Communicator, grid: RankGrid) -> Result<Self> {
        if communicator.world_size() != grid.world_size() {
            let (ranks, size) = (communicator.world_size(), grid.world_size());
            return Err(CollectiveError::Grid(format!(
                "a grid of {size} ranks does not fit a world of {ranks}"
            )));
        }
        let mut own = [const { None }; AXES];
        for axis in Axis::ALL.into_iter().filter(|axis| axis.runs_collectives()) {
            own[axis.index()] = match grid.size(axis) {
                size if size == grid.world_size() => None,
                1 => Some(Communicator::solo().data),
                _ => Some(communicator.divide(&grid.groups(axis))?),
            };
        }
        Ok(Planes { communicator, grid, own, joined: None, divided: None })
    }

    /// Makes the plane of an axis that of the ranks along it and along `others`, numbered by
    /// [`RankGrid::coordinate_over`] these axes. All ranks call it, before [`Planes::divide`].
    ///
    /// # Errors
    /// A failure of a rank or of the transport.
    pub fn join(&mut self, axis: Axis, others: &[Axis]) -> Result<()> {
        let axes = [&[axis], others].concat();
        self.own[axis.index()] = match self.grid.shape().size_over(&axes) {
            size if size == self.grid.world_size() => None,
            1 => Some(Communicator::solo().data),
            _ => Some(self.communicator.divide(&self.grid.groups_over(&axes))?),
        };
        self.joined = Some((axis, axes));
        Ok(())
    }

    /// The axes over which the group of an axis's plane is.
    fn axes_of(&self, axis: Axis) -> Vec<Axis> {
        match &self.joined {
            Some((of, axes)) if *of == axis => axes.clone(),
            _ => vec![axis],
        }
    }

    /// Divides the ranks along an axis into groups of `size` neighbours, if there are several. All ranks call
    /// it.
    ///
    /// # Errors
    /// A failure of a rank or of the transport.
    pub fn divide(&mut self, axis: Axis, size: usize) -> Result<()> {
        let axes = self.axes_of(axis);
        if size < self.grid.shape().size_over(&axes) {
            let within = match size {
                1 => Communicator::solo().data,
                _ => self.communicator.divide(&self.grid.neighbours_over(&axes, size))?,
            };
            let across = self.communicator.divide(&self.grid.across_neighbours_over(&axes, size))?;
            self.divided = Some((axis, [within, across]));
        }
        Ok(())
    }

    /// Returns the planes of this rank's groups along an axis.
    ///
    /// # Errors
    /// As for [`Planes::along`].
    pub fn divided(&self, axis: Axis) -> Result<DividedPlane> {
        let all = self.along(axis)?;
        Ok(match &self.divided {
            Some((of, [within, across])) if *of == axis => {
                DividedPlane { all, within: within.clone(), across: across.clone() }
            }
            _ => DividedPlane::undivided(all),
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

    /// The plane for messages between the hosts of all ranks.
    pub fn control(&mut self) -> &mut dyn ControlChannel {
        &mut *self.communicator.control
    }

    /// The data plane of all ranks.
    pub fn world(&self) -> ProcessGroup {
        self.communicator.data.clone()
    }

    /// Returns the data plane of this rank's group along an axis, for collectives. A rank's number on the
    /// plane is its coordinate.
    ///
    /// # Errors
    /// An axis whose ranks only send and receive, in a grid with other axes.
    pub fn along(&self, axis: Axis) -> Result<ProcessGroup> {
        if let Some(plane) = &self.own[axis.index()] {
            return Ok(plane.clone());
        }
        if self.grid.shape().size_over(&self.axes_of(axis)) == self.grid.world_size() {
            return Ok(self.communicator.data.clone());
        }
        Err(CollectiveError::Grid(format!("ranks along the {} axis run no collectives", axis.name())))
    }

    /// Handles to the planes of all axes that run collectives.
    pub fn handles(&self) -> AxisPlanes {
        let axes = Axis::ALL.into_iter().filter(|axis| axis.runs_collectives());
        let planes = axes.filter_map(|axis| Some((axis, self.along(axis).ok()?)));
        planes.fold(AxisPlanes::default(), |handles, (axis, plane)| handles.with(axis, plane))
    }

    /// Runs sends and receives between ranks along an axis, in which peers are coordinates. May wait for the
    /// other ranks.
    ///
    /// # Errors
    /// As for [`ProcessGroup::run`].
    pub fn transfer(&self, axis: Axis, transfer: Collective<Region<'_>>, stream: StreamKind) -> Result<()> {
        let own = &self.own[axis.index()];
        let number = |coordinate: usize| match own {
            Some(_) => coordinate,
            None => self.grid.rank_at(&[(axis, coordinate)]),
        };
        own.as_ref().unwrap_or(&self.communicator.data).run(transfer.with_peers(number), stream)
    }

    /// Makes the connections of `world`, and those of `along` on the planes of those axes, so that none is
    /// made later.
    ///
    /// # Errors
    /// As for [`ProcessGroup::warm_up`].
    pub fn warm_up(
        &mut self,
        mut world: Vec<Collective<()>>,
        along: &[(Axis, Vec<Collective<()>>)],
    ) -> Result<()> {
        let shared = along.iter().filter(|(axis, _)| self.own[axis.index()].is_none());
        world.extend(shared.flat_map(|(_, uses)| uses).cloned());
        self.communicator.data.warm_up(&world)?;
        for (axis, uses) in along {
            if let Some(plane) = &self.own[axis.index()] {
                plane.warm_up(uses)?;
            }
            let Some((_, planes)) = self.divided.as_ref().filter(|(of, _)| of == axis) else { continue };
            for plane in planes {
                let exists =
                    |used: &&Collective<()>| used.peer_rank().is_none_or(|peer| peer < plane.world_size());
                let uses: Vec<_> = uses.iter().filter(exists).cloned().collect();
                plane.warm_up(&uses)?;
            }
        }
        Ok(())
    }

    /// Registers `observer` for every call that begins from now on, on all planes.
    pub fn observe(&mut self, observer: &Observer) {
        self.communicator.control.observe(observer.clone());
        self.communicator.data.observe(observer.clone());
        let divided = self.divided.iter().flat_map(|(_, planes)| planes);
        self.own.iter().flatten().chain(divided).for_each(|plane| plane.observe(observer.clone()));
    }

    /// Traffic of all planes so far.
    pub fn traffic(&self) -> Traffic {
        self.communicator.traffic()
    }

    /// Traffic of all planes so far, by axis.
    pub fn traffic_by_axis(&self) -> AxisTraffic {
        let mut by_axis = AxisTraffic::default();
        let of = |plane: &ProcessGroup| plane.traffic().total();
        for (traffic, plane) in by_axis.0.iter_mut().zip(&self.own) {
            plane.iter().for_each(|plane| *traffic += of(plane));
        }
        if let Some((axis, planes)) = &self.divided {
            planes.iter().for_each(|plane| by_axis.0[axis.index()] += of(plane));
        }
        let whole = |axis: &Axis| self.grid.shape().size_over(&self.axes_of(*axis)) == self.grid.world_size();
        let axis = Axis::ALL.into_iter().filter(|axis| self.grid.size(*axis) > 1).find(whole);
        by_axis.0[axis.unwrap_or(Axis::Pipeline).index()] += of(&self.communicator.data);
        by_axis
    }
}

impl fmt::Debug for Planes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planes").field("grid", &self.grid).finish_non_exhaustive()
    }
}
