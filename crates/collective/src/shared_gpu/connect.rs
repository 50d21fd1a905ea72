//! Connecting ranks that are threads of one process and use one GPU.

use std::rc::Rc;

use device::{Backend, Device};
use tensor::ops::tree;

use super::engine::Gpu;
use super::plane::SharedGpuPlane;
use crate::call::{Call, Operation, Plane};
use crate::control::ControlPlane;
use crate::data::DataPlane;
use crate::error::{CollectiveError, Result};
use crate::link::Link;
use crate::operands::Caller;
use crate::threads::link::ThreadLink;
use crate::traffic::Meter;

const CALL: Call = Call { plane: Plane::Data, operation: Operation::Connect, sequence: 0 };

/// Returns the plane of all ranks, which use the GPU of `device`. `link`: the ranks' link, from which the
/// plane splits its own; `None` if they are not threads of one process.
pub(crate) fn connect(
    control: &mut dyn ControlPlane,
    device: &Device,
    link: Option<&mut ThreadLink>,
) -> Result<Box<dyn DataPlane>> {
    let (rank, ranks) = (control.rank(), control.world_size());
    let caller = Caller { rank, call: CALL };
    let refused = |source| CollectiveError::device(rank, CALL)(source);
    if device.backend() != Backend::Cuda {
        let name = &device.description().name;
        return caller.refuse(format!("ranks share a GPU; {name} is not one"));
    }
    let Some(link) = link else {
        return caller.refuse("ranks that share a GPU are threads of one process".to_owned());
    };
    if ranks > tree::MOST_PARTS {
        return caller.refuse(format!("{ranks} ranks share a GPU; at most {} can", tree::MOST_PARTS));
    }
    device.make_current().map_err(refused)?;
    let uuids = control.all_gather(&device.gpu_uuid().map_err(refused)?)?;
    if let Some(other) = uuids.iter().position(|uuid| *uuid != uuids[0]) {
        return caller.refuse(format!("rank {other} has another GPU than rank 0"));
    }
    let all: Vec<usize> = (0..ranks).collect();
    // The numbers of splits of the link itself begin at 0.
    let [tickets, news] = [u64::MAX, u64::MAX - 1].map(|sequence| link.split(sequence, 0, &all));
    let engine = Rc::new(Gpu(device.clone()));
    Ok(Box::new(SharedGpuPlane::new(engine, link.offers(), (tickets, news), Meter::default())))
}
