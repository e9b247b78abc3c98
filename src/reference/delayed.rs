//! Delayed scaling: the factor of the next step from the amax of past steps.

use crate::format::{AmaxHistory, Fp8Format, GroupScale};

/// `encode = fl(fl(MAX * 2^-margin) / amax)`, `scale = fl(1 / encode)`: TransformerEngine's update after a step.
///
/// `history[0]` is the amax of the step just finished. An amax of 0, infinity or NaN keeps `previous_encode`; an overflow
/// gives FLT_MAX. Afterwards the history is rotated left by one and slot 0 cleared for the next step. An empty history
/// keeps `previous_encode`. Allocates nothing.
pub fn delayed_update(
    history: &mut [f32],
    previous_encode: f32,
    format: Fp8Format,
    margin: i32,
    rule: AmaxHistory,
) -> GroupScale {
    let amax = match rule {
        AmaxHistory::Max => history.iter().copied().fold(0.0, f32::max),
        AmaxHistory::MostRecent => history.first().copied().unwrap_or(0.0),
    };
    let mut encode = previous_encode;
    if amax.is_finite() && amax > 0.0 {
        encode = format.max() * 2f32.powi(margin.saturating_neg()) / amax;
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

/// [`delayed_update`] of a tensor that may not have been seen in the step: with an amax of 0 it keeps factor and history, as in
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
        _ => delayed_update(history, previous_encode, format, margin, rule),
    }
}
