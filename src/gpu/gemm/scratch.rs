//! [`Scratch`]: what a call has in the handle's scratch memory, and where.

/// Parts of a call's scratch memory in bytes, in this order, each at a multiple of 256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Scratch {
    /// What the product writes, where that is not D.
    pub(crate) sum: usize,
    /// A as plain numbers.
    pub(crate) a: usize,
    /// B as plain numbers.
    pub(crate) b: usize,
    /// Alpha and beta.
    pub(crate) factors: usize,
    /// Codes and scales of an A that the call quantizes.
    pub(crate) codes: usize,
    pub(crate) scales: usize,
    /// What a product of few rows has beside: sums over parts of k, or A in the order of its products ([`SmallMProduct`](crate::gpu::gemm::small_m_step::SmallMProduct) tells). None in an outline.
    pub(crate) few_rows: usize,
}

impl Scratch {
    /// Offset and length of each part.
    pub(crate) fn parts(&self) -> [(usize, usize); 7] {
        let mut at = 0usize;
        [self.sum, self.a, self.b, self.factors, self.codes, self.scales, self.few_rows].map(|bytes| {
            let start = if bytes == 0 { at } else { at.next_multiple_of(256) };
            at = start + bytes;
            (start, bytes)
        })
    }

    /// Bytes of all parts together.
    pub(crate) fn bytes(&self) -> usize {
        let [.., (start, bytes)] = self.parts();
        start + bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_begin_at_multiples_of_256() {
        let parts = Scratch { sum: 10, a: 0, b: 300, factors: 16, ..Scratch::default() }.parts();
        assert_eq!(parts, [(0, 10), (10, 0), (256, 300), (768, 16), (784, 0), (784, 0), (784, 0)]);
        assert_eq!(Scratch { sum: 10, a: 0, b: 300, factors: 0, ..Scratch::default() }.bytes(), 556);
    }
}
