//! That what quantizers and their way back write lies apart from what they read, and from what else they write: their kernels promise the compiler that it does.

use crate::error::Result;
use crate::gpu::device::memory::{Named, Span, check_apart};
use crate::gpu::matrix::QuantSpans;

/// What a quantizer reads and writes, by its addresses.
#[derive(Clone, Copy)]
pub(crate) struct Quantizing<'a, 's> {
    pub(crate) x: Span<'s>,
    /// A scale, or a second level: of memory that may be longer the one number that is read.
    pub(crate) given: Option<&'a Span<'s>>,
    pub(crate) out: Option<&'a QuantSpans<'s>>,
    pub(crate) transposed: Option<&'a QuantSpans<'s>>,
    /// Received beside, as many bytes as are written.
    pub(crate) amax: Option<Span<'s>>,
}

impl<'s> Quantizing<'_, 's> {
    /// Of x alone.
    pub(crate) fn of(x: Span<'s>) -> Self {
        Self { x, given: None, out: None, transposed: None, amax: None }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let Self { x, given, out, transposed, amax } = *self;
        let read = [("x", x)].into_iter().chain(given.map(|given| ("given scale", given.slice(0, 4))));
        let out = out.into_iter().flat_map(|out| parts(["codes", "scales", "block scales"], out));
        let names = ["codes of the transpose", "scales of the transpose", "block scales of the transpose"];
        let transposed = transposed.into_iter().flat_map(|out| parts(names, out));
        check_apart(read, out.chain(transposed).chain(amax.map(|amax| ("amax", amax))))
    }
}

/// That `y`, as far as it is written, lies apart from a quantized matrix.
pub(super) fn check_dequantized(q: &QuantSpans<'_>, y: Span<'_>) -> Result<()> {
    let read = parts(["codes", "scales", "block scales"], q);
    check_apart(read.into_iter(), [("dequantized matrix", y)].into_iter())
}

fn parts<'s>([codes, scales, block_scales]: [&'static str; 3], q: &QuantSpans<'s>) -> [Named<'s>; 3] {
    [(codes, q.codes), (scales, q.scales), (block_scales, q.block_scales)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::device::memory::assert_apart;

    fn spans<'s>(at: &[Span<'s>]) -> QuantSpans<'s> {
        QuantSpans { codes: at[0], scales: at[1], block_scales: at[2] }
    }

    #[test]
    fn codes_scales_and_an_amax_lie_apart_from_x_and_a_given_scale() {
        let names = [
            "x",
            "given scale",
            "codes",
            "scales",
            "block scales",
            "codes of the transpose",
            "scales of the transpose",
            "block scales of the transpose",
            "amax",
        ];
        assert_apart(&names, 7, 64, |at| {
            let (out, transposed) = (spans(&at[2..5]), spans(&at[5..8]));
            let (given, out, transposed) = (Some(&at[1]), Some(&out), Some(&transposed));
            Quantizing { given, out, transposed, amax: Some(at[8]), ..Quantizing::of(at[0]) }.check()
        });
    }

    /// A scale and its amax side by side, the scale given by a view of both.
    #[test]
    fn a_given_scale_is_one_number() {
        let [x, codes, both] = [(4096, 64), (8192, 64), (12288, 8)].map(|(at, bytes)| Span::unguarded(at, bytes));
        let out = spans(&[codes, x.slice(64, 0), x.slice(64, 0)]);
        let check = |amax| Quantizing { given: Some(&both), out: Some(&out), amax, ..Quantizing::of(x) }.check();
        check(Some(both.slice(4, 4))).unwrap();
        for onto in [both.slice(0, 4), Span::unguarded(both.address + 2, 4)] {
            let said = check(Some(onto)).unwrap_err().to_string();
            assert!(said.contains("amax") && said.contains("given scale, 4 bytes"), "{said}");
        }
    }

    #[test]
    fn values_lie_apart_from_the_codes_and_scales_that_they_are_of() {
        let names = ["codes", "scales", "block scales", "dequantized matrix"];
        assert_apart(&names, 1, 64, |at| check_dequantized(&spans(&at[..3]), at[3]));
    }
}
