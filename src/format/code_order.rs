//! [`CodeOrder`]: how the E2M1 codes of a matrix lie, as published or repacked for products of few rows.
//!
//! Mirrored by `kernels/base/repacked.cuh`.

use super::scheme::{BlockScaleFormat, CodeFormat, Scheme};
use crate::error::{Error, Result};

/// How the codes of a matrix lie in device memory. Files and host matrices never have the repacked one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CodeOrder {
    /// Row-major; of E2M1 two codes a byte, the even column in the low half.
    #[default]
    Published,
    /// NVFP4 codes in the order in which products of few rows read and decode them, of matrices with a multiple of 8 rows and of 128 columns, at most 32768. As many bytes.
    ///
    /// The block of codes `(i, 16 b)` to `(i, 16 b + 15)`, which share a block scale, is the little-endian 64-bit number at byte
    /// `(i / 8 * (cols / 128) + b / 8) * 512 + i % 8 * 64 + b % 8 * 8`: eight rows by 128 columns are 512 bytes. Of that number let `u` be the low and `v` the
    /// high 32 bits, and `w = (u & L) | (4 v & !L)` with `L = 0x0C180C18`. Columns `2 p` (h = 0) and `2 p + 1` (h = 1) of the block lie in one of these, rotated to the left, at
    /// bits `16 h + 15` (sign) and `16 h + 8` to `16 h + 6` (magnitude, its highest bit first):
    ///
    /// | p | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
    /// |---|---|---|---|---|---|---|---|---|
    /// | of | u | u | u | w | v | v | v | w |
    /// | rotated by | 0 | 6 | 26 | 2 | 0 | 6 | 26 | 28 |
    ///
    /// Those are the bits of a pair of BF16 numbers, E2M1 times 2^-126: a rotation and a mask decode two codes, where the published order takes a mask more and a product.
    Repacked,
}

named!(CodeOrder, "order of codes", Published => "published", Repacked => "repacked");

impl CodeOrder {
    /// Whether codes of such a matrix can lie so.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for repacked codes of another scheme than NVFP4; [`Error::Shape`] unless its rows are a multiple of 8 and its columns one of 128, and those at most 32768.
    pub fn check(self, scheme: Scheme, rows: usize, cols: usize) -> Result<()> {
        if self == Self::Published {
            return Ok(());
        }
        let (spec, what) = (scheme.spec(), format!("repacking a {rows} x {cols} {scheme} matrix"));
        let nvfp4 =
            spec.format == CodeFormat::E2M1 && spec.block.is_some_and(|block| block.format == BlockScaleFormat::Ue4m3);
        if !nvfp4 {
            let reason = "the order is for the E2M1 codes of nvfp4 and nvfp4-row";
            return Err(Error::unsupported(
                what,
                reason,
                "leave it as it is: other codes have the published order alone",
            ));
        }
        if rows.is_multiple_of(ROWS) && cols.is_multiple_of(COLS) && cols <= MOST_COLS {
            return Ok(());
        }
        Err(Error::shape(
            "repacked matrix",
            format!("{rows} x {cols}"),
            format!(
                "must have a multiple of {ROWS} rows and of {COLS} columns, at most {MOST_COLS}: {ROWS} rows change places at once"
            ),
            "leave it in the published order, or pad rows and columns with zeros",
        ))
    }

    /// Puts codes from the published order into this one, in place. Allocates eight rows.
    ///
    /// # Errors
    /// As [`CodeOrder::check`]; [`Error::Shape`] unless `codes` has `scheme.code_bytes(rows, cols)` bytes.
    pub fn pack(self, scheme: Scheme, rows: usize, cols: usize, codes: &mut [u8]) -> Result<()> {
        self.each_slab(scheme, [rows, cols], codes, |published, repacked, slab, from| {
            let block = u64::from_le_bytes(slab[published..published + 8].try_into().unwrap_or_default());
            from[repacked..repacked + 8].copy_from_slice(&pack_block(block).to_le_bytes());
        })
    }

