//! GPUs of this host, and the connections that a measurement needs between them.

use collective::{Collective, PeerAccessOptions, PeerMethod, SumKernels, nccl};

use super::choice::Choice;

/// Returns the number of GPUs.
///
/// # Errors
/// There are fewer than two GPUs, or NCCL cannot be opened.
pub(super) fn available() -> Result<usize, String> {
    let gpus = device::cuda::availability().map_err(|why| format!("--device cuda: {why}"))?.len();
    match gpus {
        1 => Err("--device cuda: this host has 1 GPU, and collectives need at least two".to_owned()),
        _ if !nccl::is_there() => {
            Err("--device cuda: NCCL's library libnccl.so cannot be opened: install NCCL or set \
             LD_LIBRARY_PATH; if there is only libnccl.so.2, link libnccl.so to it"
                .to_owned())
        }
        _ => Ok(gpus),
    }
}

/// Checks that this host has enough GPUs for a job of `ranks` ranks, `local` of them on this host.
///
/// # Errors
/// There are too few GPUs.
pub(super) fn enough(ranks: usize, local: usize) -> Result<(), String> {
    let gpus = available()?;
    if ranks == 1 {
        return Err("collectives between GPUs need at least two ranks".to_owned());
    }
    match local > gpus {
        true => Err(format!("every rank needs a GPU: this host has {local} ranks and {gpus} GPUs")),
        false => Ok(()),
    }
}

/// Returns the connections needed by the measured operations.
pub(super) fn connections(choice: &Choice, ranks: usize) -> Vec<Collective<()>> {
    let wants = |operation: &str| choice.wants(operation);
    let wanted = |using: &Collective<()>| match using {
        Collective::AllReduce { .. } => wants("all-reduce") || wants("barrier"),
        Collective::ReduceScatter { .. } => wants("reduce-scatter"),
        // Large all-reduces use the same ring.
        Collective::AllGather { .. } => wants("all-gather") || wants("tree") || wants("all-reduce"),
        Collective::Broadcast { .. } => wants("broadcast"),
        _ => wants("exchange") || wants("tree"),
    };
    Collective::everything(ranks).into_iter().filter(wanted).collect()
}

/// Returns the options of a sum in peer memory.
pub(super) fn peer_options(blocks: u32, method: PeerMethod) -> PeerAccessOptions {
    PeerAccessOptions { blocks, method, sums: Some(SumKernels::OF_TREES), ..PeerAccessOptions::default() }
}
