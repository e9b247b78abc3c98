//! Which pairs of operands our own kernels multiply, and how they read them, whatever the GPU. Pure tables.

use crate::error::Error;
use crate::format::layout::ScaleLayout;
use crate::format::{CodeFormat, Fp8Format, Scheme, pair};
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::pair_kind::{PairKind, pair_kind};
use crate::gpu::kernels::{
    E2M1_K_MULTIPLE, KernelFamily, MOST_LENGTH, Sm90Along, Sm90Config, Sm90Scales, SmallMOperands, SmallMScales,
    most_k_power, most_rows,
};

/// The pair of blocks that our kernels multiply.
const BLOCKS: (Scheme, Scheme) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));

/// How the kernels for groups of rows read these, or why they do not multiply them.
pub(crate) fn grouped_pair(a: Scheme, b: Scheme) -> Result<Sm90Pair, String> {
    // One scale for a matrix and one for each row of the other are no pair that any way multiplies.
    let is_served = |scales: &Sm90Scales| match scales {
        Sm90Scales::Blocks | Sm90Scales::Vectors => true,
        // A group of rows may begin inside a tile of them.
        Sm90Scales::BlocksOfA => false,
        Sm90Scales::Outer { each: [of_a, of_b] } => of_a == of_b,
    };
    let pair = || {
        let scales = Sm90Scales::of(a.spec().scale_layout, b.spec().scale_layout).filter(is_served)?;
        let formats = [fp8_format(a)?, fp8_format(b)?];
        (formats != [Fp8Format::E5M2; 2]).then_some(Sm90Pair { scales, formats })
    };
    pair().ok_or_else(|| served_by_sm90(&[(BLOCKS.0, BLOCKS.0)]))
}

/// Of codes of 8 bits without block scales.
fn fp8_format(scheme: Scheme) -> Option<Fp8Format> {
    match scheme.spec().format {
        CodeFormat::Fp8(format) if scheme.spec().block.is_none() => Some(format),
        _ => None,
    }
}

/// The layouts of scales, of E4M3 codes on both sides.
fn e4m3_layouts(desc: &GemmDesc) -> Option<(ScaleLayout, ScaleLayout)> {
    let e4m3 = |scheme: Scheme| scheme.spec().format == CodeFormat::E4M3 && scheme.spec().block.is_none();
    match pair_kind(desc) {
        PairKind::Fp8(a, b) if desc.a.scheme().is_some_and(e4m3) && e4m3(desc.b) => Some((a, b)),
        _ => None,
    }
}

/// What our kernels serve beside 1x128 x 1x128, which those for few rows do not.
fn served() -> String {
    format!("{} x {}, and fp8-row:e4m3 and fp8-tensor:e4m3 among themselves", BLOCKS.0, BLOCKS.1)
}

/// That, and these pairs, which the kernels for sm_90 serve beside it.
fn served_by_sm90(beside: &[(Scheme, Scheme)]) -> String {
    let beside: Vec<_> = beside.iter().map(|(a, b)| format!("{a} x {b}")).collect();
    format!("it serves {}, and {}, each also with e5m2 codes on one of the two sides", served(), beside.join(" and "))
}

/// A pair of codes with FP32 scales that the kernels for sm_90 multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sm90Pair {
    pub(crate) scales: Sm90Scales,
    /// Of the codes of A and B.
    pub(crate) formats: [Fp8Format; 2],
}

impl Sm90Pair {
    /// The kernels that multiply it.
    pub(crate) fn kernels(self) -> KernelFamily {
        if self.formats == [Fp8Format::E4M3; 2] { KernelFamily::Sm90 } else { KernelFamily::Sm90E5m2 }
    }

    /// Whether a configuration has kernels for groups that divide this.
    pub(crate) fn has_groups(self, along: Sm90Along, config: Sm90Config) -> bool {
        self.scales.multiply_groups_in(along, config, self.formats)
    }

    /// Refuses one that has none.
    pub(crate) fn check_groups(self, along: Sm90Along, config: Sm90Config) -> Result<(), Error> {
        self.scales.check_groups(along, self.formats, config)
    }
}

/// How the kernels for sm_90 read these, or why they do not multiply them. (E5M2 on both sides is refused before: `format/pair`.)
pub(crate) fn sm90_pair(desc: &GemmDesc) -> Result<Sm90Pair, String> {
    let pair = || {
        let PairKind::Fp8(a, b) = pair_kind(desc) else { return None };
        Some(Sm90Pair { scales: Sm90Scales::of(a, b)?, formats: [fp8_format(desc.a.scheme()?)?, fp8_format(desc.b)?] })
    };
    pair().ok_or_else(|| served_by_sm90(&[(BLOCKS.0, BLOCKS.0), (BLOCKS.1, BLOCKS.0)]))
}

/// What the kernels for few rows take these operands for, or `None`.
pub(crate) fn small_m_operands(desc: &GemmDesc) -> Option<SmallMOperands> {
    match (pair_kind(desc), desc.b.spec().format) {
        (PairKind::Fp8(..), _) => {
            let layouts = e4m3_layouts(desc);
            layouts.and_then(|(a, b)| SmallMScales::of(a, b)).map(|_| SmallMOperands::Fp8)
        }
        (_, CodeFormat::E2M1) => Some(SmallMOperands::E2m1Weights),
        (_, CodeFormat::E4M3) => Some(SmallMOperands::E4m3Weights),
        _ => None,
    }
}

/// Whether more rows than few are multiplied by the kernels for few, in passes over weights that are decoded in each: where there is no other way, or none of the same bits for any m.
fn takes_passes(desc: &GemmDesc) -> bool {
    match pair_kind(desc) {
        PairKind::WeightOnlyFp8 => true,
        PairKind::WeightOnly | PairKind::Block(_) | PairKind::Mxfp4 => desc.batch_invariant,
        PairKind::Fp8(..) => false,
    }
}

