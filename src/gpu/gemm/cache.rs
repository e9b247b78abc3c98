//! What a handle remembers of products: planned problems, measured choices, and what was logged.

use std::collections::HashSet;
use std::num::NonZeroUsize;

use lru::LruCache;

use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::plan::GemmPlan;
use crate::gpu::gemm::record::table::TuneTable;
use crate::gpu::handle::Handle;

/// Plans kept behind [`Handle::scaled_gemm`]: a model has a few dozen shapes at each batch size. A plan is some kilobytes of
/// host memory, and no device memory.
const CACHED_PLANS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Problems whose choice was logged, at the most: then they are forgotten, and logged again.
const ANNOUNCED: usize = 4096;

/// The slot of products in a handle.
pub(crate) struct PlanState {
    /// The longest unused is forgotten first.
    pub(crate) plans: LruCache<GemmDesc, GemmPlan>,
    pub(crate) tuning: TuneTable,
    announced: HashSet<GemmDesc>,
}

impl Default for PlanState {
    fn default() -> Self {
        Self { plans: LruCache::new(CACHED_PLANS), tuning: TuneTable::default(), announced: HashSet::new() }
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
    /// Measured choices for [`Handle::plan`] and [`Handle::scaled_gemm`], in the place of those before. Forgets all cached plans; frees no device memory.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_can_move_to_another_thread() {
        fn send<T: Send>() {}
        send::<GemmPlan>();
        send::<PlanState>();
    }
}
