//! [`Outline`]: what one formulation and finish of a problem ask of the product step, and what they leave to other steps.
//! Pure tables.

use crate::epilogue::{Activation, Epilogue};
use crate::format::layout::ScaleLayout;
use crate::format::{DType, Operand};

use crate::gpu::gemm::available::{batch_invariance, code_order};
use crate::gpu::gemm::desc::{Accumulate, Accumulation, GemmDesc, OutAmax};
use crate::gpu::gemm::formulation::{Finish, Formulation};
use crate::gpu::gemm::our_pairs::{sm90_pair, small_m_pair};
use crate::gpu::gemm::pair_kind::{PairKind, pair_kind};
use crate::gpu::gemm::scratch::Scratch;
use crate::gpu::gemm::sum::{FactorPlace, ScaleSource, Sum, Target, ValueSource, Values};
use crate::gpu::matrix::derived::KeptWeights;

/// How one formulation and finish compute a problem, before anyone is asked for an algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outline {
    pub(crate) formulation: Formulation,
    pub(crate) finish: Finish,
    /// What the product step computes.
    pub(crate) sum: Sum,
    /// Scales of A's rows and B's rows that are left to the epilogue kernel.
    pub(crate) rescale: [ScaleUse; 2],
    /// Scratch memory of a call.
    pub(crate) scratch: Scratch,
}

impl Outline {
    /// Whether a call reads what B derives from its codes and scales: repeated scales, or values that it keeps.
    pub(crate) fn reads_derived(&self) -> bool {
        let kept = self.sum.values.is_some_and(|values| values.b == ValueSource::Given);
        kept || self.formulation == Formulation::RepeatedScales
    }
}

/// What the epilogue kernel multiplies by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleUse {
    Nothing,
    /// One number for the matrix.
    One,
    /// One number for each row.
    Each,
}

/// Rows the GEMM must compute: cuBLASLt wants m in fours where A has 1x128 scales (documented and observed).
fn gemm_rows(desc: &GemmDesc) -> usize {
    desc.m.next_multiple_of(desc.a.scheme().map_or(1, |a| a.spec().row_multiple))
}

/// The type in which operands are dequantized: A's own; F16 where NVFP4 goes into F16, which BF16 operands cannot; else BF16.
/// F16 does not hold all that E8M0 scales reach: MXFP4 is taken in it only where A is F16 ([`multiplied_in`](crate::pair::multiplied_in)).
fn value_type(desc: &GemmDesc) -> DType {
    match desc.a {
        Operand::Plain(dtype) => dtype,
        Operand::Quantized(a) if desc.out == DType::F16 && a.is_nvfp4() => DType::F16,
        Operand::Quantized(_) => DType::Bf16,
    }
}

/// What a formulation takes as plain numbers.
fn values(desc: &GemmDesc, formulation: Formulation) -> Option<Values> {
    let dtype = value_type(desc);
    let a = if desc.a.scheme().is_some() { ValueSource::Scratch } else { ValueSource::Given };
    let b = match formulation {
        Formulation::DequantizedBf16 if desc.kept == KeptWeights::Dequantized(dtype) => ValueSource::Given,
        Formulation::DequantizedBf16 => ValueSource::Scratch,
        Formulation::SmallM if desc.b.spec().block.is_some() || desc.a.scheme().is_none() => ValueSource::Codes,
        _ => return None,
    };
    Some(Values { dtype, a, b })
}

/// The scales of an operand that are no part of the sum: of NVFP4 its second level, of FP8 those of rows and of whole matrices.
pub(crate) fn second_level(operand: Operand) -> ScaleUse {
    match operand.scheme().map(|scheme| scheme.spec().scale_layout) {
        Some(ScaleLayout::Scalar) => ScaleUse::One,
        Some(ScaleLayout::Outer) => ScaleUse::Each,
        _ => ScaleUse::Nothing,
    }
}

