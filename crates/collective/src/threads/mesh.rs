//! The message queues between the ranks of a group of threads, and their collectives in progress.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::call::Signature;
use crate::link::Message;
use crate::threads::world::World;

/// Messages per queue: with payloads of 256 KiB, at most 1 MiB for each pair and direction.
const QUEUED: usize = 4;

/// A group of ranks that are threads.
#[derive(Debug)]
pub(crate) struct Mesh {
    pub(crate) world: Arc<World>,
    /// World numbers of the ranks, by number in the group.
    pub(crate) members: Vec<usize>,
    /// Queues, by sender and then receiver.
    queues: Vec<(Sender<Message>, Receiver<Message>)>,
    ledger: Mutex<HashMap<u64, Entry>>,
    groups: Mutex<HashMap<(u64, usize), Group>>,
}

/// A collective that some ranks have begun.
#[derive(Debug)]
struct Entry {
    signature: Signature,
    first: usize,
    begun: Vec<bool>,
}

/// A group that was split off, kept until all its ranks have fetched it.
#[derive(Debug)]
struct Group {
    mesh: Arc<Mesh>,
    taken: usize,
}

impl Mesh {
    pub(crate) fn new(world: Arc<World>, members: Vec<usize>) -> Arc<Self> {
        let queues = (0..members.len() * members.len()).map(|_| bounded(QUEUED)).collect();
        Arc::new(Mesh { world, members, queues, ledger: Mutex::default(), groups: Mutex::default() })
    }

    pub(crate) fn sender(&self, from: usize, to: usize) -> &Sender<Message> {
        &self.queues[from * self.members.len() + to].0
    }

    pub(crate) fn receiver(&self, from: usize, to: usize) -> &Receiver<Message> {
        &self.queues[from * self.members.len() + to].1
    }

    fn ledger(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that `rank` begins a collective.
    ///
    /// # Errors
    /// Another rank began a different call with the same number: the first such rank and its signature.
    pub(crate) fn begin(&self, rank: usize, signature: &Signature) -> Result<(), (usize, Signature)> {
        let mut ledger = self.ledger();
        let entry = ledger.entry(signature.call.sequence).or_insert_with(|| Entry {
            signature: *signature,
            first: rank,
            begun: vec![false; self.members.len()],
        });
        if !entry.signature.agrees(signature) {
            return Err((entry.first, entry.signature));
        }
        entry.begun[rank] = true;
        if entry.begun.iter().all(|begun| *begun) {
            ledger.remove(&signature.call.sequence);
        }
        Ok(())
    }

    /// Returns the first rank that has not begun a collective that others are in.
    pub(crate) fn absent(&self, sequence: u64) -> Option<usize> {
        self.ledger().get(&sequence).and_then(|entry| entry.begun.iter().position(|begun| !begun))
    }

    /// Returns the mesh of a group that is split off; its first rank to arrive creates it.
    pub(crate) fn split(&self, sequence: u64, group: usize, members: &[usize]) -> Arc<Mesh> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = groups.entry((sequence, group)).or_insert_with(|| {
            let members = members.iter().map(|member| self.members[*member]).collect();
            Group { mesh: Mesh::new(Arc::clone(&self.world), members), taken: 0 }
        });
        entry.taken += 1;
        let mesh = Arc::clone(&entry.mesh);
        if entry.taken == mesh.members.len() {
            groups.remove(&(sequence, group));
        }
        mesh
    }
}
