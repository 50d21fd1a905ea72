//! The control channel over queues of messages.

use crate::call::{Call, CallKind, Channel, Signature};
use crate::caller::Caller;
use crate::collective::check_rank;
use crate::control::{ControlChannel, Observer, Watch};
use crate::error::Result;
use crate::host::{Transfers, barrier, begin, broadcast_tree};
use crate::link::Link;
use crate::payload::PayloadPool;

/// A [`ControlChannel`] over a host transport.
#[derive(Debug)]
pub(crate) struct HostControl<L> {
    link: L,
    calls: u64,
    observer: Observer,
    pool: PayloadPool,
}

impl<L: Link> HostControl<L> {
    pub(crate) fn new(link: L) -> Self {
        HostControl { link, calls: 0, observer: Observer::default(), pool: PayloadPool::default() }
    }

    fn next(&mut self, kind: CallKind) -> Signature {
        let sequence = self.calls;
        self.calls += 1;
        let call = Call { channel: Channel::Control, kind, sequence };
        self.observer.begins(call);
        Signature::new(call)
    }

    fn check_root(&self, call: Call, root: usize) -> Result<()> {
        let caller = Caller { rank: self.link.world_rank(self.link.rank()), call };
        check_rank(caller, self.link.world_size(), root)
    }
}

impl<L: Link> ControlChannel for HostControl<L> {
    fn rank(&self) -> usize {
        self.link.rank()
    }

    fn world_size(&self) -> usize {
        self.link.world_size()
    }

    fn broadcast(&mut self, root: usize, message: &mut Vec<u8>) -> Result<()> {
        let signature = self.next(CallKind::Broadcast).root(root);
        self.check_root(signature.call, root)?;
        let call = begin(&mut self.link, &signature)?;
        let (parent, children) = broadcast_tree(self.rank(), self.world_size(), root);
        if let Some(parent) = parent {
            let mut transfers = Transfers::new(call);
            transfers.receive_bytes(parent, signature, message);
            transfers.run(&mut self.link, &mut self.pool)?;
        }
        let mut transfers = Transfers::new(call);
        children.into_iter().for_each(|child| transfers.send_bytes(child, signature, message));
        transfers.run(&mut self.link, &mut self.pool).map(drop)
    }

    fn gather(&mut self, root: usize, message: &[u8]) -> Result<Option<Vec<Vec<u8>>>> {
        let signature = self.next(CallKind::Gather).root(root);
        self.check_root(signature.call, root)?;
        let call = begin(&mut self.link, &signature)?;
        let mut transfers = Transfers::new(call);
        if self.rank() != root {
            transfers.send_bytes(root, signature, message);
            transfers.run(&mut self.link, &mut self.pool)?;
            return Ok(None);
        }
        let mut all = vec![Vec::new(); self.world_size()];
        all[root].extend_from_slice(message);
        for (from, bytes) in all.iter_mut().enumerate().filter(|(from, _)| *from != root) {
            transfers.receive_bytes(from, signature, bytes);
        }
        transfers.run(&mut self.link, &mut self.pool)?;
        Ok(Some(all))
    }

    fn all_gather(&mut self, message: &[u8]) -> Result<Vec<Vec<u8>>> {
        let signature = self.next(CallKind::AllGather);
        let call = begin(&mut self.link, &signature)?;
        let rank = self.rank();
        let mut all = vec![Vec::new(); self.world_size()];
        all[rank].extend_from_slice(message);
        let mut transfers = Transfers::new(call);
        for (peer, bytes) in all.iter_mut().enumerate().filter(|(peer, _)| *peer != rank) {
            transfers.send_bytes(peer, signature, message);
            transfers.receive_bytes(peer, signature, bytes);
        }
        transfers.run(&mut self.link, &mut self.pool)?;
        Ok(all)
    }

    fn barrier(&mut self) -> Result<()> {
        let signature = self.next(CallKind::Barrier);
        begin(&mut self.link, &signature)?;
        barrier(&mut self.link, &mut self.pool, signature)
    }

    fn fail(&mut self, reason: &str) {
        self.link.fail(reason);
    }

    fn observe(&mut self, observer: Observer) {
        self.observer = observer;
    }

    fn watch(&self) -> Watch {
        self.link.watch()
    }
}
