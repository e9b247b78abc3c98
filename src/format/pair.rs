//! Which operands multiply, into which output types, at which shapes. Asked by the CPU and the GPU side alike.
//!
//! The rules hold on every device; what one GPU lacks beyond them is that GPU's business.

use super::dtype::DType;
use super::nvfp4::Basis;
use super::operand::Operand;
use super::scheme::{BlockScaleFormat, CodeFormat, Extent, Fp8Format, Scheme, SchemeSpec};
use crate::error::{Error, Result};

/// The contraction dimension of every quantized operand is a multiple of this: 16-byte rows of FP8 codes, whole NVFP4 blocks.
pub const K_MULTIPLE: usize = 16;

/// D's columns are a multiple of this for BF16, F16 and F32; see [`n_multiple`].
pub const N_MULTIPLE: usize = 8;

/// The multiple that n must be for this output type: 16 for E4M3, else 8.
///
/// From cuBLASLt's rule that a row of D is a multiple of 16 bytes (F32 would allow 4; one rule for all wide types).
pub const fn n_multiple(out: DType) -> usize {
    match out {
        DType::E4M3 | DType::E5M2 => 16,
        DType::Bf16 | DType::F16 | DType::F32 => N_MULTIPLE,
    }
}

/// How the scales of a scheme reach, as far as multiplication is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Tensor,
    Row,
    Vector,
    Tile,
    Mxfp8,
    Mxfp4,
    Nvfp4,
}

fn reach(spec: &SchemeSpec) -> Reach {
    match (spec.block.map(|b| b.format), spec.group_rows, spec.group_cols) {
        (Some(BlockScaleFormat::Ue8m0), ..) if spec.format == CodeFormat::E2M1 => Reach::Mxfp4,
        (Some(BlockScaleFormat::Ue8m0), ..) => Reach::Mxfp8,
        (Some(BlockScaleFormat::Ue4m3), ..) => Reach::Nvfp4,
        (None, Extent::All, _) => Reach::Tensor,
        (None, Extent::Elements(1), Extent::All) => Reach::Row,
        (None, Extent::Elements(1), _) => Reach::Vector,
        (None, Extent::Elements(_), _) => Reach::Tile,
    }
}

/// Checks that `a` and `b` can be multiplied.
///
/// FP8: tensor x tensor, row x row, 1x128 x 128x128 (either side), 1x128 x 1x128; MXFP8 x MXFP8; each E4M3 x E4M3 or one
/// of the two E5M2. MXFP8 or MXFP4 x MXFP4. NVFP4 x NVFP4, with one scale or one for each row on either side. A may be plain
/// where only the weights are quantized: BF16 or F16 x NVFP4, MXFP4 or FP8 (E4M3), BF16 x MXFP8. `device` goes into the message: the
/// GPU's name, or `cpu`.
///
/// # Errors
/// [`Error::Pair`] with the reason.
pub fn check_pair(a: impl Into<Operand>, b: Scheme, device: &str) -> Result<()> {
    let a = a.into();
    let (reason, remedy) = match a {
        Operand::Plain(dtype) => match plain_refusal(dtype, &b.spec()) {
            None => return Ok(()),
            Some(reason) => (reason, plain_remedy(reach(&b.spec()))),
        },
        Operand::Quantized(scheme) => match quantized_refusal(&scheme.spec(), &b.spec()) {
            None => return Ok(()),
            Some(words) => words,
        },
    };
    Err(Error::Pair { a, b, device: device.into(), reason: reason.into(), remedy: remedy.into() })
}

