//! [`PlanCache`]: a bounded map that forgets what was used longest ago. A pure data structure: it knows no GPU.

use std::collections::HashMap;
use std::hash::Hash;

/// At most `max_entries` values, weighing at most `max_bytes` together, the longest unused forgotten first.
///
/// A look-up is one hash and no search; only an insertion into a full cache walks the entries. A value heavier than
/// `max_bytes` is still kept, alone, until the next insertion: a cache that refused it would plan at every call.
pub struct PlanCache<K, V> {
    entries: HashMap<K, Entry<V>>,
    max_entries: usize,
    max_bytes: usize,
    bytes: usize,
    clock: u64,
}

struct Entry<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<K: Hash + Eq + Clone, V> PlanCache<K, V> {
    /// An empty cache; `max_entries` is at least 1.
    pub fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self { entries: HashMap::new(), max_entries: max_entries.max(1), max_bytes, bytes: 0, clock: 0 }
    }

    /// The value of this key, now the last used one.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(&mut entry.value)
    }

    /// Puts a value of this weight in and gives it back; forgets others as the bounds demand. Allocates.
    pub fn insert(&mut self, key: K, value: V, bytes: usize) -> &mut V {
        self.remove(&key);
        while !self.entries.is_empty()
            && (self.entries.len() >= self.max_entries || self.bytes.saturating_add(bytes) > self.max_bytes)
        {
            let oldest = self.entries.iter().min_by_key(|(_, e)| e.used).map(|(k, _)| k.clone());
            let Some(oldest) = oldest else { break };
            self.remove(&oldest);
        }
        self.clock += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        let entry = Entry { value, bytes, used: self.clock };
        &mut self.entries.entry(key).insert_entry(entry).into_mut().value
    }

    /// Takes a value out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        Some(entry.value)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Weight of all values together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_goes_first() {
        let mut cache = PlanCache::new(3, usize::MAX);
        for key in 0..3 {
            cache.insert(key, key * 10, 0);
        }
        assert_eq!(cache.get_mut(&0), Some(&mut 0));
        *cache.insert(3, 30, 0) += 1;
        assert_eq!(cache.get_mut(&1), None);
        assert_eq!(cache.len(), 3);
        assert_eq!(cache.get_mut(&0), Some(&mut 0));
        assert_eq!(cache.get_mut(&3), Some(&mut 31));
    }

    #[test]
    fn weight_is_bounded_and_counted() {
        let mut cache = PlanCache::new(64, 100);
        cache.insert("a", (), 60);
        cache.insert("b", (), 30);
        assert_eq!(cache.bytes(), 90);
        cache.insert("c", (), 20);
        assert_eq!((cache.get_mut(&"a").is_some(), cache.bytes(), cache.len()), (false, 50, 2));
        // Too heavy for the bound: kept alone, and the first to go.
        cache.insert("d", (), 1000);
        assert_eq!((cache.len(), cache.bytes()), (1, 1000));
        cache.insert("e", (), 1);
        assert_eq!((cache.get_mut(&"d").is_some(), cache.len(), cache.bytes()), (false, 1, 1));
        // The same key again replaces value and weight.
        cache.insert("e", (), 7);
        assert_eq!((cache.len(), cache.bytes()), (1, 7));
        assert_eq!(cache.remove(&"e"), Some(()));
        assert!(cache.is_empty() && cache.bytes() == 0);
        cache.insert("f", (), 1);
        cache.clear();
        assert_eq!((cache.len(), cache.bytes()), (0, 0));
    }

    #[test]
    fn one_entry_is_always_kept() {
        let mut cache = PlanCache::new(0, 0);
        cache.insert(1, "one", 5);
        assert_eq!(cache.get_mut(&1), Some(&mut "one"));
    }
}
