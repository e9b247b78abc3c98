//! The cuBLASLt calls of block-scaled products, as the library holds them: for GPUs that are not at hand. No GPU needed.

use super::*;
use crate::epilogue::Epilogue;
use crate::format::{Fp8Format, Fp8Granularity, Fp8Recipe, HostQuantMatrix, Operand as GemmOperand};
use crate::gpu::gemm::available::available;
use crate::gpu::gemm::formulation::{Finish, Formulation};
use crate::gpu::gemm::outline::{Outline, outline};
use crate::gpu::gemm::quantize_a::QuantizeA;
use crate::gpu::gemm::scratch::Scratch;
use crate::gpu::lt::quirks::{SM120_BLOCK_SCALES, Version};
use crate::gpu::lt::tests::found;
use crate::gpu::matrix::derived::KeptWeights;

const PLACEHOLDER: u64 = 0x1230;
const MX: Scheme = Scheme::Mxfp8(Fp8Format::E4M3);
const MX5: Scheme = Scheme::Mxfp8(Fp8Format::E5M2);

/// Numbers of the header.
const R_32F: u32 = 0;
const R_16F: u32 = 2;
const R_16BF: u32 = 14;
const R_8F_E4M3: u32 = 28;
const R_8F_E5M2: u32 = 29;
const R_4F_E2M1: u32 = 33;
const VEC16_UE4M3: u32 = 1;
const VEC32_UE8M0: u32 = 2;
const POINTER_MODE_DEVICE: u32 = 1;
const EPILOGUE_BIAS: u32 = 4;

fn planned(desc: &GemmDesc, formulation: Formulation, finish: Finish) -> (Outline, Setup) {
    desc.check("test").unwrap();
    let outline = outline(desc, formulation, finish).unwrap();
    let setup = setup(PLACEHOLDER, desc, &outline.sum).unwrap();
    (outline, setup)
}

impl LtProduct {
    /// A product with algorithms that nobody offered, to look at.
    pub(crate) fn not_offered(desc: &GemmDesc, sum: &Sum, algos: Vec<Algo>) -> Self {
        let Setup { matmul, layouts } = setup(PLACEHOLDER, desc, sum).unwrap();
        Self { sum: *sum, matmul, layouts, algos, chosen: 0 }
    }
}

fn is_new_enough() -> bool {
    found().is_some_and(|library| library.version() >= SM120_BLOCK_SCALES)
}

#[test]
fn native_products_have_the_modes_types_and_layouts_of_the_documentation() {
    if !is_new_enough() {
        return;
    }
    let (m, n, k) = (130, 520, 576);
    for (a, b, types, mode) in [
        (Scheme::Nvfp4, Scheme::Nvfp4, [R_4F_E2M1, R_4F_E2M1], VEC16_UE4M3),
        (Scheme::Nvfp4Row, Scheme::Nvfp4, [R_4F_E2M1, R_4F_E2M1], VEC16_UE4M3),
        (MX, MX, [R_8F_E4M3, R_8F_E4M3], VEC32_UE8M0),
        (MX5, MX, [R_8F_E5M2, R_8F_E4M3], VEC32_UE8M0),
        (MX, MX5, [R_8F_E4M3, R_8F_E5M2], VEC32_UE8M0),
    ] {
        for (out, d_type) in [(DType::Bf16, R_16BF), (DType::F16, R_16F), (DType::F32, R_32F)] {
            let desc = GemmDesc::new(m, n, k, a, b, out).with_out_stride(n + 8);
            for cc in [(10, 0), (12, 0)] {
                let facts = crate::gpu::gemm::available::Facts {
                    cc,
                    version: Some(Version::new(13, 1, 0)),
                    sm_count: 132,
                    measured: None,
                };
                assert_eq!(available(&desc, facts, Formulation::Native), Ok(()), "{desc}");
            }
            let rows = [a, b].contains(&Scheme::Nvfp4Row);
            let finish = if rows { Finish::EpilogueKernel } else { Finish::Fused };
            let (outline, Setup { matmul, layouts }) = planned(&desc, Formulation::Native, finish);
            assert_eq!((matmul.get(attr::TransA).unwrap(), matmul.get(attr::TransB).unwrap()), (1, 0));
            assert_eq!((matmul.get(attr::AScaleMode).unwrap(), matmul.get(attr::BScaleMode).unwrap()), (mode, mode));
            assert_eq!(matmul.held(PointerAttr::AScale).unwrap(), PLACEHOLDER);
            assert_eq!(matmul.held(PointerAttr::BScale).unwrap(), PLACEHOLDER);
            for absent in [PointerAttr::DScale, PointerAttr::AmaxD, PointerAttr::Bias] {
                assert_eq!(matmul.held(absent).unwrap(), 0, "{desc}");
            }
            // One second-level scale on each side goes into an alpha on the device; MXFP8 has none, rows are rescaled.
            let device = u32::from(a == Scheme::Nvfp4);
            assert_eq!(matmul.get(attr::AlphaBetaPlace).unwrap(), device * POINTER_MODE_DEVICE, "{desc}");
            // The library's A is our B; leading dimensions count elements, also where two of them share a byte.
            let (k64, n64, m64) = (k as u64, n as u64, m as u64);
            assert_eq!(layouts.a.held().unwrap(), (types[1], k64, n64, k64), "{desc}");
            assert_eq!(layouts.b.held().unwrap(), (types[0], k64, m64, k64), "{desc}");
            let d = if rows { (R_32F, n64, m64, n64) } else { (d_type, n64, m64, n64 + 8) };
            assert_eq!((layouts.c.held().unwrap(), layouts.d.held().unwrap()), (d, d), "{desc}");
            // The spans that `execute` checks are the buffers of a QuantMatrix, to the byte.
            let modes = [scale_mode(outline.sum.a_scales, &desc), scale_mode(outline.sum.b_scales, &desc)];
            for (scheme, layout, rows, mode) in [(a, &layouts.b, m, modes[0]), (b, &layouts.a, n, modes[1])] {
                assert_eq!(layout.bytes(), scheme.code_bytes(rows, k), "{desc}");
                assert_eq!(mode.unwrap().bytes(rows, k), scheme.block_scale_len(rows, k), "{desc}");
            }
        }
    }
}