/// Who applies the scales that are not part of the GEMM: with a scale for each row on either side the epilogue kernel, for
/// whole matrices alpha; our kernels for few rows apply them all.
fn outer_scales(desc: &GemmDesc, formulation: Formulation) -> (FactorPlace, [ScaleUse; 2]) {
    let kind = pair_kind(desc);
    let levels = [second_level(desc.a), second_level(desc.b.into())];
    match (formulation, kind) {
        (Formulation::Rescaled, _) => (FactorPlace::Host, levels),
        (_, PairKind::Fp8(..)) | (Formulation::SmallM, _) => (FactorPlace::Host, [ScaleUse::Nothing; 2]),
        _ if levels.contains(&ScaleUse::Each) => (FactorPlace::Host, levels),
        _ if levels.contains(&ScaleUse::One) => (FactorPlace::Device, [ScaleUse::Nothing; 2]),
        _ => (FactorPlace::Host, [ScaleUse::Nothing; 2]),
    }
}

/// Why cuBLASLt cannot do this epilogue, if so. What is left over is still asked of the heuristic.
fn not_fusable(desc: &GemmDesc, values: Option<Values>) -> Option<String> {
    if let Some(Values { dtype, .. }) = values.filter(|v| v.dtype != desc.out && desc.out != DType::F32) {
        return Some(format!("cuBLASLt stores {dtype} or f32 of {dtype} operands, not {}", desc.out));
    }
    let Epilogue { bias, activation, residual } = desc.epilogue;
    if residual.is_some() {
        return Some("cuBLASLt adds no residual".to_string());
    }
    if activation == Activation::Silu {
        return Some("cuBLASLt has no SiLU".to_string());
    }
    if activation == Activation::Gelu && !matches!(desc.out, DType::Bf16 | DType::F16) {
        return Some(format!("fused GELU is kept for bf16 and f16 output, not {}", desc.out));
    }
    if desc.accumulate == Accumulate::Add && activation != Activation::None {
        return Some("an activation after accumulation is done in our kernel".to_string());
    }
    if desc.out == DType::E4M3 && (bias.is_some() || activation != Activation::None) {
        // Observed (H200, cuBLASLt 13.1.0): amax came back as 97.5 where FP32 gives 97.2995, so the library rounds the sum
        // to the bias type before it takes amax and encodes. Without bias and activation it stays in FP32.
        return Some("cuBLASLt rounds to bf16 between epilogue and e4m3 output; our kernel stays in f32".to_string());
    }
    // Documented: with quantized operands F32 output takes a BF16 bias, with plain ones a bias of its own type.
    let fused_bias = match desc.out {
        DType::F16 => DType::F16,
        DType::F32 if values.is_some() => DType::F32,
        _ => DType::Bf16,
    };
    match bias {
        Some(bias) if bias != fused_bias => {
            Some(format!("cuBLASLt fuses a {fused_bias} bias into {} output, not {bias}", desc.out))
        }
        _ => None,
    }
}

/// Why our products do not write D themselves, if they do not.
fn not_by_ours(desc: &GemmDesc) -> Option<String> {
    let stored = matches!(desc.out, DType::Bf16 | DType::F16 | DType::F32);
    (!stored).then(|| format!("our product stores bf16, f16 or f32, not {}", desc.out))
}

