//! How far two results are apart, and what stands for many numbers.

/// Signal to quantization noise in decibels: `20 log10(|reference| / |reference - got|)`, in f64; infinite if equal.
///
/// # Panics
/// If the lengths differ.
pub fn sqnr_db<R: Copy + Into<f64>, G: Copy + Into<f64>>(reference: &[R], got: &[G]) -> f64 {
    assert_eq!(reference.len(), got.len(), "sqnr_db needs two slices of one length");
    let (mut signal, mut noise) = (0.0f64, 0.0f64);
    for (r, g) in reference.iter().zip(got) {
        let (r, g): (f64, f64) = ((*r).into(), (*g).into());
        signal += r * r;
        noise += (r - g) * (r - g);
    }
    if noise == 0.0 { f64::INFINITY } else { 20.0 * (signal.sqrt() / noise.sqrt()).log10() }
}

/// DeepGEMM's `1 - 2 <x, y> / (<x, x> + <y, y>)` in f64; 0 if both are zero.
///
/// # Panics
/// If the lengths differ.
pub fn calc_diff<X: Copy + Into<f64>, Y: Copy + Into<f64>>(x: &[X], y: &[Y]) -> f64 {
    assert_eq!(x.len(), y.len(), "calc_diff needs two slices of one length");
    let (mut cross, mut square) = (0.0f64, 0.0f64);
    for (x, y) in x.iter().zip(y) {
        let (x, y): (f64, f64) = ((*x).into(), (*y).into());
        cross += x * y;
        square += x * x + y * y;
    }
    if square == 0.0 { 0.0 } else { 1.0 - 2.0 * cross / square }
}

/// The median of numbers in their order: of an even number of them the mean of the two in the middle. `None` of none.
pub fn median(sorted: &[f64]) -> Option<f64> {
    quantile(sorted, [1, 2])
}

/// What `part` of `of` equal parts of the numbers do not exceed, in their order: `[1, 4]` is the lower quartile. Where the parts end between two
/// of them, the mean of these. `None` of none.
///
/// # Panics
/// If `part` is not below `of`.
pub fn quantile(sorted: &[f64], [part, of]: [usize; 2]) -> Option<f64> {
    assert!(part < of, "quantile {part} of {of}: it must be below 1");
    let at = sorted.len() * part / of;
    let above = *sorted.get(at)?;
    let ends_between = (sorted.len() * part).is_multiple_of(of);
    Some(match at.checked_sub(1).filter(|_| ends_between) {
        Some(below) => (sorted[below] + above) / 2.0,
        None => above,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (It was the upper one of two.)
    #[test]
    fn the_median_of_two_is_between_them() {
        let all: [&[f64]; 4] = [&[], &[1.0], &[1.0, 4.0], &[1.0, 2.0, 7.0]];
        assert_eq!(all.map(median), [None, Some(1.0), Some(2.5), Some(2.0)]);
    }

    #[test]
    fn quartiles_are_between_numbers_or_one_of_them() {
        let quartiles = |numbers: &[f64]| [1, 2, 3].map(|part| quantile(numbers, [part, 4]).unwrap());
        assert_eq!(quartiles(&[7.0]), [7.0; 3]);
        assert_eq!(quartiles(&[1.0, 2.0, 3.0, 4.0]), [1.5, 2.5, 3.5]);
        assert_eq!(quartiles(&[1.0, 2.0, 3.0, 4.0, 5.0]), [2.0, 3.0, 4.0]);
        assert_eq!(quartiles(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), [2.0, 3.5, 5.0]);
        assert_eq!(quantile(&[3.0, 4.0], [0, 4]), Some(3.0));
    }
}
