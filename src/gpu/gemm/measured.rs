//! Which formulation was the fastest at the shapes of published models: measured choices that come with the crate.
//!
//! A row holds one bit for each m = 2^i up to 8192, the lowest for m = 1: set where the alternative to the native
//! formulation (repeated scales, rescaled) was faster, or the only one offered. Made by `scripts/measured-choices.py` from
//! the records in `benches/record/`; they hold for the GPU and library they were measured on and for no other.

use crate::gpu::lt::quirks::Version;

/// One shape: `B` is `n x k`.
struct Row {
    n: usize,
    k: usize,
    alternative: u16,
}

/// The GPU's name and the library that the rows were measured on.
const GPU: &str = "NVIDIA H200";
const LIBRARY: (Version, Version) = (Version::new(13, 1, 0), Version::new(13, 2, 0));

const BLOCKS: &[Row] = &[
    Row { n: 2112, k: 7168, alternative: 0b00111111111111 },
    Row { n: 576, k: 7168, alternative: 0b00001111111111 },
    Row { n: 24576, k: 1536, alternative: 0b00000001111111 },
    Row { n: 32768, k: 512, alternative: 0b00000001111111 },
    Row { n: 7168, k: 16384, alternative: 0b00000001111111 },
    Row { n: 4096, k: 7168, alternative: 0b00000011111111 },
    Row { n: 7168, k: 2048, alternative: 0b00000001111111 },
    Row { n: 10240, k: 8192, alternative: 0b00000001111111 },
    Row { n: 8192, k: 8192, alternative: 0b00000011111111 },
    Row { n: 57344, k: 8192, alternative: 0b00000001111111 },
    Row { n: 8192, k: 28672, alternative: 0b00000001111111 },
    Row { n: 1536, k: 2048, alternative: 0b00000111111111 },
    Row { n: 2048, k: 768, alternative: 0b00001111111111 },
    Row { n: 10240, k: 5120, alternative: 0b00000001111111 },
    Row { n: 5120, k: 8192, alternative: 0b00000001111111 },
    Row { n: 51200, k: 5120, alternative: 0b00000000111111 },
    Row { n: 5120, k: 25600, alternative: 0b00000001111111 },
];

const ROWS: &[Row] = &[
    Row { n: 2112, k: 7168, alternative: 0b00111111111111 },
    Row { n: 576, k: 7168, alternative: 0b11011111111111 },
    Row { n: 24576, k: 1536, alternative: 0b00000000000011 },
    Row { n: 32768, k: 512, alternative: 0b00000000001111 },
    Row { n: 7168, k: 16384, alternative: 0b00000011111111 },
    Row { n: 4096, k: 7168, alternative: 0b00000111111111 },
    Row { n: 7168, k: 2048, alternative: 0b00000000001111 },
    Row { n: 10240, k: 8192, alternative: 0b00001100010000 },
    Row { n: 8192, k: 8192, alternative: 0b00000001111111 },
    Row { n: 57344, k: 8192, alternative: 0b00000001111111 },
    Row { n: 8192, k: 28672, alternative: 0b00000011111111 },
    Row { n: 1536, k: 2048, alternative: 0b00001111111111 },
    Row { n: 2048, k: 768, alternative: 0b00000000000011 },
    Row { n: 10240, k: 5120, alternative: 0b00000100001111 },
    Row { n: 5120, k: 8192, alternative: 0b00011111111111 },
    Row { n: 51200, k: 5120, alternative: 0b00000000011111 },
    Row { n: 5120, k: 25600, alternative: 0b00011111111111 },
];

/// True if the rows hold for this GPU and library.
pub(crate) fn applies(gpu: &str, library: Version) -> bool {
    gpu == GPU && (LIBRARY.0..LIBRARY.1).contains(&library)
}

/// Whether repeated scales beat the native 1x128 x 128x128 product; `None` where the shape was not measured.
pub(crate) fn repeated_scales_win(m: usize, n: usize, k: usize) -> Option<bool> {
    find(BLOCKS, m, n, k)
}

/// Whether a scalar product with a rescale beats the native row x row product; `None` where the shape was not measured.
pub(crate) fn rescaled_wins(m: usize, n: usize, k: usize) -> Option<bool> {
    find(ROWS, m, n, k)
}

/// The bit of the next measured m that is not smaller; beyond 8192 that of 8192.
fn find(rows: &[Row], m: usize, n: usize, k: usize) -> Option<bool> {
    let row = rows.iter().find(|row| (row.n, row.k) == (n, k))?;
    let place = m.max(1).next_power_of_two().trailing_zeros().min(13);
    Some(row.alternative >> place & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_shape_has_a_row_in_both_tables() {
        let of = |rows: &[Row]| rows.iter().map(|r| (r.n, r.k)).collect::<Vec<_>>();
        assert_eq!(of(BLOCKS), of(ROWS));
        assert_eq!(BLOCKS.len(), 17);
    }

    #[test]
    fn m_takes_the_bit_of_the_next_measured_one() {
        let rows = [Row { n: 8, k: 16, alternative: 0b10_0000_0000_0110 }];
        let wins = |m| find(&rows, m, 8, 16);
        assert_eq!([0, 1, 2, 3, 4, 5, 8].map(wins), [false, false, true, true, true, false, false].map(Some));
        assert_eq!([4096, 4097, 8192, 1 << 20].map(wins), [false, true, true, true].map(Some));
        assert_eq!(find(&rows, 1, 16, 8), None);
    }

    #[test]
    fn the_rows_hold_for_their_gpu_and_library_only() {
        assert!(applies("NVIDIA H200", Version::new(13, 1, 0)) && applies("NVIDIA H200", Version::new(13, 1, 3)));
        assert!(!applies("NVIDIA H100 80GB HBM3", Version::new(13, 1, 0)));
        assert!(!applies("NVIDIA H200", Version::new(13, 2, 0)) && !applies("NVIDIA H200", Version::new(12, 9, 1)));
    }
}
