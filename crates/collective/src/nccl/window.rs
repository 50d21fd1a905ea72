//! Sets up peer access between the GPUs of one host.
//!
//! The ranks exchange over NCCL their identities, their regions and handles to map these. Files that
//! represent memory are passed over Unix sockets. If one rank fails, all ranks learn of it and none gets
//! access.

mod files;
pub(super) mod gpus;
mod introduction;

use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use device::cuda::{Extent, Page, PageSource, PeerMemory, SignalPage};
use device::{DType, Device, DeviceError, Region, StreamKind};
use tensor::ops::tree::{MOST_PARTS, SumTree};

use crate::caller::Caller;
use crate::error::Result;
use crate::nccl::backend::NcclBackend;
use crate::peer_access::{PeerAccessOptions, PeerWindow, SumKernels};
use files::{BATCH, Post};
use gpus::{Gpus, Signals};
use introduction::{Introduction, Offer, Offered};

/// Result of a set-up step; the error is the reason for continuing without peer access.
type Attempt<T> = std::result::Result<T, String>;

/// Time allowed for the ranks of a host to exchange files.
const PATIENCE: Duration = Duration::from_secs(20);
/// Sets up peer access between the ranks of `group`. The inner error is the reason why access is impossible,
/// the same on all ranks.
pub(super) fn connect(
    group: &mut NcclBackend,
    caller: Caller,
    regions: &[Region<'_>],
    options: PeerAccessOptions,
) -> Result<Attempt<PeerWindow<Gpus>>> {
    let mut own = Own::new(group, regions);
    let printed = group.gather_bytes(caller, &own.introduction.encode())?;
    let met = acquaint(group, &printed, &options);
    let offer = match &met {
        Ok((peers, _)) => own.offer(group, regions, peers).unwrap_or_else(Offer::refusal),
        Err(why) => Offer::refusal(why.clone()),
    };
    let offers = group.gather_bytes(caller, &offer.encode())?;
    let offers = decoded(&offers, Offer::decode).and_then(|offers| agreed(offers, |offer| &offer.trouble));
    let mapped = match (met, offers) {
        (Ok((peers, sums)), Ok(offers)) => own.map(group, caller, peers, &offers, options.blocks, sums),
        (Err(why), _) | (_, Err(why)) => Err(why),
    };
    let verdict = Offer::refusal(mapped.as_ref().err().cloned().unwrap_or_default());
    let verdicts = group.gather_bytes(caller, &verdict.encode())?;
    let agreed = decoded(&verdicts, Offer::decode).and_then(|all| agreed(all, |offer| &offer.trouble));
    // Mappings are dropped before other ranks unmap or free the memory. Nothing uses them any more.
    Ok(agreed.and(mapped).map(|gpus| {
        let rank = gpus.rank;
        let ranks = gpus.memory.len();
        PeerWindow::new(gpus, (rank, ranks), options.method, options.layout)
    }))
}

/// Checks that this GPU can write host memory and wait for it, on a word that no other rank uses.
fn try_signals(device: &Device, page: &SignalPage, own: usize) -> Attempt<()> {
    let printed = |error: DeviceError| error.to_string();
    let signal = [(page.word(own), 1)];
    device.signal(&signal, &[], StreamKind::Compute).and_then(|()| device.synchronize()).map_err(printed)?;
    if page.load(own) != 1 {
        return Err("the GPU cannot write to host memory".to_owned());
    }
    device.signal(&[], &signal, StreamKind::Compute).and_then(|()| device.synchronize()).map_err(printed)
}

/// Another rank of the group, as known to this rank.
struct Peer {
    printed: Introduction,
    /// Number of the peer's GPU in this process's numbering.
    ordinal: usize,
    same_process: bool,
}

/// Decodes the messages of all ranks of a group.
///
/// # Errors
/// A message cannot be decoded; the error names the sender.
fn decoded<T>(all: &[Vec<u8>], decode: impl Fn(&[u8]) -> Option<T>) -> Attempt<Vec<T>> {
    let decode_one = |(rank, bytes): (usize, &Vec<u8>)| {
        decode(bytes).ok_or_else(|| format!("rank {rank} sent an invalid message"))
    };
    all.iter().enumerate().map(decode_one).collect()
}

/// Returns the messages of all ranks if none reports a problem.
///
/// # Errors
/// The first reported problem, with its rank.
fn agreed<T>(all: Vec<T>, trouble: impl Fn(&T) -> &String) -> Attempt<Vec<T>> {
    match all.iter().map(trouble).enumerate().find(|(_, trouble)| !trouble.is_empty()) {
        Some((rank, trouble)) => Err(format!("rank {rank}: {trouble}")),
        None => Ok(all),
    }
}

/// Compares the ranks' introductions, and returns the peers and the kernels for sums.
///
/// # Errors
/// The reason why the ranks cannot access each other's memory.
fn acquaint(
    group: &NcclBackend,
    printed: &[Vec<u8>],
    options: &PeerAccessOptions,
) -> Attempt<(Vec<Peer>, SumKernels)> {
    let printed = agreed(decoded(printed, Introduction::decode)?, |printed| &printed.trouble)?;
    let Some(sums) = options.sums else { return Err("there are no kernels that sum".to_owned()) };
    if (sums.kernel)(DType::F32, &SumTree::balanced(printed.len())).is_none() {
        return Err(format!("there are {} ranks; the kernels sum over at most {MOST_PARTS}", printed.len()));
    }
    let first = printed[0].clone();
    if let Some(other) = printed.iter().position(|printed| printed.host != first.host) {
        return Err(format!("rank {other} is on another host"));
    }
    let lengths =
        |printed: &Introduction| printed.regions.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>();
    if let Some(other) =
        printed.iter().position(|printed| !options.layout.agrees(&lengths(printed), &lengths(&first)))
    {
        return Err(format!("rank {other} shares other regions"));
    }
    let process = printed[group.rank()].process;
    let peer = |(rank, printed): (usize, Introduction)| {
        let reachable = group.device().reachable(printed.gpu).map_err(|error| error.to_string())?;
        let ordinal =
            reachable.ok_or_else(|| format!("this GPU cannot access the memory of rank {rank}'s GPU"))?;
        Ok(Peer { ordinal, same_process: printed.process == process, printed })
    };
    let peers = printed.into_iter().enumerate().map(peer).collect::<Attempt<_>>()?;
    Ok((peers, sums))
}

/// The memory and files that this rank shares.
struct Own {
    introduction: Introduction,
    post: Option<Post>,
    signals: Option<File>,
    extents: Vec<Extent>,
    /// Pages held until all ranks have mapped them, in the order of the extents with `is_page`.
    pages: Vec<Page>,
}

impl Own {
    fn new(group: &NcclBackend, regions: &[Region<'_>]) -> Self {
        let prepared = || -> Attempt<([u8; 16], Post, File)> {
            let gpu = group.device().gpu_uuid().map_err(|error| error.to_string())?;
            let printed = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
            let post = Post::open().map_err(printed("a socket of this host"))?;
            let file =
                files::anonymous("plimsoll-signals", SignalPage::BYTES).map_err(printed("shared memory"))?;
            Ok((gpu, post, file))
        };
        let (introduction, post, signals) = match prepared() {
            Ok((gpu, post, file)) => {
                (Introduction::new(gpu, post.address(), regions), Some(post), Some(file))
            }
            Err(trouble) => (Introduction { trouble, ..Introduction::default() }, None, None),
        };
        Own { introduction, post, signals, extents: Vec::new(), pages: Vec::new() }
    }

    /// Creates the message from which other ranks map this rank's regions.
    fn offer(&mut self, group: &NcclBackend, regions: &[Region<'_>], peers: &[Peer]) -> Attempt<Offer> {
        let device = group.device();
        let printed = |error: DeviceError| error.to_string();
        self.extents = device.extents(regions).map_err(printed)?;
        let elsewhere = peers.iter().any(|peer| !peer.same_process);
        let mut offered = Vec::new();
        for extent in &self.extents {
            let mut number = 0;
            let mut name = None;
            if extent.is_page {
                let page = device.hold_page(extent).map_err(printed)?;
                number = page.number();
                self.pages.push(page);
            } else if elsewhere {
                name = Some(device.name_of(extent).map_err(printed)?);
            }
            offered.push(Offered { extent: *extent, number, name });
        }
        Ok(Offer { offered, trouble: String::new() })
    }

    /// Maps the memory offered by the other ranks, and sends them the files of this rank's memory.
    fn map(
        &mut self,
        group: &NcclBackend,
        caller: Caller,
        peers: Vec<Peer>,
        offers: &[Offer],
        blocks: u32,
        sums: SumKernels,
    ) -> Attempt<Gpus> {
        let device = group.device();
        let rank = group.rank();
        let printed = |error: DeviceError| error.to_string();
        let mut memory: Vec<PeerMemory> = peers.iter().map(|_| PeerMemory::new(device)).collect();
        memory[rank] = PeerMemory::own(device, &self.extents);
        for (other, peer) in peers.iter().enumerate().filter(|(other, _)| *other != rank) {
            let extents: Vec<Extent> = offers[other].offered.iter().map(|offered| offered.extent).collect();
            memory[other].reserve(&extents).map_err(printed)?;
            for Offered { extent, number, name } in &offers[other].offered {
                match (extent.is_page, peer.same_process, name) {
                    (true, true, _) => memory[other].map(extent, PageSource::Here(*number)),
                    // This page is mapped from a file below.
                    (true, false, _) => Ok(()),
                    (false, true, _) => memory[other].enable(extent, peer.ordinal),
                    (false, false, Some(name)) => memory[other].open(extent, *name),
                    (false, false, None) => {
                        return Err(format!("rank {other} sent no name of its allocation"));
                    }
                }
                .map_err(printed)?;
            }
        }
        let signals = self.exchange_files(group, caller, &peers, offers, &mut memory)?;
        for memory in &memory {
            memory.allow().map_err(printed)?;
        }
        let page = |file: &File| device.signal_page(file).map_err(printed);
        let pages = signals.iter().map(page).collect::<Attempt<Vec<_>>>()?;
        try_signals(device, &pages[rank], rank)?;
        let regions = |peer: &Peer| peer.printed.regions.iter().map(|(base, _)| *base).collect();
        let mut gpus = Gpus {
            device: device.clone(),
            rank,
            bases: peers.iter().map(regions).collect(),
            lengths: self.introduction.regions.iter().map(|(_, bytes)| *bytes).collect(),
            memory,
            signals: Rc::new(Signals { rank, pages, meetings: Cell::new(0) }),
            blocks,
            sums,
        };
        gpus.rehearse(group.spare()).map_err(printed)?;
        Ok(gpus)
    }

    /// Exchanges files with the other ranks: every rank's signal page and, between processes, its memory
    /// pages. Sends a few at a time to limit open files. Returns the signal pages by rank.
    fn exchange_files(
        &mut self,
        group: &NcclBackend,
        caller: Caller,
        peers: &[Peer],
        offers: &[Offer],
        memory: &mut [PeerMemory],
    ) -> Attempt<Vec<File>> {
        let rank = group.rank();
        let deadline = Instant::now() + PATIENCE;
        let printed = |error: std::io::Error| format!("passing files between ranks of this host: {error}");
        let (Some(post), Some(own)) = (self.post.take(), self.signals.take()) else {
            return Err("no file was prepared".to_owned());
        };
        let addresses: Vec<&[u8]> = peers.iter().map(|peer| peer.printed.address.as_slice()).collect();
        let failed = || group.has_failed(caller.call);
        let lines = post.connect(rank, &addresses, deadline, &failed).map_err(printed)?;
        let others = || (0..peers.len()).filter(|other| *other != rank);
        let mut signals: Vec<Option<File>> = peers.iter().map(|_| None).collect();
        for other in others() {
            lines.send(other, &[own.as_fd()]).map_err(printed)?;
        }
        for other in others() {
            signals[other] = lines.receive(other).map_err(printed)?.pop().map(File::from);
        }
        signals[rank] = Some(own);
        let pages = |offer: &Offer| -> Vec<Extent> {
            offer.offered.iter().map(|offered| offered.extent).filter(|extent| extent.is_page).collect()
        };
        let elsewhere = || others().filter(|other| !peers[*other].same_process);
        let most = elsewhere().map(|other| pages(&offers[other]).len()).max().unwrap_or(0);
        let rounds = most.max(if elsewhere().next().is_some() { self.pages.len() } else { 0 });
        for round in (0..rounds).step_by(BATCH) {
            let own = self.pages.iter().skip(round).take(BATCH);
            let files = own.map(Page::file).collect::<std::result::Result<Vec<OwnedFd>, _>>();
            let files = files.map_err(|error| error.to_string())?;
            let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            for other in elsewhere().filter(|_| !borrowed.is_empty()) {
                lines.send(other, &borrowed).map_err(printed)?;
            }
            for other in elsewhere() {
                let theirs = pages(&offers[other]);
                let theirs = theirs.iter().skip(round).take(BATCH);
                if theirs.len() == 0 {
                    continue;
                }
                let files = lines.receive(other).map_err(printed)?;
                if files.len() != theirs.len() {
                    return Err(format!(
                        "rank {other} sent {} files instead of {}",
                        files.len(),
                        theirs.len()
                    ));
                }
                for (extent, file) in theirs.zip(files) {
                    memory[other].map(extent, PageSource::File(file)).map_err(|error| error.to_string())?;
                }
            }
        }
        let all: Option<Vec<File>> = signals.into_iter().collect();
        all.ok_or_else(|| "a rank sent no page of signals".to_owned())
    }
}