#[test]
fn a_bias_and_accumulation_travel_into_native_descriptors() {
    if !is_new_enough() {
        return;
    }
    let bias = Epilogue { bias: Some(DType::Bf16), ..Epilogue::default() };
    let desc = GemmDesc::new(17, 64, 64, Scheme::Nvfp4, Scheme::Nvfp4, DType::F32);
    let (outline, Setup { matmul, .. }) =
        planned(&desc.with_epilogue(bias).with_accumulate(Accumulate::Add), Formulation::Native, Finish::Fused);
    assert_eq!(outline.sum.accumulate, Accumulate::Add);
    assert_eq!(matmul.get(attr::Epilogue).unwrap(), EPILOGUE_BIAS);
    assert_eq!(matmul.get(attr::BiasDataType).unwrap(), R_16BF);
    assert_eq!(matmul.held(PointerAttr::Bias).unwrap(), PLACEHOLDER);
    assert_eq!(matmul.get(attr::AlphaBetaPlace).unwrap(), POINTER_MODE_DEVICE);
    assert_eq!(matmul.get(attr::FastAccum).unwrap(), 0);
}

#[test]
fn dequantized_products_have_no_scales() {
    if found().is_none() {
        return;
    }
    let (m, n, k) = (17, 520, 48);
    let (bf16, f16) = (GemmOperand::Plain(DType::Bf16), GemmOperand::Plain(DType::F16));
    for (a, b, out, operands, device) in [
        (Scheme::Nvfp4.into(), Scheme::Nvfp4, DType::Bf16, R_16BF, 1),
        (Scheme::Nvfp4.into(), Scheme::Nvfp4, DType::F16, R_16F, 1),
        (Scheme::Nvfp4Row.into(), Scheme::Nvfp4, DType::F16, R_16F, 0),
        (MX.into(), MX5, DType::F16, R_16BF, 0),
        (bf16, Scheme::Nvfp4, DType::F32, R_16BF, 1),
        (f16, Scheme::Nvfp4, DType::F16, R_16F, 1),
        (f16, Scheme::Nvfp4Row, DType::Bf16, R_16F, 0),
        (bf16, MX, DType::Bf16, R_16BF, 0),
    ] {
        let stride = if a.scheme().is_none() { 64 } else { k };
        let desc = GemmDesc::new(m, n, k, a, b, out).with_a_stride(stride);
        for kept in [KeptWeights::Nothing, KeptWeights::Dequantized(DType::Bf16)] {
            let desc = desc.with_kept(kept);
            let (outline, Setup { matmul, layouts }) =
                planned(&desc, Formulation::DequantizedBf16, Finish::EpilogueKernel);
            for pointer in PointerAttr::ALL {
                assert_eq!(matmul.held(pointer).unwrap(), 0, "{desc}: {pointer:?}");
            }
            assert_eq!(matmul.get(attr::AlphaBetaPlace).unwrap(), device, "{desc}");
            let (k64, n64, m64) = (k as u64, n as u64, m as u64);
            assert_eq!(layouts.a.held().unwrap(), (operands, k64, n64, k64), "{desc}");
            assert_eq!(layouts.b.held().unwrap(), (operands, k64, m64, stride as u64), "{desc}");
            assert_eq!(layouts.d.held().unwrap(), (R_32F, n64, m64, n64), "{desc}");
            let Scratch { a, b, factors, .. } = outline.scratch;
            assert_eq!(a, if desc.a.scheme().is_some() { m * k * 2 } else { 0 }, "{desc}");
            let is_kept = kept == KeptWeights::Dequantized(DType::Bf16) && operands == R_16BF;
            assert_eq!(b, if is_kept { 0 } else { n * k * 2 }, "{desc}");
            assert_eq!(factors, 16 * device as usize, "{desc}");
        }
    }
}