/// The reason if a plain A cannot multiply weights of this kind.
fn plain_refusal(a: DType, spec: &SchemeSpec) -> Option<&'static str> {
    match (a, reach(spec)) {
        (DType::E4M3 | DType::E5M2, _) => Some("FP8 numbers without scales are no operand"),
        (DType::F32, _) => {
            Some("an FP32 A would be rounded to the 8 or 11 bits of a tensor core's operand, and nobody asked for that")
        }
        // MXFP4 has the scales of MXFP8, but its weights fit F16 where scale bytes are 104 to 140: see `multiplied_in`.
        (DType::Bf16 | DType::F16, Reach::Nvfp4 | Reach::Mxfp4) | (DType::Bf16, Reach::Mxfp8) => None,
        (DType::F16, Reach::Mxfp8) => Some(
            "the E8M0 scales of MXFP8 reach from 2^-127 to 2^127 and leave the range of F16, in which B would be multiplied",
        ),
        (_, Reach::Tensor | Reach::Row | Reach::Vector | Reach::Tile) if spec.format == Fp8Format::E5M2 => Some(
            "FP8 weights with FP32 scales multiply plain activations as E4M3; E5M2 weights multiply FP8 activations",
        ),
        (_, Reach::Tensor | Reach::Row | Reach::Vector | Reach::Tile) => None,
    }
}

/// What multiplies weights of this kind in the place of a plain A that does not; as E4M3, which goes with both FP8 formats.
fn plain_remedy(b: Reach) -> &'static str {
    match b {
        Reach::Tensor => "quantize A as fp8-tensor",
        Reach::Row => "quantize A as fp8-row",
        Reach::Vector | Reach::Tile => "quantize A as fp8-1x128",
        Reach::Mxfp8 => "round A to bf16 first, or quantize it as mxfp8",
        Reach::Mxfp4 => "round A to bf16 first, or quantize it as mxfp4",
        Reach::Nvfp4 => "round A to bf16 first, or quantize it as nvfp4",
    }
}

/// Reason and remedy if two quantized operands cannot be multiplied.
fn quantized_refusal(a: &SchemeSpec, b: &SchemeSpec) -> Option<(&'static str, &'static str)> {
    if a.format == Fp8Format::E5M2 && b.format == Fp8Format::E5M2 {
        return Some((
            "no tensor core instruction of cuBLASLt multiplies E5M2 by E5M2",
            "quantize one of the two as e4m3",
        ));
    }
    match (reach(a), reach(b)) {
        (Reach::Tensor, Reach::Tensor)
        | (Reach::Row, Reach::Row)
        | (Reach::Vector, Reach::Vector | Reach::Tile)
        | (Reach::Tile, Reach::Vector)
        | (Reach::Mxfp8, Reach::Mxfp8)
        | (Reach::Mxfp8 | Reach::Mxfp4, Reach::Mxfp4)
        | (Reach::Nvfp4, Reach::Nvfp4) => None,
        (Reach::Tile, Reach::Tile) => Some((
            "at least one operand must have 1x128 scales (cuBLASLt has no product of two 128x128 operands)",
            "quantize one of the two, usually A, as fp8-1x128",
        )),
        (Reach::Nvfp4, Reach::Mxfp4) | (Reach::Mxfp4, Reach::Nvfp4) => Some((
            "NVFP4 and MXFP4 have scales of 16 and of 32 columns: no instruction mixes them",
            "quantize both as nvfp4 or both as mxfp4, or leave A plain",
        )),
        (Reach::Nvfp4, _) | (_, Reach::Nvfp4) => Some((
            "NVFP4 multiplies NVFP4, or plain BF16 and F16 activations; no instruction mixes its scales with those of FP8",
            "quantize both as nvfp4 or nvfp4-row, or leave A plain",
        )),
        (Reach::Mxfp4, Reach::Mxfp8) => Some((
            "MXFP4 is for weights: activations of fewer bits than their weights are nobody's scheme",
            "quantize A as mxfp8, or B as mxfp4",
        )),
        (Reach::Mxfp4, _) | (_, Reach::Mxfp4) => Some((
            "MXFP4 multiplies MXFP4, or MXFP8 and plain activations; its scales go with none of FP8's",
            "quantize both as mxfp4, A as mxfp8, or leave A plain",
        )),
        (Reach::Mxfp8, _) | (_, Reach::Mxfp8) => Some((
            "MXFP8 multiplies MXFP8 and MXFP4, or plain BF16 activations; no instruction mixes its scales with those of FP8",
            "quantize both as mxfp8, or leave A plain",
        )),
        (Reach::Tensor | Reach::Row, _) | (_, Reach::Tensor | Reach::Row) => Some((
            "the scales of A and B must be of one family: tensor x tensor, row x row, or groups of 1x128 and 128x128",
            "quantize both with one recipe, or fp8-1x128 x fp8-128x128",
        )),
    }
}

