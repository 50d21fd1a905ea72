//! A handle to a data plane that several users on a rank's thread share.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use device::{Again, DType, Device, OutlivingRegion, Region, StreamKind};
use tensor::TensorError;

use crate::control::Observer;
use crate::data::{CollectiveUse, DataPlane};
use crate::error::Result;
use crate::operands::PeerRegion;
use crate::peer_access::{PeerAccess, PeerAccessOptions, SharedSum};
use crate::rank_tree::RankTree;
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

    /// Makes a call of the plane. If the device captures its work, a replay makes the call `again`.
    fn make<T: Did, A: FnMut(&mut dyn DataPlane) -> Result<T> + 'static>(
        &self,
        call: impl FnOnce(&mut dyn DataPlane) -> Result<T>,
        again: impl FnOnce() -> A,
    ) -> Result<T> {
        let device = self.0.borrow().capturing_device().filter(Device::is_capturing);
        let call = || call(&mut **self.0.borrow_mut());
        let Some(device) = device else { return call() };
        // Captured work does not keep the plane, which is dropped before the memory that it shares.
        let plane = Rc::downgrade(&self.0);
        let again = || -> Again {
            let mut again = again();
            Box::new(move || match plane.upgrade() {
                Some(plane) => Ok(again(&mut **plane.borrow_mut()).map(drop)?),
                None => Err("a call was repeated on a plane that is gone".into()),
            })
        };
        device.make_repeated(call, Did::did, again).map_err(TensorError::from)?
    }
}

/// The answer of a call that may do nothing.
trait Did {
    /// Whether the call did something.
    fn did(&self) -> bool;
}

impl Did for () {
    fn did(&self) -> bool {
        true
    }
}

impl Did for bool {
    fn did(&self) -> bool {
        *self
    }
}

/// A [`SharedSum`] for repeated calls.
struct OutlivingSum {
    region: OutlivingRegion,
    scratch: OutlivingRegion,
    tree: RankTree,
    dtype: DType,
    everywhere: bool,
}

impl OutlivingSum {
    fn of(sum: &SharedSum<'_>) -> Self {
        let SharedSum { region, scratch, tree, dtype, everywhere } = *sum;
        OutlivingSum {
            region: region.outlive(),
            scratch: scratch.outlive(),
            tree: tree.clone(),
            dtype,
            everywhere,
        }
    }

    fn sum(&self) -> SharedSum<'_> {
        let OutlivingSum { region, scratch, tree, dtype, everywhere } = self;
        let (region, scratch) = (region.region(), scratch.region());
        SharedSum { region, scratch, tree, dtype: *dtype, everywhere: *everywhere }
    }
}

/// Returns peers with their regions for repeated calls.
fn outlive(peers: &[PeerRegion<'_>]) -> Vec<(usize, OutlivingRegion)> {
    peers.iter().map(|(peer, region)| (*peer, region.outlive())).collect()
}

/// Returns peers with their regions.
fn regions(peers: &[(usize, OutlivingRegion)]) -> Vec<PeerRegion<'_>> {
    peers.iter().map(|(peer, region)| (*peer, region.region())).collect()
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
        self.make(
            |plane| plane.all_reduce(region, dtype, stream),
            || {
                let region = region.outlive();
                move |plane| plane.all_reduce(region.region(), dtype, stream)
            },
        )
    }

    fn reduce_scatter(
        &mut self,
        input: Region<'_>,
        output: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()> {
        self.make(
            |plane| plane.reduce_scatter(input, output, dtype, stream),
            || {
                let (input, output) = (input.outlive(), output.outlive());
                move |plane| plane.reduce_scatter(input.region(), output.region(), dtype, stream)
            },
        )
    }

    fn all_gather(&mut self, input: Region<'_>, output: Region<'_>, stream: StreamKind) -> Result<()> {
        self.make(
            |plane| plane.all_gather(input, output, stream),
            || {
                let (input, output) = (input.outlive(), output.outlive());
                move |plane| plane.all_gather(input.region(), output.region(), stream)
            },
        )
    }

    fn broadcast(&mut self, root: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.make(
            |plane| plane.broadcast(root, region, stream),
            || {
                let region = region.outlive();
                move |plane| plane.broadcast(root, region.region(), stream)
            },
        )
    }

    fn send(&mut self, to: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.make(
            |plane| plane.send(to, region, stream),
            || {
                let region = region.outlive();
                move |plane| plane.send(to, region.region(), stream)
            },
        )
    }

    fn receive(&mut self, from: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.make(
            |plane| plane.receive(from, region, stream),
            || {
                let region = region.outlive();
                move |plane| plane.receive(from, region.region(), stream)
            },
        )
    }

    fn exchange(
        &mut self,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<()> {
        self.make(
            |plane| plane.exchange(sends, receives, stream),
            || {
                let (sends, receives) = (outlive(sends), outlive(receives));
                move |plane| plane.exchange(&regions(&sends), &regions(&receives), stream)
            },
        )
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
        self.make(
            |plane| plane.sum_shared(sums, alone, stream),
            || {
                let sums: Vec<OutlivingSum> = sums.iter().map(OutlivingSum::of).collect();
                move |plane| {
                    let sums: Vec<_> = sums.iter().map(OutlivingSum::sum).collect();
                    plane.sum_shared(&sums, alone, stream)
                }
            },
        )
    }

    fn exchange_shared(
        &mut self,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<bool> {
        self.make(
            |plane| plane.exchange_shared(sends, receives, stream),
            || {
                let (sends, receives) = (outlive(sends), outlive(receives));
                move |plane| plane.exchange_shared(&regions(&sends), &regions(&receives), stream)
            },
        )
    }

    fn log_on(&mut self, device: &Device) {
        self.0.borrow_mut().log_on(device);
    }

    fn capturing_device(&self) -> Option<Device> {
        self.0.borrow().capturing_device()
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
