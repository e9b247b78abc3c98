//! Products of weights that are decoded, with all operands in one allocation. Not a module of `common`, as `guarded` is none.

use crate::common::Noise;
use crate::common::gemm::*;
use crate::guarded::check_guarded;
use crate::small_m_weights::{Both, Pair, new, planned, with};
use scaled_gemm::{Handle, SmallMConfig};

/// Every pair at every shape, as `lay` puts it, in the configurations of so many rows and of this turn, with everything behind the sums and without: 0xFF lies between the operands, D, a bias and a residual
/// take no more than their own size, the bits are those of operands apart, and nothing but D is written.
pub fn check_between_guards<C: Iterator<Item = SmallMConfig>>(
    handle: &Handle,
    seed: u64,
    pairs: &[Pair],
    shapes: &[[usize; 3]],
    lay: impl Fn(Both) -> Both,
    configs: impl Fn(usize, usize) -> C,
) {
    let mut rng = Noise::new(seed);
    for (i, pair) in pairs.iter().enumerate() {
        for (j, &[m, n, k]) in shapes.iter().enumerate() {
            let both = lay(new(handle, &mut rng, [m, n, k], *pair));
            let case = if (i + j) % 2 == 0 { layer() } else { Case { gap: 8, ..Case::new(WIDE[(i + j / 2) % 3]) } };
            let extras = Extras::new(handle, &mut rng, m, n, &[case.gap]);
            with!(&both, |ops| for config in configs(m, i + j) {
                check_guarded(handle, &mut planned(handle, &case.desc(ops), config), ops, &extras, &case);
            });
        }
    }
}
