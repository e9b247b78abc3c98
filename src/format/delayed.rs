//! [`DelayedScaling`]: the scale of a step from the amax of steps before it.

/// Which past amax decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AmaxHistory {
    /// The largest of the window.
    #[default]
    Max,
    /// That of the step just finished.
    MostRecent,
}

named!(AmaxHistory, "amax history rule", Max => "max", MostRecent => "most-recent");

/// TransformerEngine's delayed scaling: a cast does not wait for its own amax, but takes a factor from those of past steps.
///
/// [`delayed_update`](crate::reference::delayed_update) has the formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DelayedScaling {
    /// Steps whose amax are remembered, at least 1.
    pub window: usize,
    /// The factor is `2^-margin` of the one that fills the format's range.
    pub margin: i32,
    /// Which amax of the window decides.
    pub rule: AmaxHistory,
}

impl Default for DelayedScaling {
    /// TransformerEngine's: 1024 steps, no margin, the largest.
    fn default() -> Self {
        Self { window: 1024, margin: 0, rule: AmaxHistory::Max }
    }
}
