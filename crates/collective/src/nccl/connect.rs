//! Creates the NCCL communicator of all ranks, after comparing their library versions.

use std::rc::Rc;
use std::time::Duration;

use device::{Backend, Buffer, Category, Device, Request};

use crate::backend::GroupBackend;
use crate::call::{Call, CallKind, Channel};
use crate::caller::Caller;
use crate::control::ControlChannel;
use crate::error::{CollectiveError, Result};
use crate::nccl::backend::NcclBackend;
use crate::nccl::call_thread::CallThread;
use crate::nccl::fault::Fault;
use crate::nccl::raw::{self, Comm, ID_BYTES, Id};
use crate::nccl::shared::Shared;
use crate::nccl::{NAME, version_text};

/// Bytes of a rank's scratch buffer for barriers, first connections and warm-up. Large enough that NCCL
/// treats it as a large operand.
pub(crate) const SCRATCH_BYTES: usize = 1 << 20;
/// Oldest supported NCCL version, in NCCL's numbering: it added non-blocking communicators that can be split.
const OLDEST: u32 = 21_800;

const CALL: Call = Call { channel: Channel::Data, kind: CallKind::Connect, sequence: 0 };

/// Allocates the scratch buffer that a rank's groups share.
///
/// # Errors
/// The device is not a GPU and does not imitate one, or memory is exhausted.
pub(crate) fn scratch(rank: usize, device: &Device) -> Result<Rc<Buffer>> {
    if device.backend() == Backend::Cpu || !device.is_cuda_like() {
        let name = &device.description().name;
        return Caller { rank, call: CALL }.refuse(format!("{NAME} connects GPUs; {name} is not one"));
    }
    let refused = CollectiveError::device(rank, CALL);
    let buffer =
        device.allocate(SCRATCH_BYTES, Request::new(Category::Communication, "nccl")).map_err(refused)?;
    device.zero(buffer.region(0, SCRATCH_BYTES)).map_err(CollectiveError::device(rank, CALL))?;
    Ok(Rc::new(buffer))
}

/// Connects this rank's GPU to the others, and returns the backend of the world's group.
pub(crate) fn connect(
    control: &mut dyn ControlChannel,
    device: &Device,
    timeout: Duration,
    scratch: Rc<Buffer>,
) -> Result<Box<dyn GroupBackend>> {
    let rank = control.rank();
    let world_size = control.world_size();
    device.make_current().map_err(CollectiveError::device(rank, CALL))?;
    // Running work would delay the connections, and ranks wait for each other here for the first time.
    device.synchronize().map_err(CollectiveError::device(rank, CALL))?;
    let printed = control.all_gather(&Report::describe_library(rank).encode())?;
    let id = agree(rank, &printed)?;
    let calls = CallThread::start().map_err(|fault| failed(rank, rank, fault))?;
    let shared = Rc::new(Shared::new(rank, world_size, timeout, control.watch(), calls));
    let comm = Comm::empty();
    let make_current = device.make_current_elsewhere();
    // The communicator is registered before its creation, so that the creation can be aborted.
    let comm_index = shared.keep(comm);
    let meet = move || {
        make_current().map_err(|error| Fault { code: 0, text: error.to_string() })?;
        comm.meet(rank, world_size, &id)
    };
    shared.patiently(|| shared.make(comm, CALL, meet))?;
    let guard = Rc::clone(&shared);
    device.set_guard(Some(Rc::new(move |waited| guard.guard(waited))));
    let members = (0..world_size).collect();
    let device = device.clone();
    Ok(Box::new(NcclBackend::new(shared, device, Some(comm_index), rank, members, scratch)))
}

/// A rank's report about its NCCL library.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Report {
    /// The library can be used. Rank 0 also sends the identifier of the new communicator.
    There { version: u32, id: Option<Id> },
    /// The reason why the library cannot be used.
    Unusable(Fault),
}