    /// Puts codes of this order into the published one, in place: the inverse of [`CodeOrder::pack`]. Allocates eight rows.
    ///
    /// # Errors
    /// As [`CodeOrder::pack`].
    pub fn unpack(self, scheme: Scheme, rows: usize, cols: usize, codes: &mut [u8]) -> Result<()> {
        self.each_slab(scheme, [rows, cols], codes, |published, repacked, slab, to| {
            let block = u64::from_le_bytes(slab[repacked..repacked + 8].try_into().unwrap_or_default());
            to[published..published + 8].copy_from_slice(&unpack_block(block).to_le_bytes());
        })
    }

    /// Of eight rows each, `block(published, repacked, old, new)` moves the block at those bytes.
    fn each_slab(
        self,
        scheme: Scheme,
        [rows, cols]: [usize; 2],
        codes: &mut [u8],
        block: impl Fn(usize, usize, &[u8], &mut [u8]),
    ) -> Result<()> {
        self.check(scheme, rows, cols)?;
        let bytes = scheme.code_bytes(rows, cols);
        if codes.len() != bytes {
            return Err(Error::shape(
                "codes",
                format!("{} bytes", codes.len()),
                format!("must be {bytes} for a {rows} x {cols} matrix in {scheme}"),
                "pass the whole buffer",
            ));
        }
        if self == Self::Published || bytes == 0 {
            return Ok(());
        }
        let mut new = vec![0; ROWS * cols / 2];
        for slab in codes.chunks_exact_mut(ROWS * cols / 2) {
            for row in 0..ROWS {
                for b in 0..cols / 16 {
                    block(row * cols / 2 + b * 8, b / 8 * 512 + row * 64 + b % 8 * 8, slab, &mut new);
                }
            }
            slab.copy_from_slice(&new);
        }
        Ok(())
    }
}

/// A piece of 512 bytes.
const ROWS: usize = 8;
const COLS: usize = 128;
/// Of eight rows a block of threads holds all codes in registers (`kernels/cast/nvfp4_repack.cu`).
const MOST_COLS: usize = 32768;

/// What the first word of a block has of the one that both share.
const SHARED: u32 = 0x0C18_0C18;
/// Sign and magnitude of a BF16 number in both halves of a word.
const BITS: u32 = 0x81C0_81C0;
/// By how much a word is rotated to the left for each of its pairs, and the shared one.
const OF_WORD: [u32; 3] = [0, 6, 26];
const OF_SHARED: [u32; 2] = [2, 28];

/// Sixteen codes in their published order, code i at bit 4 i, as they lie repacked.
fn pack_block(codes: u64) -> u64 {
    let pair = |p: u32| {
        let half = |code: u32| (code & 8) << 12 | (code & 7) << 6;
        let both = (codes >> (8 * p)) as u32;
        half(both & 15) | half(both >> 4 & 15) << 16
    };
    let own = |first: u32| OF_WORD.iter().zip(first..).fold(0, |word, (left, p)| word | pair(p).rotate_right(*left));
    let shared = pair(3).rotate_right(OF_SHARED[0]) | pair(7).rotate_right(OF_SHARED[1]);
    let (u, v) = (own(0) | (shared & SHARED), own(4) | (shared & !SHARED) >> 2);
    u64::from(u) | u64::from(v) << 32
}

