//! A small map with the iteration order of the hash table in PyTorch's allocator.
//!
//! Some counters depend on the order in which events of several streams are processed. Therefore the table is
//! PyTorch's (the design of `ska::flat_hash_map`): robin-hood probing without wrap-around from a
//! Fibonacci-hashed home slot, at most half full. It is meant for a few streams only.

/// A key with its hash in PyTorch.
pub(crate) trait HashKey: Copy + Eq {
    fn hash(self) -> u64;
}

#[derive(Clone, Debug)]
struct Slot<K, V> {
    key: K,
    value: V,
    /// Number of slots between this slot and the home slot.
    distance: usize,
}

/// A hash map with PyTorch's iteration order.
#[derive(Clone, Debug)]
pub(crate) struct Table<K, V> {
    slots: Vec<Option<Slot<K, V>>>,
    capacity: usize,
    len: usize,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Table { slots: Vec::new(), capacity: 0, len: 0 }
    }
}

fn probe_limit(capacity: usize) -> usize {
    (capacity.ilog2() as usize).max(4)
}

impl<K: HashKey, V> Table<K, V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of physical slots: the upper bound of [`Table::slot`]'s argument.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Returns the key and value in a slot, for iterations that erase entries.
    pub(crate) fn slot(&mut self, slot: usize) -> Option<(K, &mut V)> {
        self.slots.get_mut(slot)?.as_mut().map(|s| (s.key, &mut s.value))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.slots.iter().flatten().map(|s| (s.key, &s.value))
    }

    fn home(&self, key: K) -> usize {
        let shift = 64 - self.capacity.ilog2();
        (key.hash().wrapping_mul(11_400_714_819_323_198_485) >> shift) as usize
    }

    pub(crate) fn find(&self, key: K) -> Option<usize> {
        self.slots.iter().position(|s| s.as_ref().is_some_and(|s| s.key == key))
    }

    /// Returns the value of `key`, inserting it if absent.
    pub(crate) fn entry(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        let at = match self.find(key) {
            Some(at) => at,
            None => {
                self.insert(key, value());
                self.find(key).unwrap_or_default()
            }
        };
        #[expect(clippy::expect_used, reason = "the key was found, or was inserted a line ago")]
        let slot = self.slots[at].as_mut().expect("the slot of a key that is present");
        &mut slot.value
    }

    fn insert(&mut self, key: K, value: V) {
        if self.capacity == 0 || (self.len + 1) * 2 > self.capacity {
            self.grow();
        }
        let mut carried = Slot { key, value, distance: 0 };
        let mut at = self.home(key);
        let mut insertion: Option<usize> = None;
        loop {
            if carried.distance == probe_limit(self.capacity) {
                // A displaced entry that finds no slot is the first to be inserted after growing.
                if let Some(first) = insertion
                    && let Some(slot) = self.slots[first].as_mut()
                {
                    std::mem::swap(&mut slot.key, &mut carried.key);
                    std::mem::swap(&mut slot.value, &mut carried.value);
                }
                self.grow();
                return self.insert(carried.key, carried.value);
            }
            match &mut self.slots[at] {
                None => {
                    self.slots[at] = Some(carried);
                    self.len += 1;
                    return;
                }
                Some(slot) if slot.distance < carried.distance => {
                    std::mem::swap(slot, &mut carried);
                    insertion.get_or_insert(at);
                }
                Some(_) => {}
            }
            carried.distance += 1;
            at += 1;
        }
    }

    fn grow(&mut self) {
        self.capacity = (self.capacity * 2).max(4);
        let slots = self.capacity + probe_limit(self.capacity);
        let old = std::mem::replace(&mut self.slots, (0..slots).map(|_| None).collect());
        self.len = 0;
        for slot in old.into_iter().flatten() {
            self.insert(slot.key, slot.value);
        }
    }

    /// Empties a slot. Displaced entries after it move back by one.
    pub(crate) fn erase(&mut self, slot: usize) -> Option<V> {
        let erased = self.slots.get_mut(slot)?.take()?;
        self.len -= 1;
        let mut at = slot;
        while let Some(mut next) = self.slots.get_mut(at + 1).and_then(|s| s.take_if(|s| s.distance > 0)) {
            next.distance -= 1;
            self.slots[at] = Some(next);
            at += 1;
        }
        Some(erased.value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    impl HashKey for u64 {
        fn hash(self) -> u64 {
            self
        }
    }

    proptest! {
        #[test]
        fn holds_what_a_map_holds(operations in prop::collection::vec((any::<bool>(), 0u64..40), 0..200)) {
            let mut table = Table::default();
            let mut model = BTreeMap::new();
            for (step, (insert, key)) in operations.into_iter().enumerate() {
                let key = key << 33 | key;
                if insert {
                    let expected = *model.entry(key).or_insert(step);
                    prop_assert_eq!(*table.entry(key, || step), expected);
                } else {
                    let erased = table.find(key).and_then(|slot| table.erase(slot));
                    prop_assert_eq!(erased, model.remove(&key));
                }
                let mut held: Vec<_> = table.iter().map(|(k, v)| (k, *v)).collect();
                held.sort_unstable();
                prop_assert_eq!(held, model.iter().map(|(k, v)| (*k, *v)).collect::<Vec<_>>());
            }
        }

        #[test]
        fn slots_stay_near_home(keys in prop::collection::btree_set(any::<u64>(), 0..100)) {
            let mut table = Table::default();
            for &key in &keys {
                table.entry(key, || ());
            }
            for (at, slot) in table.slots.iter().enumerate() {
                if let Some(slot) = slot {
                    prop_assert_eq!(table.home(slot.key) + slot.distance, at);
                    prop_assert!(slot.distance < probe_limit(table.capacity));
                }
            }
        }
    }
}
