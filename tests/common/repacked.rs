//! Operands whose weights are repacked.

use crate::small_m_weights::Both;
use scaled_gemm::{CodeOrder, Handle};

/// The same operands with the codes of B repacked.
pub fn repacked(handle: &Handle, mut both: Both) -> Both {
    let b = match &mut both {
        Both::Quantized(ops) => &mut ops.b,
        Both::Plain(ops) => &mut ops.b,
    };
    b.repack(handle, CodeOrder::Repacked).unwrap();
    both
}