/// The outline of one formulation and finish, or why this finish does not fit.
pub(crate) fn outline(desc: &GemmDesc, formulation: Formulation, finish: Finish) -> Result<Outline, String> {
    match (formulation, pair_kind(desc)) {
        (Formulation::Native, PairKind::WeightOnly | PairKind::Mxfp4)
        | (Formulation::Native, PairKind::WeightOnlyFp8)
        | (Formulation::DequantizedBf16, PairKind::Fp8(..) | PairKind::WeightOnlyFp8)
        | (
            Formulation::RepeatedScales | Formulation::Rescaled | Formulation::Sm90,
            PairKind::Block(_) | PairKind::Mxfp4 | PairKind::WeightOnly | PairKind::WeightOnlyFp8,
        ) => {
            return Err(format!("{formulation} does not serve {} x {}", desc.a, desc.b));
        }
        _ => {}
    }
    // Records come here, too: what the kernels would take for other codes is refused, and what is not batch-invariant.
    code_order(desc, formulation)?;
    batch_invariance(desc, formulation)?;
    match formulation {
        Formulation::Sm90 => {
            sm90_pair(desc)?;
        }
        Formulation::SmallM => small_m_pair(desc)?,
        _ => {}
    }
    // Of the two finishes that could be had, one for all m.
    if desc.batch_invariant && finish == Finish::EpilogueKernel && not_by_ours(desc).is_none() {
        return Err("a batch-invariant product stores D itself where it can, whatever m is".to_string());
    }
    let rows = if formulation.is_by_cublaslt() { gemm_rows(desc) } else { desc.m };
    let padded = rows != desc.m;
    let (a_scales, b_scales) = match (formulation, pair_kind(desc)) {
        (Formulation::Native | Formulation::Sm90 | Formulation::SmallM, PairKind::Fp8(a, b)) => (a, b),
        (Formulation::Native | Formulation::Sm90, _) => (ScaleLayout::Tiled128x4, ScaleLayout::Tiled128x4),
        (Formulation::SmallM, PairKind::WeightOnlyFp8) => (ScaleLayout::Absent, desc.b.spec().scale_layout),
        (Formulation::SmallM, _) => (ScaleLayout::Absent, ScaleLayout::Tiled128x4),
        (Formulation::RepeatedScales, _) => (ScaleLayout::Vec128, ScaleLayout::Vec128),
        (Formulation::Rescaled, _) => (ScaleLayout::Scalar, ScaleLayout::Scalar),
        (Formulation::DequantizedBf16, _) => (ScaleLayout::Absent, ScaleLayout::Absent),
    };
    let values = values(desc, formulation);
    let (factors, rescale) = outer_scales(desc, formulation);
    let in_scratch = |source: Option<ValueSource>, rows: usize, dtype: DType| match source {
        Some(ValueSource::Scratch) => rows * desc.k * dtype.bytes(),
        Some(ValueSource::Given | ValueSource::Codes) | None => 0,
    };
    let dtype = values.map_or(DType::Bf16, |v| v.dtype);
    let scratch = Scratch {
        sum: 0,
        a: in_scratch(values.map(|v| v.a), desc.m, dtype),
        b: in_scratch(values.map(|v| v.b), desc.n, dtype),
        factors: if factors == FactorPlace::Device { 16 } else { 0 },
        codes: desc.quantize_a.map_or(0, |quantize| quantize.recipe.scheme().code_bytes(desc.m, desc.k)),
        scales: desc.quantize_a.map_or(0, |quantize| quantize.recipe.scheme().scale_len(desc.m, desc.k) * 4),
        few_rows: 0,
    };
    // Block modes promote every 128 columns anyway, and the library refuses fast accumulation with them (observed).
    let scalar_or_row = matches!(a_scales, ScaleLayout::Scalar | ScaleLayout::Outer);
    let accumulation = if scalar_or_row { desc.accumulation } else { Accumulation::Precise };
    let scales = match formulation {
        Formulation::Rescaled => ScaleSource::Ones,
        Formulation::Native
        | Formulation::RepeatedScales
        | Formulation::DequantizedBf16
        | Formulation::Sm90
        | Formulation::SmallM => ScaleSource::Matrices,
    };
    let fused = Sum {
        rows,
        values,
        a_scales,
        b_scales,
        scales,
        factors,
        target: Target::D,
        d_type: desc.out,
        d_stride: desc.out_stride,
        bias: desc.epilogue.bias,
        activation: desc.epilogue.activation,
        accumulate: desc.accumulate,
        amax: desc.out_amax,
        accumulation,
    };
    let base = Outline { formulation, finish, sum: fused, rescale, scratch };
    if finish == Finish::EpilogueKernel {
        let sum = Sum {
            target: Target::Scratch,
            d_type: DType::F32,
            d_stride: desc.n,
            bias: None,
            activation: Activation::None,
            accumulate: Accumulate::Replace,
            amax: OutAmax::Ignore,
            ..fused
        };
        let scratch = Scratch { sum: rows * desc.n * DType::F32.bytes(), ..scratch };
        return Ok(Outline { sum, scratch, ..base });
    }
    if rescale != [ScaleUse::Nothing; 2] {
        return Err("scaling rows and columns is the epilogue kernel's work".to_string());
    }
    let not_fused = match formulation {
        Formulation::Sm90 | Formulation::SmallM => not_by_ours(desc),
        _ => not_fusable(desc, values),
    };
    if let Some(reason) = not_fused {
        return Err(reason);
    }
    match (finish, padded) {
        (Finish::Fused, false) => Ok(base),
        (Finish::Fused, true) => Err(format!("m = {} is not a multiple of 4, as 1x128 scales of A need", desc.m)),
        (_, false) => Err(format!("m = {} needs no padding", desc.m)),
        (_, true) if desc.accumulate == Accumulate::Add => {
            Err("D's old value is not in the padded scratch matrix".to_string())
        }
        (_, true) => {
            let sum = Sum { target: Target::Scratch, d_stride: desc.n, ..fused };
            let scratch = Scratch { sum: rows * desc.n * desc.out.bytes(), ..scratch };
            Ok(Outline { sum, scratch, ..base })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Fp8Format, Scheme};

    const F: Fp8Format = Fp8Format::E4M3;

    fn desc(m: usize, a: Scheme, b: Scheme) -> GemmDesc {
        GemmDesc::new(m, 4096, 7168, a, b, DType::Bf16)
    }

    fn finishes(desc: &GemmDesc, formulation: Formulation) -> Vec<Finish> {
        Finish::ALL.into_iter().filter(|f| outline(desc, formulation, *f).is_ok()).collect()
    }

    #[test]
    fn padding_and_epilogues_decide_the_finish() {
        let (vec, blk, row) = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F), Scheme::Fp8Row(F));
        use Finish::{EpilogueKernel, Fused, PaddedCopy};
        assert_eq!(finishes(&desc(8, vec, blk), Formulation::Native), [Fused, EpilogueKernel]);
        assert_eq!(finishes(&desc(7, vec, blk), Formulation::Native), [PaddedCopy, EpilogueKernel]);
        // 128x128 x 1x128 runs at any m.
        assert_eq!(finishes(&desc(7, blk, vec), Formulation::Native), [Fused, EpilogueKernel]);
        assert_eq!(finishes(&desc(7, row, row), Formulation::Rescaled), [EpilogueKernel]);
        let silu = Epilogue { activation: Activation::Silu, ..Epilogue::default() };
        assert_eq!(finishes(&desc(8, vec, blk).with_epilogue(silu), Formulation::Native), [EpilogueKernel]);
        let wide_bias = Epilogue { bias: Some(DType::F32), ..Epilogue::default() };
        assert_eq!(finishes(&desc(8, vec, blk).with_epilogue(wide_bias), Formulation::Native), [EpilogueKernel]);
        let tensor = Scheme::Fp8Tensor(F);
        let encoded = GemmDesc { out: DType::E4M3, ..desc(8, tensor, tensor) };
        assert_eq!(finishes(&encoded, Formulation::Native), [Fused, EpilogueKernel]);
        let bias = Epilogue { bias: Some(DType::Bf16), ..Epilogue::default() };
        let relu = Epilogue { activation: Activation::Relu, ..Epilogue::default() };
        for epilogue in [bias, relu] {
            assert_eq!(finishes(&encoded.with_epilogue(epilogue), Formulation::Native), [EpilogueKernel]);
        }
        let add = GemmDesc { out: DType::F32, accumulate: Accumulate::Add, ..desc(7, vec, blk) };
        assert_eq!(finishes(&add, Formulation::Native), [EpilogueKernel]);
        assert_eq!(finishes(&GemmDesc { m: 8, ..add }, Formulation::Native), [Fused, EpilogueKernel]);
    }

    #[test]
    fn scratch_is_counted_in_padded_rows() {
        let (vec, blk) = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F));
        let desc = desc(7, vec, blk).with_accumulation(Accumulation::Fast);
        let padded = outline(&desc, Formulation::RepeatedScales, Finish::PaddedCopy).unwrap();
        assert_eq!((padded.sum.rows, padded.scratch.bytes()), (8, 8 * 4096 * 2));
        assert!(padded.reads_derived());
        assert_eq!(padded.sum.accumulation, Accumulation::Precise);
        assert_eq!((padded.sum.a_scales, padded.sum.b_scales), (ScaleLayout::Vec128, ScaleLayout::Vec128));
        let wide = outline(&desc, Formulation::Native, Finish::EpilogueKernel).unwrap();
        assert_eq!(wide.scratch.bytes(), 8 * 4096 * 4);
    }

    #[test]
    fn our_products_take_any_m_and_do_every_epilogue_but_codes() {
        use Finish::{EpilogueKernel, Fused};
        let pair = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F));
        let (row, tensor) = (Scheme::Fp8Row(F), Scheme::Fp8Tensor(F));
        let all = Epilogue { bias: Some(DType::F32), activation: Activation::Silu, residual: Some(DType::F16) };
        for ours in [Formulation::Sm90, Formulation::SmallM] {
            for (a, b) in [pair, (row, row), (tensor, tensor)] {
                for out in [DType::Bf16, DType::F16, DType::F32] {
                    let desc = GemmDesc { out, ..desc(7, a, b) }.with_epilogue(all).with_out_stride(8192);
                    assert_eq!(finishes(&desc, ours), [Fused, EpilogueKernel], "{desc}");
                    let call = outline(&desc, ours, Fused).unwrap();
                    assert_eq!((call.sum.rows, call.sum.bias, call.scratch.bytes()), (7, Some(DType::F32), 0));
                    assert_eq!((call.sum.d_stride, call.sum.d_type, call.rescale), (8192, out, [ScaleUse::Nothing; 2]));
                    let layouts = [a, b].map(|scheme| scheme.spec().scale_layout);
                    assert_eq!([call.sum.a_scales, call.sum.b_scales], layouts);
                }
                let add = GemmDesc { out: DType::F32, ..desc(7, a, b) }.with_accumulate(Accumulate::Add);
                assert_eq!(finishes(&add, ours), [Fused, EpilogueKernel]);
                let codes = GemmDesc { out: DType::E4M3, ..desc(7, a, b) };
                assert_eq!(finishes(&codes, ours), [EpilogueKernel]);
                assert!(outline(&codes, ours, Fused).unwrap_err().contains("stores bf16, f16 or f32, not e4m3"));
                let wide = outline(&desc(7, a, b), ours, EpilogueKernel).unwrap();
                assert_eq!(
                    (wide.sum.d_type, wide.sum.d_stride, wide.scratch.bytes()),
                    (DType::F32, 4096, 7 * 4096 * 4)
                );
            }
            // Also of a record, which nobody asks whether the formulation is available.
            for (a, b) in [(Scheme::Mxfp8(F), Scheme::Mxfp8(Fp8Format::E5M2)), (pair.1, pair.1)] {
                assert!(outline(&desc(7, a, b), ours, Fused).unwrap_err().contains("serve"));
            }
            let turned = outline(&desc(7, pair.1, pair.0), ours, Fused);
            assert_eq!(turned.is_ok(), ours == Formulation::Sm90);
            let e5m2 = outline(&desc(7, Scheme::Fp8Group1x128(Fp8Format::E5M2), pair.1), ours, Fused);
            assert_eq!(e5m2.is_ok(), ours == Formulation::Sm90);
        }
        assert!(outline(&desc(33, row, row), Formulation::SmallM, Fused).unwrap_err().contains("at most 32 rows"));
    }

    #[test]
    fn few_rows_read_weights_as_codes() {
        let (nv, row, mx4) = (Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp4);
        let (bf16, f16) = (Operand::Plain(DType::Bf16), Operand::Plain(DType::F16));
        for (a, b, out, dtype) in [
            (bf16, nv, DType::F16, DType::Bf16),
            (f16, row, DType::Bf16, DType::F16),
            (bf16, mx4, DType::F32, DType::Bf16),
            (row.into(), nv, DType::F16, DType::F16),
            (nv.into(), row, DType::Bf16, DType::Bf16),
            (Scheme::Mxfp8(F).into(), mx4, DType::F16, DType::Bf16),
            (bf16, Scheme::Mxfp8(F), DType::F16, DType::Bf16),
            (Scheme::Mxfp8(Fp8Format::E5M2).into(), Scheme::Mxfp8(F), DType::F32, DType::Bf16),
        ] {
            let desc = GemmDesc::new(7, 4096, 7168, a, b, out);
            for kept in [KeptWeights::Nothing, KeptWeights::Dequantized(dtype)] {
                let call = outline(&desc.with_kept(kept), Formulation::SmallM, Finish::Fused).unwrap();
                let source = if a.scheme().is_some() { ValueSource::Scratch } else { ValueSource::Given };
                assert_eq!(call.sum.values, Some(Values { dtype, a: source, b: ValueSource::Codes }), "{desc}");
                assert!(!call.reads_derived(), "{desc}");
                // All scales within, second levels too.
                assert_eq!((call.sum.factors, call.rescale), (FactorPlace::Host, [ScaleUse::Nothing; 2]), "{desc}");
                let a_bytes = if a.scheme().is_some() { 7 * 7168 * 2 } else { 0 };
                assert_eq!(call.scratch, Scratch { a: a_bytes, ..Scratch::default() }, "{desc}");
            }
            assert_eq!(finishes(&desc, Formulation::SmallM), [Finish::Fused, Finish::EpilogueKernel]);
        }
        for b in [Scheme::Fp8Tensor(F), Scheme::Fp8Row(F), Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F)] {
            let desc = GemmDesc::new(7, 4096, 7168, f16, b, DType::Bf16);
            let call = outline(&desc, Formulation::SmallM, Finish::Fused).unwrap();
            let values = Values { dtype: DType::F16, a: ValueSource::Given, b: ValueSource::Codes };
            assert_eq!((call.sum.values, call.sum.b_scales), (Some(values), b.spec().scale_layout));
            assert_eq!((call.rescale, call.scratch), ([ScaleUse::Nothing; 2], Scratch::default()));
            for other in [Formulation::Native, Formulation::DequantizedBf16, Formulation::Sm90] {
                assert!(finishes(&desc, other).is_empty(), "{other}");
            }
        }
        let desc = GemmDesc::new(7, 4096, 7168, f16, mx4, DType::F16);
        assert!(outline(&desc, Formulation::SmallM, Finish::Fused).unwrap_err().contains("a product in f16"));
    }

    #[test]
    fn second_levels_go_into_alpha_or_to_the_epilogue_kernel() {
        use FactorPlace::{Device, Host};
        use ScaleUse::{Each, Nothing, One};
        let (nv, row, mx) = (Scheme::Nvfp4.into(), Scheme::Nvfp4Row.into(), Scheme::Mxfp8(F).into());
        let (bf16, f16) = (Operand::Plain(DType::Bf16), Operand::Plain(DType::F16));
        for (a, b, factors, rescale) in [
            (nv, Scheme::Nvfp4, Device, [Nothing, Nothing]),
            (nv, Scheme::Nvfp4Row, Host, [One, Each]),
            (row, Scheme::Nvfp4, Host, [Each, One]),
            (row, Scheme::Nvfp4Row, Host, [Each, Each]),
            (mx, Scheme::Mxfp8(F), Host, [Nothing, Nothing]),
            (bf16, Scheme::Nvfp4, Device, [Nothing, Nothing]),
            (f16, Scheme::Nvfp4Row, Host, [Nothing, Each]),
            (bf16, Scheme::Mxfp8(F), Host, [Nothing, Nothing]),
            (mx, Scheme::Mxfp4, Host, [Nothing, Nothing]),
            (Scheme::Mxfp4.into(), Scheme::Mxfp4, Host, [Nothing, Nothing]),
            (f16, Scheme::Mxfp4, Host, [Nothing, Nothing]),
        ] {
            for formulation in [Formulation::Native, Formulation::DequantizedBf16] {
                let desc = GemmDesc::new(17, 4096, 7168, a, b, DType::F32);
                let call = outline(&desc, formulation, Finish::EpilogueKernel);
                if formulation == Formulation::Native && (a.scheme().is_none() || b == Scheme::Mxfp4) {
                    assert!(call.unwrap_err().contains("native does not serve"), "{desc}");
                    continue;
                }
                let call = call.unwrap();
                assert_eq!((call.sum.factors, call.rescale), (factors, rescale), "{desc}");
                let fused = outline(&desc, formulation, Finish::Fused);
                assert_eq!(fused.is_ok(), rescale == [Nothing, Nothing], "{desc}");
                assert!(outline(&desc, formulation, Finish::PaddedCopy).is_err(), "{desc}");
            }
        }
        let fp8 = outline(&desc(17, Scheme::Fp8Row(F), Scheme::Fp8Row(F)), Formulation::Native, Finish::Fused).unwrap();
        assert_eq!((fp8.sum.factors, fp8.rescale), (Host, [Nothing, Nothing]));
    }

    #[test]
    fn value_types_decide_what_is_fused() {
        use Finish::{EpilogueKernel, Fused};
        let [nv, mx, mx4] = [Scheme::Nvfp4, Scheme::Mxfp8(F), Scheme::Mxfp4].map(Operand::from);
        let (bf16, f16) = (Operand::Plain(DType::Bf16), Operand::Plain(DType::F16));
        let both: &[Finish] = &[Fused, EpilogueKernel];
        let kernel: &[Finish] = &[EpilogueKernel];
        for (a, out, dtype, wanted) in [
            (nv, DType::Bf16, DType::Bf16, both),
            (nv, DType::F16, DType::F16, both),
            (nv, DType::F32, DType::Bf16, both),
            (mx, DType::F16, DType::Bf16, kernel),
            (mx4, DType::F16, DType::Bf16, kernel),
            (mx4, DType::Bf16, DType::Bf16, both),
            (mx, DType::Bf16, DType::Bf16, both),
            (bf16, DType::F16, DType::Bf16, kernel),
            (f16, DType::Bf16, DType::F16, kernel),
            (f16, DType::F16, DType::F16, both),
            (f16, DType::F32, DType::F16, both),
        ] {
            let b = a.scheme().unwrap_or(Scheme::Nvfp4);
            let desc = GemmDesc::new(17, 4096, 7168, a, b, out);
            assert_eq!(finishes(&desc, Formulation::DequantizedBf16), wanted, "{desc}");
            let call = outline(&desc, Formulation::DequantizedBf16, EpilogueKernel).unwrap();
            assert_eq!(call.sum.values.map(|v| v.dtype), Some(dtype), "{desc}");
            assert_eq!((call.sum.a_scales, call.sum.b_scales), (ScaleLayout::Absent, ScaleLayout::Absent));
            // A bias of D's own type is fused, whoever the operands are; with codes F32 output takes BF16.
            for bias in [DType::Bf16, DType::F16, DType::F32] {
                let biased = desc.with_epilogue(Epilogue { bias: Some(bias), ..Epilogue::default() });
                let fused = outline(&biased, Formulation::DequantizedBf16, Fused).is_ok();
                assert_eq!(fused, wanted == both && bias == out, "{biased}");
                let native = outline(&biased, Formulation::Native, Fused).is_ok();
                let taken = if out == DType::F16 { DType::F16 } else { DType::Bf16 };
                assert_eq!(native, bias == taken && a.scheme().is_some() && a != mx4, "{biased}");
            }
        }
    }

    #[test]
    fn scratch_holds_what_the_caller_does_not_bring() {
        let scratch = |desc: &GemmDesc, finish| outline(desc, Formulation::DequantizedBf16, finish).unwrap().scratch;
        let nv = desc(17, Scheme::Nvfp4, Scheme::Nvfp4);
        let (a, b) = (17 * 7168 * 2, 4096 * 7168 * 2);
        assert_eq!(scratch(&nv, Finish::Fused), Scratch { sum: 0, a, b, factors: 16, ..Scratch::default() });
        let kept = nv.with_kept(KeptWeights::Dequantized(DType::Bf16));
        assert_eq!(scratch(&kept, Finish::Fused), Scratch { sum: 0, a, b: 0, factors: 16, ..Scratch::default() });
        // Values of another type than the product's are of no use to it.
        let other = nv.with_kept(KeptWeights::Dequantized(DType::F16));
        assert_eq!(scratch(&other, Finish::Fused).b, b);
        assert_eq!(scratch(&GemmDesc { out: DType::F16, ..other }, Finish::Fused).b, 0);
        let weight_only = GemmDesc { a: Operand::Plain(DType::Bf16), ..kept };
        assert_eq!(scratch(&weight_only, Finish::Fused).bytes(), 16);
        let sum = 17 * 4096 * 4;
        let whole = scratch(&weight_only, Finish::EpilogueKernel);
        assert_eq!(whole, Scratch { sum, a: 0, b: 0, factors: 16, ..Scratch::default() });
        let mx = desc(17, Scheme::Mxfp8(F), Scheme::Mxfp8(F));
        assert_eq!(outline(&mx, Formulation::Native, Finish::Fused).unwrap().scratch.bytes(), 0);
        assert_eq!(outline(&nv, Formulation::Native, Finish::Fused).unwrap().scratch.bytes(), 16);
    }
}
