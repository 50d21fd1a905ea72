//! Segments of host memory: anonymous mappings. They are zero on first touch, so every byte is initialised.
#![allow(unsafe_code)] // releasing pages inside a reserved range

use std::collections::HashMap;

use memmap2::{Advice, MmapMut, MmapOptions, UncheckedAdvice};
use memory::{Capacity, EventId, Placement, RawError, RawMemory, Stream};

#[derive(Debug)]
pub(crate) struct HostMemory {
    total: u64,
    used: u64,
    next_order: u64,
    mappings: HashMap<u64, MmapMut>,
}

impl HostMemory {
    pub(crate) fn new(total: u64) -> Self {
        HostMemory { total, used: 0, next_order: 0, mappings: HashMap::new() }
    }

    fn keep(&mut self, mapping: MmapMut) -> Placement {
        let address = mapping.as_ptr().expose_provenance() as u64;
        let order = self.next_order;
        self.next_order += mapping.len() as u64;
        self.mappings.insert(address, mapping);
        Placement { address, order }
    }

    fn take(&mut self, bytes: u64) -> Result<(), RawError> {
        if bytes > self.total.saturating_sub(self.used) {
            return Err(RawError::OutOfMemory);
        }
        self.used += bytes;
        Ok(())
    }

    fn mapping(bytes: u64, options: &MmapOptions) -> Result<MmapMut, RawError> {
        let length = usize::try_from(bytes).map_err(|_| RawError::OutOfMemory)?;
        let mut options = options.clone();
        let mapping = options.len(length).map_anon().map_err(|_| RawError::OutOfMemory)?;
        // With huge pages, more would be resident than blocks lie on. A kernel without them refuses.
        let _ = mapping.advise(Advice::NoHugePage);
        Ok(mapping)
    }
}

impl RawMemory for HostMemory {
    fn allocate(&mut self, bytes: u64, _stream: Stream) -> Result<Placement, RawError> {
        self.take(bytes)?;
        match Self::mapping(bytes, &MmapOptions::new()) {
            Ok(mapping) => Ok(self.keep(mapping)),
            Err(error) => {
                self.used -= bytes;
                Err(error)
            }
        }
    }

    fn free(&mut self, address: u64, bytes: u64) -> Result<(), RawError> {
        self.mappings.remove(&address).ok_or_else(|| unknown(address))?;
        self.used -= bytes;
        Ok(())
    }

    fn reserve(&mut self, bytes: u64, _stream: Stream) -> Result<Placement, RawError> {
        let mapping = Self::mapping(bytes, MmapOptions::new().no_reserve_swap())?;
        Ok(self.keep(mapping))
    }

    fn unreserve(&mut self, address: u64, _bytes: u64) -> Result<(), RawError> {
        self.mappings.remove(&address).map(drop).ok_or_else(|| unknown(address))
    }

    fn map(&mut self, _address: u64, bytes: u64, _page: u64, _stream: Stream) -> Result<(), RawError> {
        self.take(bytes)
    }

    fn unmap(&mut self, address: u64, bytes: u64, _page: u64) -> Result<(), RawError> {
        let range =
            self.mappings.iter().find(|(start, m)| **start <= address && address < **start + m.len() as u64);
        let (start, mapping) = range.ok_or_else(|| unknown(address))?;
        let offset = (address - start) as usize;
        // SAFETY: the allocator unmaps idle pages only, so no slice points into them; afterwards the pages
        // read as zero.
        let advised =
            unsafe { mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, bytes as usize) };
        advised.map_err(|e| RawError::Driver {
            code: i64::from(e.raw_os_error().unwrap_or(0)),
            text: e.to_string(),
        })?;
        self.used -= bytes;
        Ok(())
    }

    fn capacity(&self) -> Capacity {
        Capacity { free: self.total.saturating_sub(self.used), total: self.total }
    }

    fn record_event(&mut self, _stream: Stream) -> Result<EventId, RawError> {
        Ok(EventId(0))
    }

    fn event_done(&mut self, _event: EventId) -> Result<bool, RawError> {
        Ok(true)
    }

    fn event_wait(&mut self, _event: EventId) -> Result<(), RawError> {
        Ok(())
    }
}

fn unknown(address: u64) -> RawError {
    RawError::Driver { code: 0, text: format!("no host mapping starts at {address:#x}") }
}

pub(crate) fn processor_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    named.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}
