//! [`DelayedScaling`]: the scale of a step from the amax of steps before it, and [`DelayedState`], what of a tensor goes from step to step.

use crate::error::{Error, Result, number};

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
    window: usize,
    margin: i32,
    rule: AmaxHistory,
}

impl DelayedScaling {
    /// The longest window.
    pub const MAX_WINDOW: usize = 1 << 20;
    /// The largest margin, of either sign: up to 8 the factor of every finite amax, and its inverse, are finite numbers above 0.
    pub const MAX_MARGIN: i32 = 8;

    /// Remembers the amax of `window` steps (TransformerEngine's `amax_history_len`), of which `rule` chooses (`amax_compute_algo`); the factor
    /// is `2^-margin` of the one that fills the format's range.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless the window is 1 to [`Self::MAX_WINDOW`] and the margin at most [`Self::MAX_MARGIN`].
    pub fn new(window: usize, margin: i32, rule: AmaxHistory) -> Result<Self> {
        if !(1..=Self::MAX_WINDOW).contains(&window) {
            return Err(Error::unsupported(
                format!("delayed scaling with a window of {window} steps"),
                format!("a factor comes from the amax of 1 to {} steps", Self::MAX_WINDOW),
                "TransformerEngine's default is 1024; for the tensor's own amax use current scaling",
            ));
        }
        Self::check_margin(margin)?;
        Ok(Self { window, margin, rule })
    }

    /// Refuses a margin beyond [`Self::MAX_MARGIN`].
    pub(crate) fn check_margin(margin: i32) -> Result<()> {
        if margin.unsigned_abs() <= Self::MAX_MARGIN.unsigned_abs() {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("delayed scaling with a margin of {margin}"),
            format!("beyond {} either way factors leave the range of FP32", Self::MAX_MARGIN),
            "use 0, or a few powers of two",
        ))
    }

    /// Steps whose amax are remembered.
    pub const fn window(self) -> usize {
        self.window
    }

    /// The factor is `2^-margin` of the one that fills the format's range.
    pub const fn margin(self) -> i32 {
        self.margin
    }

    /// Which amax of the window decides.
    pub const fn rule(self) -> AmaxHistory {
        self.rule
    }
}

impl Default for DelayedScaling {
    /// TransformerEngine's: 1024 steps, no margin, the largest.
    fn default() -> Self {
        Self { window: 1024, margin: 0, rule: AmaxHistory::Max }
    }
}

/// What delayed scaling knows of a tensor: what a checkpoint of the training keeps, and what ranks that share a tensor agree on.
#[derive(Debug, Clone, PartialEq)]
pub struct DelayedState {
    /// The factor of this step.
    pub encode: f32,
    /// The amax of the step that runs, then those of steps before it, as [`delayed_update`](crate::reference::delayed_update) has them.
    pub history: Vec<f32>,
}

impl DelayedState {
    /// Before the first step: the factor 1, and no amax.
    pub(crate) fn new(rule: DelayedScaling) -> Self {
        Self { encode: 1.0, history: vec![0.0; rule.window()] }
    }

    /// Refuses a factor that no update gives.
    pub(crate) fn check_encode(encode: f32, place: impl FnOnce() -> String, remedy: &str) -> Result<()> {
        if is_factor(encode) {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("the number {} {}", number(encode), place()),
            "factors and their inverses are finite and above 0",
            remedy,
        ))
    }

    /// Refuses states of X, W and dY that none can be.
    pub(crate) fn check_all(states: &[Self; 3], rule: DelayedScaling) -> Result<()> {
        for (name, Self { encode, history }) in ["X", "W", "dY"].iter().zip(states) {
            if history.len() != rule.window() {
                return Err(Error::shape(
                    format!("amax history of {name}"),
                    format!("{} steps", history.len()),
                    format!("must be the {} of the recipe's window", rule.window()),
                    "take a state of a layer with this window",
                ));
            }
            let (place, remedy) = (|| format!("in the delayed state of {name}"), "take what delayed_states gave");
            Self::check_encode(*encode, place, remedy)?;
            if let Some(bad) = history.iter().find(|amax| amax.is_nan() || **amax < 0.0) {
                return Err(Error::unsupported(
                    format!("the amax {} {}", number(*bad), place()),
                    "an amax is not negative, and no NaN",
                    remedy,
                ));
            }
        }
        Ok(())
    }
}

fn is_factor(encode: f32) -> bool {
    encode.is_finite() && encode > 0.0 && (1.0 / encode).is_finite()
}