/// The type in which a product takes the values `code * block_scale` of B, `None` if exactly as they are.
///
/// `Some(F16)` where A is plain F16 and B MXFP4: there `b = f16(code * 2^(byte - 127))`, rounded to nearest even. That is exact for
/// scale bytes 104 (the step of F16's subnormals) to 140; from 141 on large codes become infinite, below 104 codes lose
/// bits and at last become 0. All else is exact in what products are computed in: NVFP4 in BF16 and F16, MXFP4 in BF16 for
/// every byte (as far as FP32 holds it, whose range BF16 has), and MXFP8 in BF16 but for the ends of its range, which
/// [`gemm_bound`](crate::reference::gemm_bound) allows for.
pub fn multiplied_in(a: impl Into<Operand>, b: Scheme) -> Option<DType> {
    match (a.into(), reach(&b.spec())) {
        (Operand::Plain(DType::F16), Reach::Mxfp4) => Some(DType::F16),
        _ => None,
    }
}

/// Checks that the rows of A and B are in one basis; a plain A is in [`Basis::Plain`].
///
/// # Errors
/// [`Error::Unsupported`].
pub fn check_basis(a: Basis, b: Basis) -> Result<()> {
    if a == b {
        return Ok(());
    }
    let name = |basis| match basis {
        Basis::Plain => "that of the data",
        Basis::Hadamard16 => "transformed by Hadamard16",
    };
    Err(Error::unsupported(
        format!("A in one basis ({}) times B in another ({})", name(a), name(b)),
        "the product is that of the data only if both are transformed alike",
        "quantize both with the Hadamard option, or neither",
    ))
}

/// Checks that the product of `a` and `b` can be stored as `out`: BF16, F16, F32 always, E4M3 for FP8 tensor x tensor.
///
/// # Errors
/// [`Error::DType`].
pub fn check_output(a: impl Into<Operand>, b: Scheme, out: DType) -> Result<()> {
    if out.is_wide() {
        return Ok(());
    }
    let a = a.into();
    let remedy = "store bf16, f16 or f32";
    if out == DType::E5M2 {
        return Err(Error::dtype("D", out, "cannot be an output", remedy));
    }
    let is_tensor = |scheme: Scheme| reach(&scheme.spec()) == Reach::Tensor;
    if a.scheme().is_some_and(is_tensor) && is_tensor(b) {
        return Ok(());
    }
    let rule = format!("needs operands with one scale each (fp8-tensor), not {a} x {b}");
    Err(Error::dtype("D", out, rule, remedy))
}

/// Checks the logical shape: any m and n (0 gives an empty D), `n % 8 == 0` (16 for E4M3), k a positive multiple of 16.
///
/// # Errors
/// [`Error::Shape`].
pub fn check_shape(m: usize, n: usize, k: usize, out: DType) -> Result<()> {
    if k == 0 || !k.is_multiple_of(K_MULTIPLE) {
        return Err(Error::shape(
            "A and B",
            format!("k = {k} (m = {m}, n = {n})"),
            format!("must be a positive multiple of {K_MULTIPLE} (quantized operands, cuBLASLt)"),
            "pad the columns of A and B with zeros before quantizing",
        ));
    }
    let multiple = n_multiple(out);
    if !n.is_multiple_of(multiple) {
        return Err(Error::shape(
            "B",
            format!("n = {n} (m = {m}, k = {k})"),
            format!("must be a multiple of {multiple} ({out} output, cuBLASLt)"),
            "pad the rows of B with zeros and ignore the extra columns of D",
        ));
    }
    Ok(())
}

