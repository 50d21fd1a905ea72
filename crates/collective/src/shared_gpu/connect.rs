//! Connects ranks that are threads of one process and use one GPU.

use std::rc::Rc;

use device::{Backend, Device};
use tensor::ops::tree;

use super::backend::SharedGpuBackend;
use super::engine::Gpu;
use crate::backend::GroupBackend;
use crate::call::{Call, CallKind, Channel};
use crate::caller::Caller;
use crate::control::ControlChannel;
use crate::error::Result;
use crate::link::Link;
use crate::threads::link::ThreadLink;

const CALL: Call = Call { channel: Channel::Data, kind: CallKind::Connect, sequence: 0 };

/// Returns the backend of all ranks, which use the GPU of `device`. It splits its links from `link`, which is
/// `None` if the ranks are not threads of one process.
pub(crate) fn connect(
    control: &mut dyn ControlChannel,
    device: &Device,
    link: Option<&mut ThreadLink>,
) -> Result<Box<dyn GroupBackend>> {
    let rank = control.rank();
    let ranks = control.world_size();
    let caller = Caller { rank, call: CALL };
    let refused = |source| caller.device_error(source);
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
    // The splits of the link itself are numbered from 0.
    let [tickets, news] = [u64::MAX, u64::MAX - 1].map(|sequence| link.split(sequence, 0, &all));
    let engine = Rc::new(Gpu(device.clone()));
    Ok(Box::new(SharedGpuBackend::new(engine, link.offers(), (tickets, news))))
}
