//! The calls of the plane: checked, passed to NCCL, and counted.

use std::rc::Rc;

use device::{DType, Device, Region, StreamKind};

use super::NcclPlane;
use crate::call::{Call, Operation, Plane};
use crate::control::Observer;
use crate::data::{CollectiveUse, DataPlane};
use crate::error::Result;
use crate::group::SplitGroup;
use crate::nccl::order::Work;
use crate::operands::{Operands, PeerRegion, check_rank};
use crate::peer_access::{PeerAccess, PeerAccessOptions, SharedSum};
use crate::traffic::Traffic;

impl DataPlane for NcclPlane {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn all_reduce(&mut self, region: Region<'_>, dtype: DType, stream: StreamKind) -> Result<()> {
        let caller = self.next(Operation::AllReduce);
        self.check(caller, &Operands::AllReduce { region, dtype })?;
        self.collective(caller, region.bytes, Work::AllReduce { region, dtype }, stream)?;
        self.tally.all_reduce(region.bytes, dtype);
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        input: Region<'_>,
        output: Region<'_>,
        dtype: DType,
        stream: StreamKind,
    ) -> Result<()> {
        let caller = self.next(Operation::ReduceScatter);
        self.check(caller, &Operands::ReduceScatter { input, output, dtype })?;
        self.collective(caller, output.bytes, Work::ReduceScatter { input, output, dtype }, stream)?;
        self.tally.reduce_scatter(output.bytes);
        Ok(())
    }

    fn all_gather(&mut self, input: Region<'_>, output: Region<'_>, stream: StreamKind) -> Result<()> {
        let caller = self.next(Operation::AllGather);
        self.check(caller, &Operands::AllGather { input, output })?;
        self.collective(caller, input.bytes, Work::AllGather { input, output }, stream)?;
        self.tally.all_gather(input.bytes);
        Ok(())
    }

    fn broadcast(&mut self, root: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        let caller = self.next(Operation::Broadcast);
        self.check(caller, &Operands::Broadcast { root, region })?;
        self.collective(caller, region.bytes, Work::Broadcast { root, region }, stream)?;
        self.tally.broadcast(root, region.bytes);
        Ok(())
    }

    fn send(&mut self, to: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.point_to_point(Operation::Send, &[(to, region)], &[], stream)
    }

    fn receive(&mut self, from: usize, region: Region<'_>, stream: StreamKind) -> Result<()> {
        self.point_to_point(Operation::Receive, &[], &[(from, region)], stream)
    }

    fn exchange(
        &mut self,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<()> {
        self.point_to_point(Operation::Exchange, sends, receives, stream)
    }

    fn barrier(&mut self, stream: StreamKind) -> Result<()> {
        let caller = self.next(Operation::Barrier);
        let scratch = Rc::clone(&self.scratch);
        let region = scratch.region(0, DType::F32.bytes());
        self.collective(caller, region.bytes, Work::AllReduce { region, dtype: DType::F32 }, stream)?;
        self.tally.nothing(Operation::Barrier);
        Ok(())
    }

    fn synchronize(&mut self, stream: StreamKind) -> Result<()> {
        let call = Call { plane: Plane::Data, operation: Operation::Synchronize, sequence: self.collectives };
        self.shared.alive(call)?;
        self.wait(call, stream)
    }

    fn split(&mut self, groups: &[Vec<usize>]) -> Result<Box<dyn DataPlane>> {
        let caller = self.next(Operation::Split);
        self.check(caller, &Operands::Split { groups })?;
        self.same_groups(caller, groups)?;
        let group = SplitGroup::of(groups, self.rank);
        let comm_index = match self.comm_index {
            Some(comm_index) => self.split_off(caller.call, comm_index, &group)?,
            None => None,
        };
        let members = group.members.iter().map(|member| self.members[*member]).collect();
        self.tally.nothing(Operation::Split);
        let (shared, scratch) = (Rc::clone(&self.shared), Rc::clone(&self.scratch));
        let (device, meter) = (self.device.clone(), self.tally.meter().part());
        let mut plane = NcclPlane::new(shared, device, comm_index, group.rank, members, scratch, meter);
        plane.observe(self.observer.clone());
        Ok(Box::new(plane))
    }

    fn warm_up(&mut self, uses: &[CollectiveUse]) -> Result<()> {
        let stream = StreamKind::Compute;
        let call = Call { plane: Plane::Data, operation: Operation::Connect, sequence: self.collectives };
        let caller = self.begin(call);
        let (shared, own) = (Rc::clone(&self.shared), self.rank);
        let peer =
            |using: &CollectiveUse| if let CollectiveUse::Peer(peer) = using { Some(*peer) } else { None };
        let peers: Vec<usize> = uses.iter().filter_map(peer).collect();
        peers.iter().try_for_each(|peer| check_rank(caller, self.members.len(), *peer))?;
        shared.patiently(|| {
            self.rehearse(caller, uses, stream)?;
            self.meet(call, peers.into_iter().filter(|peer| *peer != own), stream)?;
            self.wait(call, stream)
        })
    }

    fn share(&mut self, regions: &[Region<'_>], options: PeerAccessOptions) -> Result<PeerAccess> {
        self.open_window(regions, options)
    }

    fn sum_shared(&mut self, sums: &[SharedSum<'_>], alone: bool, stream: StreamKind) -> Result<bool> {
        self.sum_in_window(sums, alone, stream)
    }

    fn exchange_shared(
        &mut self,
        sends: &[PeerRegion<'_>],
        receives: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<bool> {
        self.exchange_in_window(sends, receives, stream)
    }

    fn capturing_device(&self) -> Option<Device> {
        Some(self.device.clone())
    }

    fn observe(&mut self, observer: Observer) {
        self.observer = observer;
    }

    fn traffic(&self) -> Traffic {
        self.tally.meter().own()
    }

    fn rank_traffic(&self) -> Traffic {
        self.tally.meter().rank()
    }
}
