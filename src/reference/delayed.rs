//! Delayed scaling: the factor of the next step from the amax of past steps.

use crate::error::Result;
use crate::format::{AmaxHistory, DelayedScaling, DelayedState, Fp8Format, GroupScale};

/// What helps where a factor of the step before is none.
pub(super) const REMEDY: &str = "pass what the update before gave, and 1 before the first";

/// `encode = fl(fl(MAX * 2^-margin) / amax)`, `scale = fl(1 / encode)`: TransformerEngine's update after a step.
///
/// `history[0]` is the amax of the step just finished. With [`AmaxHistory::Max`] the amax is the largest of the history, NaN and negative numbers
/// ignored: one of 0 (there is nothing else) or infinity keeps `previous_encode`. With [`AmaxHistory::MostRecent`] it is `history[0]`: 0, infinity,
/// NaN or a negative number keeps `previous_encode`. An overflow gives FLT_MAX. Afterwards the history is rotated left by one and slot 0 cleared for the next step. An empty history
/// keeps `previous_encode`. Allocates nothing.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a margin beyond [`DelayedScaling::MAX_MARGIN`], and unless `previous_encode` and its inverse are finite and
/// above 0; the history is not touched then.
pub fn delayed_update(
    history: &mut [f32],
    previous_encode: f32,
    format: Fp8Format,
    margin: i32,
    rule: AmaxHistory,
) -> Result<GroupScale> {
    DelayedScaling::check_margin(margin)?;
    DelayedState::check_encode(previous_encode, || "as the factor of the step before".into(), REMEDY)?;
    Ok(update(history, previous_encode, format, margin, rule))
}

/// [`delayed_update`] with a margin that was checked.
fn update(history: &mut [f32], previous_encode: f32, format: Fp8Format, margin: i32, rule: AmaxHistory) -> GroupScale {
    let amax = match rule {
        AmaxHistory::Max => history.iter().copied().fold(0.0, f32::max),
        AmaxHistory::MostRecent => history.first().copied().unwrap_or(0.0),
    };
    let mut encode = previous_encode;
    if amax.is_finite() && amax > 0.0 {
        encode = format.max() * 2f32.powi(-margin) / amax;
    }
    if encode.is_infinite() {
        encode = f32::MAX;
    }
    if !history.is_empty() {
        history.rotate_left(1);
        history[0] = 0.0;
    }
    GroupScale { encode, scale: 1.0 / encode }
}

/// [`update`] of a tensor that may not have been seen in the step: with an amax of 0 it keeps factor and history, as in
/// TransformerEngine's update of a whole model. An expert without tokens and a weight that stays the same forget nothing.
pub(super) fn delayed_update_if_seen(
    history: &mut [f32],
    previous_encode: f32,
    format: Fp8Format,
    margin: i32,
    rule: AmaxHistory,
) -> GroupScale {
    match history.first() {
        Some(&0.0) => GroupScale { encode: previous_encode, scale: 1.0 / previous_encode },
        _ => update(history, previous_encode, format, margin, rule),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn margins_that_leave_the_range_are_refused() {
        for margin in [9, -9, 200, i32::MIN, i32::MAX] {
            let mut history = [2.0, 4.0];
            let said =
                delayed_update(&mut history, 1.0, Fp8Format::E4M3, margin, AmaxHistory::Max).unwrap_err().to_string();
            let words = [&format!("a margin of {margin}"), "beyond 8 either way", "use 0"];
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
            assert_eq!(history, [2.0, 4.0], "written");
        }
        let next = delayed_update(&mut [2.0, 4.0], 1.0, Fp8Format::E4M3, -8, AmaxHistory::Max).unwrap();
        assert_eq!(next, GroupScale { encode: 112.0 * 256.0, scale: 1.0 / (112.0 * 256.0) });
    }

    /// It was taken, and a scale of infinity, NaN or a negative number given.
    #[test]
    fn factors_that_no_update_gives_are_refused() {
        for previous in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-45] {
            let mut history = [0.0, 4.0];
            let said = delayed_update(&mut history, previous, Fp8Format::E4M3, 0, AmaxHistory::Max).unwrap_err();
            let said = said.to_string();
            let words = [
                &format!("the number {} as the factor of the step before", crate::error::number(previous)),
                "factors and their inverses are finite and above 0",
                "pass what the update before gave",
            ];
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
            assert_eq!(history, [0.0, 4.0], "written");
        }
        for previous in [f32::MAX, f32::MIN_POSITIVE] {
            let kept = delayed_update(&mut [0.0], previous, Fp8Format::E4M3, 0, AmaxHistory::Max).unwrap();
            assert_eq!(kept, GroupScale { encode: previous, scale: 1.0 / previous });
        }
    }

    /// As the documentation says.
    #[test]
    fn nan_in_a_history_is_ignored_by_the_largest_and_keeps_the_factor_as_the_latest() {
        for (rule, want) in [(AmaxHistory::Max, 224.0), (AmaxHistory::MostRecent, 7.0)] {
            for bad in [f32::NAN, -3.0] {
                let next = delayed_update(&mut [bad, 2.0], 7.0, Fp8Format::E4M3, 0, rule).unwrap();
                assert_eq!(next.encode, want, "{rule}");
            }
        }
    }

    /// As docs/training.md tells.
    #[test]
    fn an_infinity_keeps_the_factor_until_it_leaves_the_window() {
        for (rule, kept) in [(AmaxHistory::Max, 4), (AmaxHistory::MostRecent, 1)] {
            let (mut history, mut encode) = ([f32::INFINITY, 0.0, 0.0, 0.0], 7.0);
            for step in 0..6 {
                encode = delayed_update_if_seen(&mut history, encode, Fp8Format::E4M3, 0, rule).encode;
                assert_eq!(encode, if step < kept { 7.0 } else { 224.0 }, "{rule}, step {step}");
                history[0] = 2.0;
            }
        }
    }
}