/// Why the kernels for few rows do not multiply these.
pub(crate) fn small_m_pair(desc: &GemmDesc) -> Result<(), String> {
    let Some(operands) = small_m_operands(desc) else {
        return Err(format!(
            "it serves {}, nvfp4, nvfp4-row, mxfp4 and mxfp8:e4m3 weights, and those of fp8 with plain activations",
            served()
        ));
    };
    if let Some(dtype) = pair::multiplied_in(desc.a, desc.b) {
        return Err(format!(
            "it multiplies {} weights as bf16 numbers, and {} x {} is a product in {dtype}",
            desc.b, desc.a, desc.b
        ));
    }
    let most = most_rows(operands);
    if desc.m > most && !takes_passes(desc) {
        return Err(format!("it serves at most {most} rows of A with {} weights, and m = {}", desc.b, desc.m));
    }
    // What the kernels check, before it is planned: their numbers have 32 bits.
    let power = most_k_power(operands);
    if desc.n > MOST_LENGTH || desc.k > 1 << power {
        return Err(format!("it serves n up to 2^30 and k up to 2^{power}, and n = {}, k = {}", desc.n, desc.k));
    }
    if operands == SmallMOperands::E2m1Weights && !desc.k.is_multiple_of(E2M1_K_MULTIPLE) {
        return Err(format!(
            "with {} weights it serves k in multiples of {E2M1_K_MULTIPLE}, and k = {}",
            desc.b, desc.k
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{DType, Operand};

    #[test]
    fn a_pair_for_sm90_has_scales_and_formats_or_is_none() {
        use Fp8Format::{E4M3, E5M2};
        let (vec, blk) = (Scheme::Fp8Group1x128, Scheme::Fp8Group128x128(E4M3));
        let of = |a: Operand, b| sm90_pair(&GemmDesc::new(16, 4096, 7168, a, b, DType::Bf16));
        let pair = |scales, formats| Ok(Sm90Pair { scales, formats });
        assert_eq!(of(vec(E5M2).into(), blk), pair(Sm90Scales::Blocks, [E5M2, E4M3]));
        assert_eq!(of(vec(E4M3).into(), vec(E5M2)), pair(Sm90Scales::Vectors, [E4M3, E5M2]));
        let [row, tensor] = [Scheme::Fp8Row(E4M3), Scheme::Fp8Tensor(E4M3)];
        assert_eq!(of(row.into(), row), pair(Sm90Scales::Outer { each: [true; 2] }, [E4M3; 2]));
        let (mx, nv, plain) = (Scheme::Mxfp8(E4M3), Scheme::Nvfp4, Operand::Plain(DType::Bf16));
        assert_eq!(of(blk.into(), vec(E5M2)), pair(Sm90Scales::BlocksOfA, [E4M3, E5M2]));
        for (a, b) in [(blk.into(), blk), (nv.into(), nv), (mx.into(), mx), (plain, nv), (plain, tensor)] {
            assert!(of(a, b).unwrap_err().contains("it serves fp8-1x128:e4m3 x fp8-128x128:e4m3"), "{a} x {b}");
        }
    }

    #[test]
    fn groups_have_blocks_or_scales_of_one_kind_on_both_sides() {
        const F: Fp8Format = Fp8Format::E4M3;
        const WIDE: Fp8Format = Fp8Format::E5M2;
        let (tensor, row) = (Scheme::Fp8Tensor(F), Scheme::Fp8Row(F));
        let (vec, blk) = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F));
        let [wide_vec, wide_tensor] = [Scheme::Fp8Group1x128(WIDE), Scheme::Fp8Tensor(WIDE)];
        for (a, b) in [
            (wide_vec, Scheme::Fp8Group128x128(WIDE)),
            (blk, vec),
            (wide_tensor, wide_tensor),
            (Scheme::Mxfp8(F), Scheme::Mxfp8(F)),
            (Scheme::Mxfp8(WIDE), Scheme::Mxfp8(F)),
            (row, tensor),
        ] {
            let words = "it serves fp8-1x128:e4m3 x fp8-128x128:e4m3";
            assert!(grouped_pair(a, b).unwrap_err().starts_with(words), "{a} x {b}");
        }
        let pair = |scales| Ok(Sm90Pair { scales, formats: [F; 2] });
        assert_eq!(grouped_pair(vec, blk), pair(Sm90Scales::Blocks));
        assert_eq!(grouped_pair(vec, vec), pair(Sm90Scales::Vectors));
        assert_eq!(grouped_pair(row, row), pair(Sm90Scales::Outer { each: [true; 2] }));
        assert_eq!(grouped_pair(tensor, tensor), pair(Sm90Scales::Outer { each: [false; 2] }));
        for (a, b, scales, formats) in [
            (wide_vec, blk, Sm90Scales::Blocks, [WIDE, F]),
            (vec, wide_vec, Sm90Scales::Vectors, [F, WIDE]),
            (wide_tensor, tensor, Sm90Scales::Outer { each: [false; 2] }, [WIDE, F]),
            (row, Scheme::Fp8Row(WIDE), Sm90Scales::Outer { each: [true; 2] }, [F, WIDE]),
        ] {
            let pair = grouped_pair(a, b).unwrap();
            assert_eq!((pair, pair.kernels()), (Sm90Pair { scales, formats }, KernelFamily::Sm90E5m2), "{a} x {b}");
        }
        assert_eq!(grouped_pair(vec, vec).unwrap().kernels(), KernelFamily::Sm90);
    }
}
