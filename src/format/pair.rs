//! Which schemes multiply, into which output types, at which shapes. Asked by the CPU and the GPU side alike.
//!
//! The rules hold on every device; what one GPU lacks beyond them is that GPU's business.

use super::dtype::DType;
use super::scheme::{Extent, Fp8Format, Scheme, SchemeSpec};
use crate::error::{Error, Result};

/// The contraction dimension of every FP8 operand is a multiple of this: 16-byte rows of codes.
pub const K_MULTIPLE: usize = 16;

/// D's columns are a multiple of this for BF16, F16 and F32; see [`n_multiple`].
pub const N_MULTIPLE: usize = 8;

/// The multiple that n must be for this output type: 16 for E4M3, else 8.
///
/// From cuBLASLt's rule that a row of D is a multiple of 16 bytes (F32 would allow 4; one rule for all wide types).
pub const fn n_multiple(out: DType) -> usize {
    match out {
        DType::E4m3 | DType::E5m2 => 16,
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
}

fn reach(spec: &SchemeSpec) -> Reach {
    match (spec.group_rows, spec.group_cols) {
        (Extent::All, _) => Reach::Tensor,
        (Extent::Elements(1), Extent::All) => Reach::Row,
        (Extent::Elements(1), _) => Reach::Vector,
        (Extent::Elements(_), _) => Reach::Tile,
    }
}

/// Checks that `a` and `b` can be multiplied: tensor x tensor, row x row, 1x128 x 128x128 (either side), 1x128 x 1x128;
/// E4M3 x E4M3 or one of the two E5M2.
///
/// `device` goes into the message: the GPU's name, or `cpu`.
///
/// # Errors
/// [`Error::Pair`] with the reason.
pub fn check_pair(a: Scheme, b: Scheme, device: &str) -> Result<()> {
    let (sa, sb) = (a.spec(), b.spec());
    let refuse = |reason: &str, remedy: &str| {
        Err(Error::Pair { a: a.into(), b, device: device.into(), reason: reason.into(), remedy: remedy.into() })
    };
    if sa.format == Fp8Format::E5M2 && sb.format == Fp8Format::E5M2 {
        return refuse(
            "no tensor core instruction of cuBLASLt multiplies E5M2 by E5M2",
            "quantize one of the two as e4m3",
        );
    }
    match (reach(&sa), reach(&sb)) {
        (Reach::Tensor, Reach::Tensor)
        | (Reach::Row, Reach::Row)
        | (Reach::Vector, Reach::Vector | Reach::Tile)
        | (Reach::Tile, Reach::Vector) => Ok(()),
        (Reach::Tile, Reach::Tile) => refuse(
            "at least one operand must have 1x128 scales (cuBLASLt has no product of two 128x128 operands)",
            "quantize one of the two, usually A, as fp8-1x128",
        ),
        (Reach::Tensor | Reach::Row, _) | (_, Reach::Tensor | Reach::Row) => refuse(
            "the scales of A and B must be of one family: tensor x tensor, row x row, or blocks x blocks",
            "quantize both with one recipe, or fp8-1x128 x fp8-128x128",
        ),
    }
}

/// Checks that the product of `a` and `b` can be stored as `out`: BF16, F16, F32 always, E4M3 for tensor x tensor.
///
/// # Errors
/// [`Error::DType`].
pub fn check_output(a: Scheme, b: Scheme, out: DType) -> Result<()> {
    if out.is_wide() {
        return Ok(());
    }
    let remedy = "store bf16, f16 or f32";
    if out == DType::E5m2 {
        return Err(Error::dtype("D", out, "cannot be an output", remedy));
    }
    if reach(&a.spec()) == Reach::Tensor && reach(&b.spec()) == Reach::Tensor {
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
            format!("must be a positive multiple of {K_MULTIPLE} (FP8 operands, cuBLASLt)"),
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
        format!("{cols} columns along the quantized axis"),
        format!("must be a multiple of {K_MULTIPLE} (FP8 operands, cuBLASLt)"),
        "pad them with zeros",
    ))
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
        legal.sort();
        want.sort();
        assert_eq!(legal, want);
    }

    #[test]
    fn shapes_and_outputs() {
        for (m, n, k, out, ok) in [
            (0, 8, 16, DType::Bf16, true),
            (1, 0, 16, DType::Bf16, true),
            (3, 2112, 576, DType::F32, true),
            (3, 8, 16, DType::E4m3, false),
            (3, 16, 16, DType::E4m3, true),
            (3, 12, 16, DType::F32, false),
            (3, 8, 24, DType::F16, false),
            (3, 8, 0, DType::F16, false),
        ] {
            assert_eq!(check_shape(m, n, k, out).is_ok(), ok, "{m} {n} {k} {out}");
        }
        let tensor = Scheme::Fp8Tensor(Fp8Format::E4M3);
        let row = Scheme::Fp8Row(Fp8Format::E4M3);
        assert!(check_output(tensor, tensor, DType::E4m3).is_ok());
        assert!(check_output(row, row, DType::E4m3).is_err());
        assert!(check_output(tensor, tensor, DType::E5m2).is_err());
        assert!(check_output(row, row, DType::F16).is_ok());
        assert!(check_quantize_cols("x", 0).is_ok() && check_quantize_cols("x", 24).is_err());
    }
}
