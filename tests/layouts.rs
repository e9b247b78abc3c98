//! Scale layouts and host matrices: properties over random shapes, and the published points of the tiled layout.

use proptest::prelude::*;
use scaled_gemm::layout::ScaleLayout;
use scaled_gemm::{Basis, CodeFormat, Extent, Fp8Format, HostParts, HostQuantMatrix, Scheme};

fn scheme() -> impl Strategy<Value = Scheme> {
    proptest::sample::select(Scheme::ALL.to_vec())
}

proptest! {
    #[test]
    fn index_is_injective_and_within_the_buffer(scheme in scheme(), rows in 0usize..700, cols in 0usize..1500) {
        let [r, c] = scheme.scale_grid(rows, cols);
        let layout = scheme.spec().scale_layout;
        let len = scheme.scale_len(rows, cols);
        let mut seen = vec![false; len];
        for i in 0..r {
            for j in 0..c {
                let at = layout.index(r, c, i, j);
                prop_assert!(at < len, "({i}, {j}) of {r} x {c} at {at} of {len}");
                prop_assert!(!seen[at], "({i}, {j}) of {r} x {c} shares {at}");
                seen[at] = true;
            }
        }
        let padding = seen.iter().filter(|s| !**s).count();
        prop_assert_eq!(padding, len - r * c);
        let most = match layout {
            ScaleLayout::Vec128 => 3 * c,
            ScaleLayout::Blk128 => 3 * r,
            _ => 0,
        };
        prop_assert!(padding <= most, "{padding} padding scales for {r} x {c}");
    }

    #[test]
    fn logical_and_device_order_are_inverse(scheme in scheme(), rows in 1usize..400, cols in 1usize..1200) {
        let [r, c] = scheme.scale_grid(rows, cols);
        let logical: Vec<f32> = (0..r * c).map(|i| i as f32 + 1.0).collect();
        let layout = scheme.spec().scale_layout;
        let device = layout.to_device(r, c, &logical);
        prop_assert_eq!(device.len(), layout.len(r, c));
        prop_assert_eq!(device.iter().filter(|v| **v == 0.0).count(), device.len() - r * c);
        prop_assert_eq!(layout.to_logical(r, c, &device), logical);
    }

    #[test]
    fn tiled_block_scales_are_a_bijection_with_zero_padding(rows in 0usize..700, blocks in 0usize..40) {
        let layout = ScaleLayout::Tiled128x4;
        let len = layout.len(rows, blocks);
        prop_assert_eq!(len, rows.div_ceil(128) * 128 * blocks.div_ceil(4) * 4);
        let logical: Vec<u8> = (0..rows * blocks).map(|i| 1 + (i % 251) as u8).collect();
        let device = layout.to_device(rows, blocks, &logical);
        prop_assert_eq!(device.len(), len);
        prop_assert_eq!(device.iter().filter(|b| **b != 0).count(), rows * blocks);
        prop_assert_eq!(layout.to_logical(rows, blocks, &device), logical);
        // The padded grid is filled without holes: each 512-byte tile holds 128 rows of four blocks.
        let (wide, tall) = (blocks.next_multiple_of(4), rows.next_multiple_of(128));
        let mut seen = vec![false; len];
        for row in 0..tall {
            for block in 0..wide {
                let at = layout.index(rows, blocks, row, block);
                prop_assert_eq!(at / 512, row / 128 * (wide / 4) + block / 4);
                prop_assert!(!std::mem::replace(&mut seen[at], true));
            }
        }
    }

    #[test]
    fn host_matrices_keep_their_bytes(scheme in scheme(), rows in 0usize..140, pairs in 0usize..150, seed in any::<u32>()) {
        let cols = 2 * pairs;
        let [r, c] = scheme.scale_grid(rows, cols);
        let [block_rows, blocks] = scheme.block_grid(rows, cols);
        let bytes = rows * cols * scheme.spec().code_bits / 8;
        let codes: Vec<u8> = (0..bytes).map(|i| (i as u32).wrapping_mul(seed | 1) as u8).collect();
        let scales: Vec<f32> = (0..r * c).map(|i| 0.5 + i as f32).collect();
        let block_scales: Vec<u8> = (0..block_rows * blocks).map(|i| 1 + (i % 120) as u8).collect();
        let q = HostQuantMatrix::from_block_logical(scheme, rows, cols, codes.clone(), &scales, &block_scales).unwrap();
        prop_assert_eq!(q.logical_codes(), &codes[..]);
        prop_assert_eq!(q.logical_scales(), scales.clone());
        prop_assert_eq!(q.logical_block_scales(), block_scales.clone());
        prop_assert_eq!(q.codes().len(), scheme.code_bytes(rows, cols));
        prop_assert_eq!(q.block_scales().len(), scheme.block_scale_len(rows, cols));
        prop_assert!(q.codes()[bytes..].iter().all(|c| *c == 0));
        for i in 0..r {
            for j in 0..c {
                prop_assert_eq!(q.scale_at(i, j), scales[i * c + j]);
            }
        }
        for i in 0..block_rows {
            for j in 0..blocks {
                prop_assert_eq!(q.block_scale_at(i, j), block_scales[i * blocks + j]);
            }
        }
        // Poisoned padding is cleaned.
        let mut dirty = q.clone().into_parts();
        dirty.codes[bytes..].fill(0x55);
        dirty.scales.iter_mut().filter(|s| **s == 0.0).for_each(|s| *s = f32::NAN);
        dirty.block_scales.iter_mut().filter(|s| **s == 0).for_each(|s| *s = 0x7F);
        let again = HostQuantMatrix::from_parts(scheme, rows, cols, dirty).unwrap();
        prop_assert_eq!(again, q);
    }

    #[test]
    fn rows_decode_code_by_code(scheme in scheme(), rows in 1usize..5, pairs in 1usize..40, seed in any::<u32>()) {
        let cols = 2 * pairs;
        let bytes = rows * cols * scheme.spec().code_bits / 8;
        let codes: Vec<u8> = (0..bytes).map(|i| (i as u32).wrapping_mul(seed | 1).to_le_bytes()[1]).collect();
        let scales = vec![1.0; scheme.scale_grid(rows, cols).iter().product()];
        let block_scales = vec![1; scheme.block_grid(rows, cols).iter().product()];
        let q = HostQuantMatrix::from_block_logical(scheme, rows, cols, codes, &scales, &block_scales).unwrap();
        let mut values = vec![0.0; cols];
        for row in 0..rows {
            q.decode_row(row, &mut values);
            for (col, got) in values.iter().enumerate() {
                let want = match scheme.spec().format {
                    CodeFormat::E2M1 => {
                        let nibble = q.row_codes(row)[col / 2] >> (4 * (col % 2)) & 15;
                        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(nibble & 7)] * if nibble < 8 { 1.0 } else { -1.0 }
                    }
                    format => scaled_gemm::codec::decode(format.fp8().unwrap(), q.row_codes(row)[col]),
                };
                prop_assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{row}, {col}: {got}");
            }
        }
    }
}

