//! A handle to a data plane that several users on a rank's thread share.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use device::{DType, Device, Region, StreamKind};

use crate::control::Observer;
use crate::data::{CollectiveUse, DataPlane};
use crate::error::Result;
use crate::operands::PeerRegion;
use crate::peer_access::{PeerAccess, PeerAccessOptions, SharedSum};
use crate::traffic::Traffic;

/// A data plane that operators, gradient sinks and the training step of one rank use in turn.
///
/// A clone is another handle to the same plane. All handles belong to the thread of the rank, which makes one
/// call after the other, so their calls have one order.
#[derive(Clone)]
pub struct SharedPlane(Rc<RefCell<Box<dyn DataPlane>>>);

impl SharedPlane {
    /// Returns the first handle to `plane`.
    pub fn new(plane: impl DataPlane + 'static) -> Self {
        Self::of_box(Box::new(plane))
    }

    pub(crate) fn of_box(plane: Box<dyn DataPlane>) -> Self {
        SharedPlane(Rc::new(RefCell::new(plane)))
    }
}

impl fmt::Debug for SharedPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedPlane(rank {} of {})", self.rank(), self.world_size())
    }
}

impl DataPlane for SharedPlane {
    fn rank(&self) -> usize {
        self.0.borrow().rank()
    }

    fn world_size(&self) -> usize {
        self.0.borrow().world_size()
    }

    fn all_reduce(&mut self, region: Region<'_>, dtype: DType, stream: StreamKind) -> Result<()> {
        self.0.borrow_mut().all_reduce(region, dtype, stream)
    }

    fn reduce_scatter(
        &mut self,
        input: Region<'_>,
        output: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()> {
        self.0.borrow_mut().reduce_scatter(input, output, dtype, stream)
    }

    fn all_gather(&mut self, input: Region<'_>, output: Region<'_>, stream: StreamKind) -> Result<()> {
        self.0.borrow_mut().all_gather(input, output, stream)
    }

    fn broadcast(&mut self, root: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.0.borrow_mut().broadcast(root, region, stream)
    }

    fn send(&mut self, to: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.0.borrow_mut().send(to, region, stream)
    }

    fn receive(&mut self, from: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.0.borrow_mut().receive(from, region, stream)
    }

    fn exchange(
        &mut self,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<()> {
        self.0.borrow_mut().exchange(sends, receives, stream)
    }

    fn barrier(&mut self, stream: StreamKind) -> Result<()> {
        self.0.borrow_mut().barrier(stream)
    }

    fn synchronize(&mut self, stream: StreamKind) -> Result<()> {
        self.0.borrow_mut().synchronize(stream)
    }

    fn split(&mut self, groups: &[Vec<usize>]) -> Result<Box<dyn DataPlane>> {
        self.0.borrow_mut().split(groups)
    }

    fn warm_up(&mut self, uses: &[CollectiveUse]) -> Result<()> {
        self.0.borrow_mut().warm_up(uses)
    }

    fn share(&mut self, regions: &[Region<'_>], options: PeerAccessOptions) -> Result<PeerAccess> {
        self.0.borrow_mut().share(regions, options)
    }

    fn sum_shared(&mut self, sums: &[SharedSum<'_>], alone: bool, stream: StreamKind) -> Result<bool> {
        self.0.borrow_mut().sum_shared(sums, alone, stream)
    }

    fn exchange_shared(
        &mut self,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<bool> {
        self.0.borrow_mut().exchange_shared(sends, receives, stream)
    }

    fn log_on(&mut self, device: &Device) {
        self.0.borrow_mut().log_on(device);
    }

    fn observe(&mut self, observer: Observer) {
        self.0.borrow_mut().observe(observer);
    }

    fn traffic(&self) -> Traffic {
        self.0.borrow().traffic()
    }

    fn rank_traffic(&self) -> Traffic {
        self.0.borrow().rank_traffic()
    }
}
