//! Sums along a row in FP32, in the order in which a GPU makes them.

/// Neighbours that are summed one after the other, and columns whose sums are one tree.
const NEIGHBOURS: usize = 8;
const TREE: usize = 128;
/// Sums of a row, each of every eighth tree.
const SUMS: usize = 8;

/// The sum of `term(j)[0] * term(j)[1]` over `cols` columns, each product and addition one fused multiply-add:
/// [`rms_norm`](super::rms_norm) says the order.
pub(super) fn sum_of_products(cols: usize, term: impl Fn(usize) -> [f32; 2]) -> f32 {
    let mut sums = [0.0f32; SUMS];
    for (number, first) in (0..cols).step_by(TREE).enumerate() {
        let mut leaves = [0.0f32; TREE / NEIGHBOURS];
        for (leaf, start) in leaves.iter_mut().zip((first..).step_by(NEIGHBOURS)) {
            for [a, b] in (start..cols.min(start + NEIGHBOURS)).map(&term) {
                *leaf = a.mul_add(b, *leaf);
            }
        }
        sums[number % SUMS] += tree(leaves);
    }
    tree(sums)
}

/// Halves are added element by element until one is left.
fn tree<const N: usize>(mut leaves: [f32; N]) -> f32 {
    let mut step = N / 2;
    while step > 0 {
        for i in 0..step {
            leaves[i] += leaves[i + step];
        }
        step /= 2;
    }
    leaves[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_counts_once_and_the_order_is_as_said() {
        for cols in [0, 1, 7, 8, 127, 128, 129, 1024, 1025, 7168] {
            let want = (cols * (cols + 1) / 2) as f32;
            assert_eq!(sum_of_products(cols, |j| [(j + 1) as f32, 1.0]), want, "{cols}");
        }
        // 2^24 + 1 is 2^24: a one counts only where it meets another before it meets the large number.
        let large = |at: usize, ones: &[usize]| {
            sum_of_products(2048, |j| if j == at { [4096.0; 2] } else { [f32::from(u8::from(ones.contains(&j))); 2] })
        };
        let exact = 16_777_216.0;
        assert_eq!(large(0, &[1, 2]), exact, "neighbours, one after the other");
        assert_eq!(large(0, &[8, 9]), exact + 2.0, "two of another leaf");
        assert_eq!(large(0, &[8, 72]), exact + 2.0, "leaves 1 and 9 meet before leaf 0");
        assert_eq!(large(0, &[64, 8]), exact, "leaf 8 meets leaf 0 first");
        assert_eq!(large(1024, &[0, 1]), exact + 2.0, "tree 8 is added to tree 0");
        assert_eq!(large(0, &[128, 640]), exact + 2.0, "sums 1 and 5 meet before sum 0");
    }
}
