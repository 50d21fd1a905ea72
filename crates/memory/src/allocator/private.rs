//! Private pools: memory set apart for one use, such as a captured graph.
//!
//! A pool is created with a user count of 1. Opening it routes requests to it and adds a user. When the last
//! user has released it, a flush returns its memory. While any pool is open, events are not processed and no
//! memory is flushed to make room.

use super::Allocator;
use super::allocate::Request;
use crate::block::NONE;
use crate::error::AllocationError;
use crate::pool::{LARGE, Pool, PoolId, PrivatePool, SMALL, StreamFilter};
use crate::raw::{RawMemory, Stream};
use crate::statistics::PoolKind;

fn misuse(id: PoolId, problem: &'static str) -> AllocationError {
    AllocationError::InvalidPool { pool: (id.0, id.1), problem }
}

impl<R: RawMemory> Allocator<R> {
    /// Creates a private pool, or adds a user to it.
    ///
    /// # Errors
    /// [`AllocationError::InvalidPool`] for the default pool, or one whose last user has released it.
    pub fn create_pool(&mut self, id: PoolId) -> Result<(), AllocationError> {
        if id == PoolId::DEFAULT {
            return Err(misuse(id, "is the default pool"));
        }
        if let Some(pool) = self.private.iter_mut().find(|p| !p.vacant && p.id == id) {
            if pool.users == 0 {
                return Err(misuse(id, "was released by its last user and waits to be flushed"));
            }
            pool.users += 1;
            return Ok(());
        }
        let record = PrivatePool { id, users: 1, driver_allocations: 0, vacant: false };
        let position = self.private.iter().position(|p| p.vacant).unwrap_or(self.private.len());
        if position == self.private.len() {
            self.private.push(record);
            for kind in [PoolKind::Small, PoolKind::Large] {
                self.pools.push(Pool::new(kind, position as u32));
            }
        } else {
            self.private[position] = record;
        }
        let no_split = self.no_split.contains(&id);
        let streams = self.streams.len();
        for pool in &mut self.pools[2 + 2 * position..4 + 2 * position] {
            pool.grow_to(streams);
            pool.no_split = no_split;
            pool.lookups = 0;
        }
        Ok(())
    }

    /// Opens a private pool, creating it if it is new. Requests that the filter accepts are routed to it
    /// until it is closed. Of several open pools, the one opened last takes precedence.
    ///
    /// # Errors
    /// [`AllocationError::InvalidPool`] if it is already open, and the errors of [`Allocator::create_pool`].
    pub fn begin_pool(&mut self, id: PoolId, filter: StreamFilter) -> Result<(), AllocationError> {
        if self.open.iter().any(|(open, _)| *open == id) {
            return Err(misuse(id, "is open already"));
        }
        self.create_pool(id)?;
        self.open.push((id, filter));
        Ok(())
    }

    /// Closes a private pool. Its user count does not change.
    ///
    /// # Errors
    /// [`AllocationError::InvalidPool`] if it is not open.
    pub fn end_pool(&mut self, id: PoolId) -> Result<(), AllocationError> {
        let Some(position) = self.open.iter().position(|(open, _)| *open == id) else {
            return Err(misuse(id, "is not open"));
        };
        self.open.remove(position);
        Ok(())
    }

    /// Removes a user. After the last user's removal, a flush returns the pool's memory.
    ///
    /// # Errors
    /// [`AllocationError::InvalidPool`] if it has no user.
    pub fn release_pool_user(&mut self, id: PoolId) -> Result<(), AllocationError> {
        match self.private.iter_mut().find(|p| !p.vacant && p.id == id) {
            Some(pool) if pool.users > 0 => {
                pool.users -= 1;
                if pool.users == 0 {
                    self.freeable.entry(id, || ());
                }
                Ok(())
            }
            _ => Err(misuse(id, "has no user")),
        }
    }

    /// Returns the idle memory of a private pool without users to the driver, after waiting for its events.
    /// For the default pool, does the same as [`Allocator::empty_cache`].
    pub fn flush_pool(&mut self, id: PoolId) -> Result<(), AllocationError> {
        self.history.tick();
        self.flush(id)
    }

    /// Disables splitting of this pool's blocks from now on.
    pub fn set_no_split(&mut self, id: PoolId) {
        self.no_split.insert(id);
        let private = &self.private;
        for pool in &mut self.pools {
            let pool_id = private.get(pool.private as usize).map_or(PoolId::DEFAULT, |p| p.id);
            pool.no_split |= pool_id == id;
        }
    }