impl Report {
    fn describe_library(rank: usize) -> Self {
        if !raw::is_there() {
            let text = "libnccl.so cannot be opened: install NCCL or set LD_LIBRARY_PATH; where there is \
                        only libnccl.so.2, a link libnccl.so to it is needed";
            return Report::Unusable(Fault { code: 0, text: text.to_owned() });
        }
        let reported = raw::version().and_then(|version| {
            if version < OLDEST {
                let have = version_text(version);
                let needed = version_text(OLDEST);
                return Err(Fault { code: 0, text: format!("it is version {have}; {needed} is needed") });
            }
            let id = if rank == 0 { Some(raw::unique_id()?) } else { None };
            Ok(Report::There { version, id })
        });
        reported.unwrap_or_else(Report::Unusable)
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Report::There { version, id } => {
                let id = id.as_ref().map_or([].as_slice(), |id| id);
                [[1].as_slice(), &version.to_le_bytes(), id].concat()
            }
            Report::Unusable(fault) => {
                [[0].as_slice(), &fault.code.to_le_bytes(), fault.text.as_bytes()].concat()
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        if *kind == 1 {
            let (version, rest) = rest.split_first_chunk::<4>()?;
            let id = rest.first_chunk::<ID_BYTES>().copied();
            return Some(Report::There { version: u32::from_le_bytes(*version), id });
        }
        let (code, text) = rest.split_first_chunk::<8>()?;
        let text = String::from_utf8_lossy(text).into_owned();
        Some(Report::Unusable(Fault { code: i64::from_le_bytes(*code), text }))
    }
}

/// Returns the error on rank `rank` when rank `who` cannot use its library.
fn failed(rank: usize, who: usize, Fault { code, text }: Fault) -> CollectiveError {
    let text = if who == rank { text } else { format!("on rank {who}: {text}") };
    CollectiveError::Library { rank, call: CALL, library: NAME, code, text }
}

/// Compares all ranks' reports, and returns the identifier for the new communicator.
///
/// # Errors
/// The first rank that cannot use its library. All ranks return the same error.
fn agree(rank: usize, reports: &[Vec<u8>]) -> Result<Id> {
    let failed = |who: usize, fault: Fault| failed(rank, who, fault);
    let unclear = || Fault { code: 0, text: "it did not say which NCCL it has".to_owned() };
    let mut first = None;
    for (who, bytes) in reports.iter().enumerate() {
        let (version, id) = match Report::decode(bytes).unwrap_or_else(|| Report::Unusable(unclear())) {
            Report::There { version, id } => (version, id),
            Report::Unusable(fault) => return Err(failed(who, fault)),
        };
        let (theirs, _) = *first.get_or_insert((version, id));
        if theirs != version {
            let mine = version_text(version);
            let theirs = version_text(theirs);
            return Err(failed(
                who,
                Fault { code: 0, text: format!("it is version {mine}, but {theirs} on rank 0") },
            ));
        }
    }
    first.and_then(|(_, id)| id).ok_or_else(|| failed(0, unclear()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn there(version: u32, id: Option<u8>) -> Vec<u8> {
        Report::There { version, id: id.map(|byte| [byte; ID_BYTES]) }.encode()
    }

    #[test]
    fn ranks_of_one_version_use_the_identifier_of_rank_zero() {
        let printed = [there(22_809, Some(7)), there(22_809, None), there(22_809, None)];
        assert_eq!(agree(2, &printed).unwrap(), [7; ID_BYTES]);
    }

    #[test]
    fn all_ranks_report_the_rank_that_cannot_connect() {
        let missing = Report::Unusable(Fault { code: 3, text: "no library".to_owned() }).encode();
        let cases: [(&[Vec<u8>], &str); 4] = [
            (&[there(22_809, Some(7)), missing], "NCCL error 3: on rank 1: no library"),
            (
                &[there(22_809, Some(7)), there(22_703, None)],
                "on rank 1: it is version 2.27.3, but 2.28.9 on rank 0",
            ),
            (&[there(22_809, Some(7)), vec![]], "on rank 1: it did not say which NCCL it has"),
            (&[there(22_809, None), there(22_809, None)], "NCCL error 0: it did not say which NCCL it has"),
        ];
        for (reports, words) in cases {
            let error = agree(0, reports).unwrap_err().to_string();
            assert!(error.ends_with(words), "{error}");
        }
    }
}