#[test]
fn tiled_scales_lie_where_cublaslt_documents_them() {
    // numerics [vec16_vec32_tile128x4]: eight blocks wide.
    let points = [
        ((0, 0), 0),
        ((0, 1), 1),
        ((1, 0), 16),
        ((31, 0), 496),
        ((32, 0), 4),
        ((33, 2), 22),
        ((96, 3), 15),
        ((127, 3), 511),
        ((0, 4), 512),
        ((128, 0), 1024),
        ((129, 5), 1553),
        ((255, 7), 2047),
    ];
    for ((row, block), offset) in points {
        assert_eq!(ScaleLayout::Tiled128x4.index(256, 8, row, block), offset, "({row}, {block})");
    }
    // One block scale for 16 columns of NVFP4, for 32 of MXFP8 and MXFP4; the last block may be shorter.
    for (scheme, cols, blocks) in [
        (Scheme::Nvfp4, 7168, 448),
        (Scheme::Nvfp4Row, 48, 3),
        (Scheme::Mxfp8(Fp8Format::E4M3), 48, 2),
        (Scheme::Mxfp8(Fp8Format::E5M2), 16, 1),
        (Scheme::Mxfp4, 48, 2),
        (Scheme::Mxfp4, 2880, 90),
    ] {
        assert_eq!(scheme.block_grid(3, cols), [3, blocks]);
        assert_eq!(scheme.block_scale_len(3, cols), 128 * blocks.next_multiple_of(4));
    }
}

#[test]
fn a_basis_is_kept_and_counts_in_comparisons() {
    let q = HostQuantMatrix::from_block_logical(Scheme::Nvfp4, 1, 16, vec![0x21; 8], &[1.0], &[0x38]).unwrap();
    assert_eq!(q.basis(), Basis::Plain);
    let turned = q.clone().assume_basis(Basis::Hadamard16);
    assert_eq!((turned.basis(), turned.codes()), (Basis::Hadamard16, q.codes()));
    assert_ne!(turned, q);
    let parts = turned.clone().into_parts();
    assert_eq!((parts.block_scales.len(), parts.basis), (512, Basis::Hadamard16));
    assert_eq!(HostQuantMatrix::from_parts(Scheme::Nvfp4, 1, 16, parts).unwrap(), turned);
}