/// The inverse of [`pack_block`].
fn unpack_block(block: u64) -> u64 {
    let [u, v] = [block as u32, (block >> 32) as u32];
    let w = (u & SHARED) | (v << 2 & !SHARED);
    let [first, second, third] = OF_WORD;
    let [fourth, eighth] = OF_SHARED;
    let pairs = [(u, first), (u, second), (u, third), (w, fourth), (v, first), (v, second), (v, third), (w, eighth)];
    pairs.into_iter().zip(0..).fold(0, |codes, ((word, left), p)| {
        let pair = word.rotate_left(left) & BITS;
        let half = |bits: u32| u64::from(bits >> 12 & 8 | bits >> 6 & 7);
        codes | (half(pair & 0xFFFF) | half(pair >> 16) << 4) << (8 * p)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bit of a block has a place of its own, and what is at it decodes as BF16 to the E2M1 number times 2^-126.
    #[test]
    fn a_block_is_a_permutation_of_its_bits() {
        let mut seen = 0u64;
        for bit in 0..64 {
            let packed = pack_block(1 << bit);
            assert_eq!((packed.count_ones(), packed & seen), (1, 0), "bit {bit}");
            assert_eq!(unpack_block(packed), 1 << bit);
            seen |= packed;
        }
        assert_eq!(seen, u64::MAX);
        // All codes at all places, beside all others.
        for (at, code) in (0..16).flat_map(|at| (0..16u64).map(move |code| (at, code))) {
            for others in [0, u64::MAX, 0x0123_4567_89AB_CDEF] {
                let block = (others & !(15 << (4 * at))) | code << (4 * at);
                let packed = pack_block(block);
                assert_eq!(unpack_block(packed), block);
                let [u, v] = [packed as u32, (packed >> 32) as u32];
                let w = (u & 0x0C18_0C18) | (v << 2 & !0x0C18_0C18);
                let (word, left) = [(u, 0), (u, 6), (u, 26), (w, 2), (v, 0), (v, 6), (v, 26), (w, 28)][at as usize / 2];
                let bits = (word.rotate_left(left) >> (16 * (at % 2)) & 0x81C0) as u16;
                let value = f32::from_bits(u32::from(bits) << 16) * 2f32.powi(63) * 2f32.powi(63);
                let e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code as usize % 8];
                let wanted = if code < 8 { e2m1 } else { -e2m1 };
                assert_eq!(value.to_bits(), f32::to_bits(wanted), "code {code} at {at}");
            }
        }
    }

    #[test]
    fn codes_go_and_come_back() {
        for scheme in [Scheme::Nvfp4, Scheme::Nvfp4Row] {
            for (rows, cols) in [(8, 128), (16, 256), (72, 384), (2112, 128), (0, 128), (8, 0), (24, 1536)] {
                let published: Vec<u8> = (0..scheme.code_bytes(rows, cols)).map(|i| (i * 37 + i / 251) as u8).collect();
                let mut codes = published.clone();
                CodeOrder::Repacked.pack(scheme, rows, cols, &mut codes).unwrap();
                // The place that the documentation gives.
                for (i, b) in (0..rows).flat_map(|i| (0..cols / 16).map(move |b| (i, b))) {
                    let at = (i / 8 * (cols / 128) + b / 8) * 512 + i % 8 * 64 + b % 8 * 8;
                    let block = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                    assert_eq!(block(&codes, at), pack_block(block(&published, i * cols / 2 + 8 * b)));
                }
                CodeOrder::Repacked.unpack(scheme, rows, cols, &mut codes).unwrap();
                assert!(codes == published, "{rows} x {cols}");
                CodeOrder::Published.pack(scheme, rows, cols, &mut codes).unwrap();
                assert!(codes == published);
            }
        }
    }

    #[test]
    fn other_matrices_are_refused() {
        let why = |scheme, rows, cols| CodeOrder::Repacked.check(scheme, rows, cols).unwrap_err().to_string();
        for (rows, cols) in [(4, 128), (12, 128), (8, 64), (8, 144), (2111, 7168), (8, 32896)] {
            let why = why(Scheme::Nvfp4, rows, cols);
            assert!(
                why.contains(&format!("{rows} x {cols}")) && why.contains("a multiple of 8 rows and of 128"),
                "{why}"
            );
            assert!(CodeOrder::Published.check(Scheme::Nvfp4, rows, cols).is_ok());
        }
        for scheme in Scheme::ALL.into_iter().filter(|scheme| !scheme.is_nvfp4()) {
            let why = why(scheme, 8, 128);
            assert!(why.contains(scheme.to_string().as_str()) && why.contains("nvfp4 and nvfp4-row"), "{why}");
            assert!(CodeOrder::Published.check(scheme, 8, 128).is_ok());
        }
        let short = CodeOrder::Repacked.pack(Scheme::Nvfp4, 8, 128, &mut [0; 511]).unwrap_err().to_string();
        assert!(short.contains("511 bytes") && short.contains("must be 512"), "{short}");
    }
}
