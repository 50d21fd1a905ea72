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

use crate::communicator::Communicator;
use crate::control::{ControlPlane, Observer};
use crate::data::{CollectiveUse, DataPlane};
use crate::error::{CollectiveError, Result};
use crate::grid::{AXES, Axis, RankGrid};
use crate::operands::PeerRegion;
use crate::shared_plane::SharedPlane;
use crate::traffic::{AxisTraffic, Traffic};

/// Handles to the planes of the axes along which a rank has others, for the operators of its passes.
///
/// The default is that of a rank alone.
#[derive(Clone, Debug, Default)]
pub struct AxisPlanes([Option<SharedPlane>; AXES]);

impl AxisPlanes {
    /// Returns the same handles, with the plane of an axis.
    #[must_use]
    pub fn with(mut self, axis: Axis, plane: SharedPlane) -> Self {
        self.0[axis.index()] = (plane.world_size() > 1).then_some(plane);
        self
    }

    /// The plane of this rank's group along an axis; `None` if the rank is alone there.
    pub fn along(&self, axis: Axis) -> Option<&SharedPlane> {
        self.0[axis.index()].as_ref()
    }
}

/// The planes of the ranks along an axis, which may be divided into groups of neighbours.
#[derive(Clone, Debug)]
pub struct DividedPlane {
    /// The plane of all ranks along the axis.
    pub all: SharedPlane,
    /// The plane of this rank's group; that of all ranks if there is one group.
    pub within: SharedPlane,
    /// The plane of the ranks with this rank's index in each group; of a rank alone if there is one group.
    pub across: SharedPlane,
}

impl DividedPlane {
    /// Returns the planes of an axis that is one group.
    pub fn undivided(all: SharedPlane) -> Self {
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
    own: [Option<SharedPlane>; AXES],
    /// An axis whose plane is that of a group over several axes, and those axes.
    joined: Option<(Axis, Vec<Axis>)>,
    /// Planes within and across the groups of an axis that is divided.
    divided: Option<(Axis, [SharedPlane; 2])>,
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
    pub fn control(&mut self) -> &mut dyn ControlPlane {
        &mut *self.communicator.control
    }

    /// The data plane of all ranks.
    pub fn world(&self) -> SharedPlane {
        self.communicator.data.clone()
    }

    /// Returns the data plane of this rank's group along an axis, for collectives. A rank's number on the
    /// plane is its coordinate.
    ///
    /// # Errors
    /// An axis whose ranks only send and receive, in a grid with other axes.
    pub fn along(&self, axis: Axis) -> Result<SharedPlane> {
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

    /// Sends `region` to the rank at `coordinate` along an axis. May wait for the receive.
    ///
    /// # Errors
    /// As for [`DataPlane::send`].
    pub fn send(&self, axis: Axis, coordinate: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        let (mut plane, rank) = self.transfers(axis, coordinate);
        plane.send(rank, region, stream)
    }

    /// Receives `region` from the rank at `coordinate` along an axis.
    ///
    /// # Errors
    /// As for [`DataPlane::receive`].
    pub fn receive(
        &self,
        axis: Axis,
        coordinate: usize,
        region: Region<'_>,
        stream: StreamKind,
    ) -> Result<()> {
        let (mut plane, rank) = self.transfers(axis, coordinate);
        plane.receive(rank, region, stream)
    }

    /// Runs several sends and receives between ranks along an axis as one call.
    ///
    /// # Errors
    /// As for [`DataPlane::exchange`].
    pub fn exchange(
        &self,
        axis: Axis,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<()> {
        let peers = |regions: &[PeerRegion<'_>]| -> Vec<usize> {
            regions.iter().map(|(coordinate, _)| self.number(axis, *coordinate)).collect()
        };
        let (to, from) = (peers(sends), peers(receives));
        let sends: Vec<_> = to.into_iter().zip(sends.iter().map(|(_, region)| *region)).collect();
        let receives: Vec<_> = from.into_iter().zip(receives.iter().map(|(_, region)| *region)).collect();
        let (mut plane, _) = self.transfers(axis, 0);
        plane.exchange(&sends, &receives, stream)
    }

    /// Returns the plane that carries transfers along an axis, and the rank number on it of a coordinate.
    fn transfers(&self, axis: Axis, coordinate: usize) -> (SharedPlane, usize) {
        let own = self.own[axis.index()].as_ref().unwrap_or(&self.communicator.data);
        (own.clone(), self.number(axis, coordinate))
    }

    fn number(&self, axis: Axis, coordinate: usize) -> usize {
        match self.own[axis.index()] {
            Some(_) => coordinate,
            None => self.grid.rank_at(&[(axis, coordinate)]),
        }
    }

    /// Makes the connections of `world`, and those of `along` on the planes of those axes, so that none is
    /// made later.
    ///
    /// # Errors
    /// As for [`DataPlane::warm_up`].
    pub fn warm_up(
        &mut self,
        mut world: Vec<CollectiveUse>,
        along: &[(Axis, Vec<CollectiveUse>)],
    ) -> Result<()> {
        let shared = along.iter().filter(|(axis, _)| self.own[axis.index()].is_none());
        world.extend(shared.flat_map(|(_, uses)| uses));
        self.communicator.data.warm_up(&world)?;
        for (axis, uses) in along {
            if let Some(plane) = &mut self.own[axis.index()] {
                plane.warm_up(uses)?;
            }
            let Some((_, planes)) = self.divided.as_mut().filter(|(of, _)| of == axis) else { continue };
            for plane in planes {
                let exists = |used: &&CollectiveUse| match used {
                    CollectiveUse::Peer(peer) => *peer < plane.world_size(),
                    _ => true,
                };
                let uses: Vec<_> = uses.iter().filter(exists).copied().collect();
                plane.warm_up(&uses)?;
            }
        }
        Ok(())
    }

    /// Registers `observer` for every call that begins from now on, on all planes.
    pub fn observe(&mut self, observer: &Observer) {
        self.communicator.control.observe(observer.clone());
        self.communicator.data.observe(observer.clone());
        let divided = self.divided.iter_mut().flat_map(|(_, planes)| planes);
        self.own.iter_mut().flatten().chain(divided).for_each(|plane| plane.observe(observer.clone()));
    }

    /// Traffic of all planes so far.
    pub fn traffic(&self) -> Traffic {
        self.communicator.traffic()
    }

    /// Traffic of all planes so far, by axis.
    pub fn traffic_by_axis(&self) -> AxisTraffic {
        let mut by_axis = AxisTraffic::default();
        let of = |plane: &SharedPlane| plane.traffic().total();
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