/// Refuses an A without columns, before B is compared with it: whatever B is, that is what is wrong.
///
/// # Errors
/// [`Error::Shape`].
pub(crate) fn check_columns(m: usize, k: usize) -> Result<()> {
    if k > 0 {
        return Ok(());
    }
    let rule = format!("must have columns: k is a positive multiple of {K_MULTIPLE}");
    Err(Error::shape(
        "A",
        format!("{m} x 0"),
        rule,
        "skip products of nothing: a gradient over no rows adds nothing; else pass A and B of the same k",
    ))
}

/// Checks that `beta * C` can be added to a D of this type: F32 only, so that nothing is rounded twice.
///
/// # Errors
/// [`Error::DType`].
pub fn check_accumulate(out: DType) -> Result<()> {
    if out == DType::F32 {
        return Ok(());
    }
    Err(Error::dtype("D", out, "cannot accumulate: C would be rounded at every step", "accumulate into f32"))
}

/// Checks the element type of a bias or residual: BF16, F16 or F32.
///
/// # Errors
/// [`Error::DType`].
pub fn check_epilogue_operand(operand: &str, dtype: DType) -> Result<()> {
    if dtype.is_wide() {
        return Ok(());
    }
    Err(Error::dtype(operand, dtype, "must be a wide type", "pass bf16, f16 or f32"))
}

/// Checks that a matrix with this many columns can be quantized: a multiple of 16.
///
/// # Errors
/// [`Error::Shape`].
pub fn check_quantize_cols(operand: &str, cols: usize) -> Result<()> {
    if cols.is_multiple_of(K_MULTIPLE) {
        return Ok(());
    }
    Err(Error::shape(
        operand,
        format!("{cols} {} along the quantized axis", if cols == 1 { "element" } else { "elements" }),
        format!("must be a multiple of {K_MULTIPLE} (quantized operands, cuBLASLt)"),
        "pad them with zeros",
    ))
}