/// The codes of an A that a call quantizes lie packed, however far apart the rows are that it is given.
#[test]
fn a_that_is_quantized_lies_packed() {
    if found().is_none() {
        return;
    }
    let (m, n, k) = (4, 64, 128);
    let recipe = Fp8Recipe::new(Fp8Granularity::Tensor, Fp8Format::E4M3);
    let desc = GemmDesc::new(m, n, k, recipe.scheme(), Scheme::Fp8Tensor(Fp8Format::E4M3), DType::Bf16)
        .with_quantize_a(QuantizeA::new(DType::Bf16, recipe))
        .with_a_stride(k + 16);
    let (_, Setup { layouts, .. }) = planned(&desc, Formulation::Native, Finish::Fused);
    let (_, k, rows, stride) = layouts.b.held().unwrap();
    assert_eq!((k, rows, stride), (128, 4, 128));
}

/// The bytes of a host matrix lie where the documentation of the modes says that the library looks.
#[test]
fn block_scales_lie_where_the_modes_read_them() {
    for (scheme, mode, block) in [
        (Scheme::Nvfp4, ScaleMode::Vector16Ue4m3, 16),
        (Scheme::Nvfp4Row, ScaleMode::Vector16Ue4m3, 16),
        (MX, ScaleMode::Vector32Ue8m0, 32),
        (MX5, ScaleMode::Vector32Ue8m0, 32),
    ] {
        for (rows, cols) in [(1, 16), (3, 48), (130, 576), (512, 144), (300, 2080)] {
            let blocks = usize::div_ceil(cols, block);
            let byte = |row: usize, at: usize| (1 + (row * 31 + at * 7) % 120) as u8;
            let logical: Vec<u8> = (0..rows * blocks).map(|i| byte(i / blocks, i % blocks)).collect();
            let codes = vec![0; scheme.code_bytes(rows, cols)];
            let scales = vec![1.0; scheme.scale_grid(rows, cols).iter().product()];
            let q = HostQuantMatrix::from_block_logical(scheme, rows, cols, codes, &scales, &logical).unwrap();
            let held = q.block_scales();
            assert_eq!(held.len(), mode.bytes(rows, cols), "{scheme} {rows} x {cols}");
            // cuBLAS documentation, block scaling factors layout: tiles of 128 x 4, 512 bytes each.
            let tiles = usize::div_ceil(blocks, 4);
            let mut seen = vec![false; held.len()];
            for row in 0..rows {
                for at in 0..blocks {
                    let tile = row / 128 * tiles + at / 4;
                    let place = tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + at % 4;
                    assert_eq!(held[place], byte(row, at), "{scheme} {rows} x {cols} ({row}, {at})");
                    seen[place] = true;
                }
            }
            let padding = held.iter().zip(&seen).filter(|(_, seen)| !**seen);
            assert!(padding.clone().all(|(byte, _)| *byte == 0), "{scheme} {rows} x {cols}");
        }
    }
}

/// A record's bytes are compared with what is offered, and never taken: one bit more is another algorithm.
#[test]
fn a_recorded_algorithm_is_taken_only_if_it_is_offered_again() {
    let offered = [[1, 2, 3, 4, 5, 6, 7, u64::MAX], [1, 2, 3, 4, 5, 6, 7, 8]].map(Algo::from_words);
    let named = |algo: &Algo| LtAlgorithm { words: words(algo), config: "in words".into() };
    assert_eq!(words(&offered[1]), (1..9).map(|i| format!("{i:016x}")).collect::<String>());
    assert_eq!(find(&offered, &named(&offered[1])), Some(1));
    let strange = Algo::from_words([1, 2, 3, 4, 5, 6, 7, 9]);
    assert_eq!(find(&offered, &named(&strange)), None);
    for broken in ["", "zz", "0000000000000001", &words(&offered[0]).to_uppercase()] {
        let broken = LtAlgorithm { words: broken.into(), config: String::new() };
        assert_eq!(find(&offered, &broken), None, "{broken:?}");
    }
}

/// One gate for every way to an algorithm, a record's too: what the ledger refuses or unfuses is not asked for.
#[test]
fn the_ledger_forbids_whole_problems_and_fused_epilogues() {
    let unfused = Problem { has_bias: true, ..Problem::PLAIN };
    let refused = Problem { scaling: Scaling::Block32, ..Problem::PLAIN };
    let (old, between, new) = (Version::new(12, 6, 2), Version::new(12, 8, 3), Version::new(13, 1, 0));
    assert!(forbidden(old, &unfused).is_some_and(|reason| reason.contains("12.6.2: the type given for the bias")));
    assert!(forbidden(between, &refused).is_some_and(|reason| reason.contains("scale mode")));
    assert_eq!(
        [forbidden(old, &Problem::PLAIN), forbidden(between, &Problem::PLAIN), forbidden(new, &unfused)],
        [None, None, None]
    );
}
