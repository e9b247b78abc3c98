//! How far two results are apart.

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