/// Checks weight and type of a linear layer, out x in.
pub(crate) fn check_linear((out, features): (usize, usize), dtype: DType) -> Result<()> {
    if ![out, features].iter().all(|n| *n > 0 && n.is_multiple_of(K_MULTIPLE)) {
        return Err(Error::shape(
            "weight of a linear layer",
            format!("{out} x {features}"),
            format!(
                "must have positive multiples of {K_MULTIPLE} of both features: Y contracts over one, dX over the other"
            ),
            "pad it with zeros",
        ));
    }
    if !dtype.is_wide() {
        return Err(Error::dtype("the type of a linear layer", dtype, "must be a wide type", "pass bf16, f16 or f32"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pairs_of_the_table_and_no_others() {
        let mut legal = Vec::new();
        for a in Scheme::ALL {
            for b in Scheme::ALL {
                match check_pair(a, b, "cpu") {
                    Ok(()) => legal.push(format!("{a} {b}")),
                    Err(e) => assert!(e.to_string().contains(&format!("{a} x {b} is not supported on cpu")), "{e}"),
                }
            }
        }
        let kinds = [
            ("fp8-tensor", "fp8-tensor"),
            ("fp8-row", "fp8-row"),
            ("fp8-1x128", "fp8-1x128"),
            ("fp8-1x128", "fp8-128x128"),
            ("fp8-128x128", "fp8-1x128"),
        ];
        let mut want: Vec<String> = kinds
            .iter()
            .flat_map(|(a, b)| {
                [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3")].map(|(f, g)| format!("{a}:{f} {b}:{g}"))
            })
            .collect();
        want.extend(
            ["mxfp8:e4m3 mxfp8:e4m3", "mxfp8:e4m3 mxfp8:e5m2", "mxfp8:e5m2 mxfp8:e4m3"]
                .iter()
                .chain(&["mxfp4 mxfp4", "mxfp8:e4m3 mxfp4", "mxfp8:e5m2 mxfp4"])
                .chain(&["nvfp4 nvfp4", "nvfp4 nvfp4-row", "nvfp4-row nvfp4", "nvfp4-row nvfp4-row"])
                .map(ToString::to_string),
        );
        legal.sort();
        want.sort();
        assert_eq!(legal, want);
    }

    #[test]
    fn plain_activations_multiply_the_weights_of_the_table_and_no_others() {
        let mut legal = Vec::new();
        for a in [DType::Bf16, DType::F16, DType::F32, DType::E4M3, DType::E5M2] {
            for b in Scheme::ALL {
                match check_pair(Operand::Plain(a), b, "cpu") {
                    Ok(()) => legal.push(format!("{a} {b}")),
                    Err(e) => assert!(e.to_string().contains(&format!("{a} x {b} is not supported on cpu")), "{e}"),
                }
            }
        }
        let fp8 = |a: &str| ["tensor", "row", "1x128", "128x128"].map(|scales| format!("{a} fp8-{scales}:e4m3"));
        let named = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let bf16 = named(&["bf16 mxfp8:e4m3", "bf16 mxfp8:e5m2", "bf16 mxfp4", "bf16 nvfp4", "bf16 nvfp4-row"]);
        let f16 = named(&["f16 mxfp4", "f16 nvfp4", "f16 nvfp4-row"]);
        assert_eq!(legal, [fp8("bf16").to_vec(), bf16, fp8("f16").to_vec(), f16].concat());
    }

    /// A remedy that is refused in its turn is none.
    #[test]
    fn what_is_recommended_in_place_of_a_plain_a_multiplies() {
        for b in Scheme::ALL {
            for dtype in [DType::Bf16, DType::F16, DType::F32, DType::E4M3, DType::E5M2] {
                let Err(Error::Pair { remedy, .. }) = check_pair(Operand::Plain(dtype), b, "cpu") else { continue };
                if remedy.contains("bf16") {
                    assert!(check_pair(Operand::Plain(DType::Bf16), b, "cpu").is_ok(), "{dtype} x {b}: {remedy}");
                }
                let name = remedy.rsplit(' ').next().unwrap();
                let format = if b.spec().format == CodeFormat::E2M1 { CodeFormat::E2M1 } else { CodeFormat::E4M3 };
                let a = Scheme::from_name(name, format).unwrap();
                assert!(check_pair(a, b, "cpu").is_ok(), "{dtype} x {b}: {remedy}");
            }
        }
    }

    #[test]
    fn refusals_give_the_reason() {
        use Fp8Format::{E4M3, E5M2};
        let plain = Operand::Plain;
        let cases: [(Operand, Scheme, &[&str]); 15] = [
            (Scheme::Mxfp8(E5M2).into(), Scheme::Mxfp8(E5M2), &["E5M2 by E5M2", "as e4m3"]),
            (Scheme::Nvfp4.into(), Scheme::Fp8Tensor(E4M3), &["NVFP4 multiplies NVFP4", "leave A plain"]),
            (Scheme::Fp8Row(E4M3).into(), Scheme::Nvfp4Row, &["NVFP4 multiplies NVFP4"]),
            (Scheme::Nvfp4.into(), Scheme::Mxfp8(E4M3), &["NVFP4 multiplies NVFP4"]),
            (Scheme::Fp8Group1x128(E4M3).into(), Scheme::Mxfp8(E4M3), &["MXFP8 multiplies MXFP8"]),
            (plain(DType::F16), Scheme::Mxfp8(E4M3), &["E8M0", "range of F16", "bf16"]),
            (plain(DType::F32), Scheme::Nvfp4, &["FP32", "round A to bf16"]),
            (plain(DType::F32), Scheme::Mxfp4, &["FP32", "quantize it as mxfp4"]),
            (Scheme::Mxfp4.into(), Scheme::Mxfp8(E4M3), &["for weights", "quantize A as mxfp8, or B as mxfp4"]),
            (Scheme::Mxfp4.into(), Scheme::Fp8Row(E4M3), &["MXFP4 multiplies MXFP4", "A as mxfp8"]),
            (Scheme::Fp8Group1x128(E4M3).into(), Scheme::Mxfp4, &["MXFP4 multiplies MXFP4", "leave A plain"]),
            (Scheme::Nvfp4.into(), Scheme::Mxfp4, &["scales of 16 and of 32 columns", "leave A plain"]),
            (plain(DType::E4M3), Scheme::Nvfp4, &["without scales"]),
            (plain(DType::F32), Scheme::Fp8Row(E4M3), &["FP32", "quantize A as fp8-row"]),
            (plain(DType::Bf16), Scheme::Fp8Tensor(E5M2), &["plain activations as E4M3", "quantize A as fp8-tensor"]),
        ];
        for (a, b, words) in cases {
            let text = check_pair(a, b, "cpu").unwrap_err().to_string();
            words.iter().for_each(|w| assert!(text.contains(w), "{w:?} is not in {text:?}"));
        }
        let (data, turned) = (Basis::Plain, Basis::Hadamard16);
        assert!(check_basis(data, data).is_ok() && check_basis(turned, turned).is_ok());
        for (a, b) in [(data, turned), (turned, data)] {
            let text = check_basis(a, b).unwrap_err().to_string();
            assert!(text.contains("basis") && text.contains("Hadamard"), "{text}");
        }
    }

    #[test]
    fn shapes_and_outputs() {
        for (m, n, k, out, ok) in [
            (0, 8, 16, DType::Bf16, true),
            (1, 0, 16, DType::Bf16, true),
            (3, 2112, 576, DType::F32, true),
            (3, 8, 16, DType::E4M3, false),
            (3, 16, 16, DType::E4M3, true),
            (3, 12, 16, DType::F32, false),
            (3, 8, 24, DType::F16, false),
            (3, 8, 0, DType::F16, false),
        ] {
            assert_eq!(check_shape(m, n, k, out).is_ok(), ok, "{m} {n} {k} {out}");
        }
        let tensor = Scheme::Fp8Tensor(Fp8Format::E4M3);
        let row = Scheme::Fp8Row(Fp8Format::E4M3);
        assert!(check_output(tensor, tensor, DType::E4M3).is_ok());
        assert!(check_output(row, row, DType::E4M3).is_err());
        assert!(check_output(tensor, tensor, DType::E5M2).is_err());
        assert!(check_output(row, row, DType::F16).is_ok());
        for scheme in [Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp4, Scheme::Mxfp8(Fp8Format::E4M3)] {
            assert!(check_output(scheme, scheme, DType::E4M3).is_err(), "{scheme}");
            assert!(check_output(Operand::Plain(DType::Bf16), scheme, DType::E4M3).is_err(), "{scheme}");
            for out in [DType::Bf16, DType::F16, DType::F32] {
                assert!(check_output(Operand::Plain(DType::Bf16), scheme, out).is_ok(), "{scheme}");
            }
        }
        // The quantized axis of a transpose is that of the rows.
        let refused = |len| check_quantize_cols("x", len).unwrap_err().to_string();
        assert!(refused(3).starts_with("x: 3 elements along the quantized axis must"), "{}", refused(3));
        assert!(refused(1).starts_with("x: 1 element along"), "{}", refused(1));
        assert!(check_quantize_cols("x", 0).is_ok() && check_quantize_cols("x", 24).is_err());
    }
}
