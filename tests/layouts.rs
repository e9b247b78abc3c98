//! Scale layouts and host matrices: properties over random shapes.

use proptest::prelude::*;
use scaled_gemm::layout::ScaleLayout;
use scaled_gemm::{Extent, Fp8Format, HostQuantMatrix, Scheme};

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
    fn host_matrices_keep_their_bytes(scheme in scheme(), rows in 0usize..70, cols in 0usize..300, seed in any::<u32>()) {
        let [r, c] = scheme.scale_grid(rows, cols);
        let codes: Vec<u8> = (0..rows * cols).map(|i| (i as u32).wrapping_mul(seed | 1) as u8).collect();
        let scales: Vec<f32> = (0..r * c).map(|i| 0.5 + i as f32).collect();
        let q = HostQuantMatrix::from_logical(scheme, rows, cols, codes.clone(), &scales).unwrap();
        prop_assert_eq!(q.logical_codes(), &codes[..]);
        prop_assert_eq!(q.logical_scales(), scales.clone());
        prop_assert_eq!(q.codes().len(), scheme.code_bytes(rows, cols));
        prop_assert!(q.codes()[rows * cols..].iter().all(|c| *c == 0));
        for i in 0..r {
            for j in 0..c {
                prop_assert_eq!(q.scale_at(i, j), scales[i * c + j]);
            }
        }
        // Poisoned padding is cleaned.
        let (mut dirty_codes, mut dirty_scales) = q.clone().into_parts();
        dirty_codes[rows * cols..].fill(0x55);
        dirty_scales.iter_mut().filter(|s| **s == 0.0).for_each(|s| *s = f32::NAN);
        let again = HostQuantMatrix::from_parts(scheme, rows, cols, dirty_codes, dirty_scales).unwrap();
        prop_assert_eq!(again, q);
    }
}

#[test]
fn wrong_lengths_are_refused_with_both_numbers() {
    let scheme = Scheme::Fp8Block1x128(Fp8Format::E4M3);
    let error = HostQuantMatrix::from_parts(scheme, 3, 256, vec![0; 768], vec![0.0; 8]).unwrap_err().to_string();
    assert!(error.contains("768") && error.contains("1024") && error.contains("codes"), "{error}");
    let error = HostQuantMatrix::from_parts(scheme, 3, 256, vec![0; 1024], vec![0.0; 6]).unwrap_err().to_string();
    assert!(error.contains('6') && error.contains('8') && error.contains("scales"), "{error}");
    let error = HostQuantMatrix::from_logical(scheme, 3, 256, vec![0; 768], &[0.0; 5]).unwrap_err().to_string();
    assert!(error.contains("scales"), "{error}");
    let huge = HostQuantMatrix::from_logical(scheme, usize::MAX, usize::MAX, vec![], &[]).unwrap_err().to_string();
    assert!(huge.contains("at most"), "{huge}");
}

#[test]
fn every_scheme_has_a_group_for_every_element() {
    for scheme in Scheme::ALL {
        let spec = scheme.spec();
        for (rows, cols) in [(1, 16), (129, 144), (130, 576)] {
            let [r, c] = scheme.scale_grid(rows, cols);
            let reach = |extent: Extent, len: usize| (len - 1) / extent.size(len);
            assert_eq!((reach(spec.group_rows, rows), reach(spec.group_cols, cols)), (r - 1, c - 1), "{scheme}");
        }
    }
}
