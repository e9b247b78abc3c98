//! What a handle remembers of products: planned problems ([`PlanCache`]), measured choices, and what was logged.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::plan::GemmPlan;
use crate::gpu::gemm::record::TuneTable;
use crate::gpu::handle::Handle;

/// Plans kept behind [`Handle::scaled_gemm`]: a model has a few dozen shapes at each batch size. A plan is some kilobytes of
/// host memory, and no device memory.
const CACHED_PLANS: usize = 64;

/// Problems whose choice was logged, at the most: then they are forgotten, and logged again.
const ANNOUNCED: usize = 4096;

/// The slot of products in a handle.
pub(crate) struct PlanState {
    pub(crate) plans: PlanCache<GemmDesc, GemmPlan>,
    pub(crate) tuning: TuneTable,
    announced: HashSet<GemmDesc>,
}

impl Default for PlanState {
    fn default() -> Self {
        Self { plans: PlanCache::new(CACHED_PLANS), tuning: TuneTable::default(), announced: HashSet::new() }
    }
}

impl PlanState {
    /// True the first time a problem is planned, so that its choice is logged once.
    pub(crate) fn is_first_time(&mut self, desc: &GemmDesc) -> bool {
        if self.announced.len() >= ANNOUNCED {
            self.announced.clear();
        }
        self.announced.insert(*desc)
    }
}

impl Handle {
    /// Measured choices for [`Handle::plan`] and [`Handle::scaled_gemm`]. Forgets all cached plans; frees no device memory.
    ///
    /// Records of another GPU or library version stay in the table and are passed over.
    pub fn set_tuning(&self, table: TuneTable) {
        let mut state = self.slot::<PlanState>();
        state.tuning = table;
        state.plans.clear();
    }

    /// Forgets all cached plans. Frees no device memory: scratch memory is the handle's ([`Handle::trim_scratch`]).
    pub fn clear_plans(&self) {
        self.slot::<PlanState>().plans.clear();
    }

    /// Number of cached plans.
    pub fn cached_plans(&self) -> usize {
        self.slot::<PlanState>().plans.len()
    }
}

/// At most `max_entries` values, the longest unused forgotten first. A pure data structure: it knows no GPU.
///
/// A look-up is one hash and no search; only an insertion into a full cache walks the entries.
pub struct PlanCache<K, V> {
    entries: HashMap<K, Entry<V>>,
    max_entries: usize,
    clock: u64,
}

struct Entry<V> {
    value: V,
    used: u64,
}

impl<K: Hash + Eq + Clone, V> PlanCache<K, V> {
    /// An empty cache; `max_entries` is at least 1.
    pub fn new(max_entries: usize) -> Self {
        Self { entries: HashMap::new(), max_entries: max_entries.max(1), clock: 0 }
    }

    /// The value of this key, now the last used one.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(&mut entry.value)
    }

    /// Puts a value in and gives it back; forgets another if the cache is full. Allocates.
    pub fn insert(&mut self, key: K, value: V) -> &mut V {
        if !self.entries.contains_key(&key) && self.entries.len() >= self.max_entries {
            let oldest = self.entries.iter().min_by_key(|(_, e)| e.used).map(|(k, _)| k.clone());
            oldest.and_then(|oldest| self.remove(&oldest));
        }
        self.clock += 1;
        let entry = Entry { value, used: self.clock };
        &mut self.entries.entry(key).insert_entry(entry).into_mut().value
    }

    /// Takes a value out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key).map(|entry| entry.value)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_can_move_to_another_thread() {
        fn send<T: Send>() {}
        send::<GemmPlan>();
        send::<PlanState>();
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let mut cache = PlanCache::new(3);
        for key in 0..3 {
            cache.insert(key, key * 10);
        }
        assert_eq!(cache.get_mut(&0), Some(&mut 0));
        *cache.insert(3, 30) += 1;
        assert_eq!(cache.get_mut(&1), None);
        assert_eq!(cache.len(), 3);
        assert_eq!(cache.get_mut(&0), Some(&mut 0));
        assert_eq!(cache.get_mut(&3), Some(&mut 31));
    }

    #[test]
    fn a_key_that_is_there_is_replaced_and_nothing_forgotten() {
        let mut cache = PlanCache::new(2);
        cache.insert("a", 1);
        cache.insert("b", 2);
        cache.insert("b", 3);
        assert_eq!((cache.len(), cache.get_mut(&"a")), (2, Some(&mut 1)));
        assert_eq!((cache.remove(&"b"), cache.remove(&"b"), cache.len()), (Some(3), None, 1));
        cache.clear();
        assert!(cache.is_empty());
    }

    #[test]
    fn one_entry_is_always_kept() {
        let mut cache = PlanCache::new(0);
        cache.insert(1, "one");
        assert_eq!(cache.get_mut(&1), Some(&mut "one"));
        cache.insert(2, "two");
        assert_eq!((cache.len(), cache.get_mut(&1)), (1, None));
    }
}