#[test]
fn wrong_lengths_are_refused_with_both_numbers() {
    let scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
    let parts = |codes, scales| HostParts { codes: vec![0; codes], scales: vec![0.0; scales], ..HostParts::default() };
    let error = HostQuantMatrix::from_parts(scheme, 3, 256, parts(768, 8)).unwrap_err().to_string();
    assert!(error.contains("768") && error.contains("1024") && error.contains("codes"), "{error}");
    let error = HostQuantMatrix::from_parts(scheme, 3, 256, parts(1024, 6)).unwrap_err().to_string();
    assert!(error.contains('6') && error.contains('8') && error.contains("scales"), "{error}");
    let error = HostQuantMatrix::from_logical(scheme, 3, 256, vec![0; 768], &[0.0; 5]).unwrap_err().to_string();
    assert!(error.contains("scales"), "{error}");
    let block = |codes, scales: &[f32], blocks: &[u8]| {
        HostQuantMatrix::from_block_logical(Scheme::Nvfp4, 3, 32, vec![0; codes], scales, blocks)
            .unwrap_err()
            .to_string()
    };
    let error = block(96, &[1.0], &[0; 6]);
    assert!(error.contains("96") && error.contains("48") && error.contains("codes"), "{error}");
    let error = block(48, &[1.0; 3], &[0; 6]);
    assert!(error.contains("scales: length 3"), "{error}");
    let error = block(48, &[1.0], &[0; 512]);
    assert!(error.contains("block scales: length 512") && error.contains('6'), "{error}");
    let odd =
        HostQuantMatrix::from_block_logical(Scheme::Nvfp4, 1, 15, vec![0; 7], &[1.0], &[0]).unwrap_err().to_string();
    assert!(odd.contains("15 columns") && odd.contains("even"), "{odd}");
    let huge = HostQuantMatrix::from_logical(scheme, usize::MAX, usize::MAX, vec![], &[]).unwrap_err().to_string();
    assert!(huge.contains("at most"), "{huge}");
}

/// (Lengths from 2^61 elements on were computed modulo 2^64 / 8: 1024 bytes passed for codes of this one, and their padding was behind the
/// end. With overflow checks all panicked. From 2^60 elements on no length is computed any more.)
#[test]
fn lengths_of_huge_shapes_are_refused_with_their_numbers() {
    const MOST: usize = i32::MAX as usize;
    let parts = || HostParts { codes: vec![0; 1024], scales: vec![1.0], ..HostParts::default() };
    for scheme in Scheme::ALL {
        for (rows, cols) in
            [(1711551234, 1347224064), (MOST, MOST - 15), (MOST, MOST - 1), (MOST - 3, 1 << 30), (1 << 30, 1 << 30)]
        {
            let shape = format!("{rows} x {cols}");
            for refused in [
                HostQuantMatrix::from_parts(scheme, rows, cols, parts()),
                HostQuantMatrix::from_logical(scheme, rows, cols, vec![0; 1024], &[1.0]),
            ] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains(&shape) && error.contains("1152921504606846975 elements"), "{scheme}: {error}");
            }
        }
        // The most elements that pass, in 2^30 rows and in 2^30 columns.
        for (rows, cols) in [(1 << 30, (1 << 30) - 16), ((1 << 30) - 128, 1 << 30), (MOST, (1 << 29) - 16)] {
            let rows_of_codes = rows.next_multiple_of(scheme.spec().row_multiple);
            let want = (rows_of_codes as u128 * cols as u128 * scheme.spec().code_bits as u128 / 8).to_string();
            let error = HostQuantMatrix::from_parts(scheme, rows, cols, parts()).unwrap_err().to_string();
            assert!(error.contains("codes: length 1024") && error.contains(&want), "{scheme}: {error}");
            let error =
                HostQuantMatrix::from_logical(scheme, rows, cols, vec![0; 1024], &[1.0]).unwrap_err().to_string();
            assert!(error.contains("codes: length 1024"), "{scheme}: {error}");
        }
    }
}

#[test]
fn every_scheme_has_a_group_for_every_element() {
    for scheme in Scheme::ALL {
        let spec = scheme.spec();
        for (rows, cols) in [(1, 16), (129, 144), (130, 576)] {
            if let Some(block) = spec.block {
                assert_eq!(scheme.block_grid(rows, cols), [rows, (cols - 1) / block.cols + 1], "{scheme}");
            }
            let [r, c] = scheme.scale_grid(rows, cols);
            if spec.scale_layout == ScaleLayout::Absent {
                assert_eq!([r, c], [0, 0]);
                continue;
            }
            let reach = |extent: Extent, len: usize| (len - 1) / extent.size(len);
            assert_eq!((reach(spec.group_rows, rows), reach(spec.group_cols, cols)), (r - 1, c - 1), "{scheme}");
        }
    }
}