    /// Sets whether idle blocks of this pool may serve default requests that would fail otherwise.
    pub fn set_use_on_oom(&mut self, id: PoolId, allowed: bool) {
        if allowed {
            self.use_on_oom.entry(id, || ());
        } else if let Some(slot) = self.use_on_oom.find(id) {
            self.use_on_oom.erase(slot);
        }
    }

    /// Returns the index of the pool that serves a request while private pools are open.
    pub(super) fn routed(&self, default: u32, stream: Stream) -> u32 {
        match self.open.iter().rev().find(|(_, filter)| filter.accepts(stream)) {
            Some((id, _)) => {
                let (small, large) = self.pools_of(*id);
                if default == SMALL { small } else { large }
            }
            None => default,
        }
    }

    /// Returns the indices of the small and the large pool of `id`.
    pub(super) fn pools_of(&self, id: PoolId) -> (u32, u32) {
        match self.private.iter().position(|p| !p.vacant && p.id == id) {
            Some(position) => (2 + 2 * position as u32, 3 + 2 * position as u32),
            None => (SMALL, LARGE),
        }
    }

    pub(super) fn pool_id(&self, pool: u32) -> PoolId {
        self.private.get(self.pools[pool as usize].private as usize).map_or(PoolId::DEFAULT, |p| p.id)
    }

    /// Finds an idle block in the private pools that may serve default requests. Returns the block and its
    /// pool.
    pub(super) fn find_in_overflow(&mut self, request: &Request) -> Option<(u32, u32)> {
        if !self.pools[request.pool as usize].is_default() {
            return None;
        }
        let helpers: Vec<PoolId> = self.use_on_oom.iter().map(|(id, ())| id).collect();
        for id in helpers {
            let usable = self.private.iter().any(|p| !p.vacant && p.id == id && p.users > 0)
                && self.open.iter().all(|(open, _)| *open != id);
            if !usable {
                continue;
            }
            let (small, large) = self.pools_of(id);
            let pool = if request.pool == SMALL { small } else { large };
            let attempt = Request { pool, expandable: false, ..*request };
            if let Some(block) = self.find_idle(&attempt) {
                return Some((block, pool));
            }
        }
        None
    }

    /// Returns the bytes of idle blocks in private pools.
    pub(super) fn private_idle_bytes(&self) -> u64 {
        let private = self.pools.iter().filter(|pool| !pool.is_default());
        private.flat_map(|pool| pool.lists.iter()).flat_map(|list| list.iter()).map(|e| e.size).sum()
    }

    /// Counts one allocation by the driver for a private pool.
    pub(super) fn count_driver_allocation(&mut self, pool: u32) {
        if let Some(private) = self.private.get_mut(self.pools[pool as usize].private as usize) {
            private.driver_allocations += 1;
        }
    }

    /// Counts one segment, or contiguous pages, that a private pool returned to the driver.
    pub(super) fn count_driver_release(&mut self, pool: u32) {
        if let Some(private) = self.private.get_mut(self.pools[pool as usize].private as usize) {
            // Pages mapped by one request may be returned in several stretches.
            private.driver_allocations = private.driver_allocations.saturating_sub(1);
        }
    }

    /// Returns whether a flush may remove the pool's record: it has no user and no mapped block.
    ///
    /// With expandable segments, the count and the blocks can disagree. A record whose count stays above 0 is
    /// kept, and each further flush of it is counted, as in PyTorch. A pool that still has mapped blocks is
    /// kept too; PyTorch would lose them.
    pub(super) fn is_spent(&self, id: PoolId) -> bool {
        let (small, large) = self.pools_of(id);
        let counted = self.private.iter().any(|p| !p.vacant && p.id == id && p.driver_allocations > 0);
        !counted && self.blocks.iter().all(|(_, b)| !(b.mapped && (b.pool == small || b.pool == large)))
    }

    /// Makes the record of a pool that holds no memory available to other pools.
    pub(super) fn forget_pool(&mut self, id: PoolId) -> Result<(), AllocationError> {
        let (small, large) = self.pools_of(id);
        self.drop_unmapped_ranges(small)?;
        self.drop_unmapped_ranges(large)?;
        if let Some(pool) = self.private.iter_mut().find(|p| !p.vacant && p.id == id) {
            pool.vacant = true;
        }
        debug_assert_ne!(self.pools[small as usize].private, NONE);
        Ok(())
    }
}
