//! Peer access between the GPUs of a group.

use std::rc::Rc;

use device::{Device, Region, StreamKind};

use super::NcclBackend;
use crate::call::Call;
use crate::caller::Caller;
use crate::collective::{Collective, PeerRegion};
use crate::error::Result;
use crate::nccl::window;
use crate::peer_access::{PeerAccess, PeerAccessOptions, SharedRange, SharedSum};
use crate::rank_tree::RankTree;

impl NcclBackend {
    pub(super) fn open_window(
        &mut self,
        caller: Caller,
        regions: &[Region<'_>],
        options: PeerAccessOptions,
    ) -> Result<PeerAccess> {
        if self.window.is_some() {
            self.host_wait(caller, self.device.synchronize())?;
        }
        self.close_window();
        let shared = Rc::clone(&self.shared);
        match shared.patiently(|| window::connect(self, caller, regions, options))? {
            Ok(window) => {
                shared.waits_by(window.engine().signals());
                self.window = Some(window);
                Ok(PeerAccess::Granted)
            }
            Err(why) => Ok(PeerAccess::Denied(why)),
        }
    }

    pub(super) fn sum_in_window(
        &mut self,
        caller: Caller,
        (sums, tree): (&[SharedSum<Region<'_>>], &RankTree),
        alone: bool,
        stream: StreamKind,
    ) -> Result<()> {
        self.shared.alive(caller.call)?;
        let ranges = sums.iter().map(|sum| Some((self.summed_range(sum, tree)?, *sum)));
        let ranges = ranges.collect::<Option<Vec<_>>>();
        let (Some(ranges), Some(window)) = (ranges, &mut self.window) else { return not_shared(caller) };
        window.sum(&ranges, tree, alone, stream).map_err(|error| caller.device_error(error))
    }

    pub(super) fn send_in_window(
        &mut self,
        caller: Caller,
        sends: &[PeerRegion<'_>],
        stream: StreamKind,
    ) -> Result<()> {
        self.shared.alive(caller.call)?;
        let Some(window) = &mut self.window else { return not_shared(caller) };
        let range = |(peer, region): &PeerRegion<'_>| Some((*peer, window.engine().range(*region)?));
        let Some(parts) = sends.iter().map(range).collect::<Option<Vec<_>>>() else {
            return not_shared(caller);
        };
        window.exchange(&parts, stream).map_err(|error| caller.device_error(error))
    }

    /// Ends peer access. If work in peers' memory does not finish, the mappings stay until the process ends.
    pub(super) fn close_window(&mut self) {
        if let Some(window) = self.window.take()
            && !self.shared.drain(&self.device)
        {
            std::mem::forget(window);
        }
    }

    pub(in crate::nccl) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns 16 bytes of scratch memory.
    pub(in crate::nccl) fn spare(&self) -> Region<'_> {
        self.scratch.region(self.scratch.bytes() / 2, 16)
    }

    pub(in crate::nccl) fn rank(&self) -> usize {
        self.rank
    }

    /// Returns whether the group has failed.
    pub(in crate::nccl) fn has_failed(&self, call: Call) -> bool {
        self.shared.alive(call).is_err()
    }

    /// Gathers every rank's bytes in rank order on every rank; lengths may differ. For small host messages.
    pub(in crate::nccl) fn gather_bytes(&self, caller: Caller, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.gather_words(caller, &[mine.len() as u32])?;
        let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
        let mut padded = mine.to_vec();
        padded.resize(longest.next_multiple_of(4), 0);
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&padded);
        let mut all = vec![Vec::new(); self.members.len()];
        for words in words.chunks(self.most_words()) {
            let round = self.gather_words(caller, words)?;
            for (message, words) in all.iter_mut().zip(round.chunks(words.len())) {
                message.extend_from_slice(bytemuck::cast_slice(words));
            }
        }
        all.iter_mut().zip(&lengths).for_each(|(message, length)| message.truncate(*length as usize));
        Ok(all)
    }

    /// Maximum number of words per rank in one gather. Gathers use the second half of the scratch buffer,
    /// calls on other streams the first.
    fn most_words(&self) -> usize {
        (self.scratch.bytes() / 2 / 4 / self.members.len()).max(1)
    }

    /// Gathers an equal number of words from every rank, at most [`NcclBackend::most_words`].
    fn gather_words(&self, caller: Caller, mine: &[u32]) -> Result<Vec<u32>> {
        let ranks = self.members.len();
        let bytes = size_of_val(mine);
        let output = self.scratch.region(self.scratch.bytes() / 2, bytes * ranks);
        let input = output.part(bytes * self.rank, bytes);
        self.device.copy_from_host(mine, input).map_err(|error| caller.device_error(error))?;
        self.pass(caller, &Collective::AllGather { input, output }, StreamKind::Compute)?;
        let mut all = vec![0u32; mine.len() * ranks];
        self.host_wait(caller, self.device.copy_to_host(output, &mut all))?;
        Ok(all)
    }

    /// Returns the operand's range in the shared regions; `None` if no kernel can sum it there.
    pub(super) fn summed_range(&self, sum: &SharedSum<Region<'_>>, tree: &RankTree) -> Option<SharedRange> {
        let window = self.window.as_ref()?;
        let range = window.engine().range(sum.region).filter(|range| window.divides(*range, tree));
        range.filter(|_| window.engine().adds(sum.dtype, tree.tree()))
    }
}

fn not_shared(caller: Caller) -> Result<()> {
    caller.refuse("ranks do not share this memory".to_owned())
}
