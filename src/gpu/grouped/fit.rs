//! [`Fit`]: what operands must have in common where each group has a matrix of its own, or one product two. Asked for by products of groups and by those with
//! the pass behind them.

use super::rows::check_slots;
use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::memory::{self, Span};
use crate::gpu::gemm::call;
use crate::gpu::kernels::GroupPlaces;
use crate::gpu::matrix::QuantSpans;

/// The operands of products whose matrices lie in one B, rows upon rows.
pub(crate) struct Fit {
    /// Rows and columns.
    pub(crate) a: [usize; 2],
    pub(crate) b: [usize; 2],
    pub(crate) d: [usize; 2],
    /// How many, and rows of a slot.
    pub(crate) groups: Option<(usize, Option<usize>)>,
    /// Of each group, or of the product: 2 with SwiGLU.
    pub(crate) matrices: usize,
    /// Type and length.
    pub(crate) bias: Option<(DType, usize)>,
}

impl Fit {
    /// Refuses operands that do not fit together.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { a: [rows, k], b: [b_rows, b_cols], d: [m, n], groups, matrices, bias } = *self;
        if b_cols != k {
            let found = format!("{b_rows} x {b_cols}");
            return Err(Error::shape("B", found, format!("must have A's {k} columns"), "pass A and B of the same k"));
        }
        if m != rows {
            let between = if groups.is_some() { ", those between groups too" } else { "" };
            let rule = format!("must have A's {rows} rows{between}");
            return Err(Error::shape("D", format!("{m} x {n}"), rule, "pass D of that shape"));
        }
        if (groups.is_some() || matrices > 1) && !n.is_multiple_of(128) {
            return Err(Error::shape(
                "D",
                format!("{m} x {n}"),
                "must have a multiple of 128 columns: tiles of 128 rows of B, of scales or of a kernel, belong to one of its matrices",
                "pad the rows of each matrix of B with zeros, and D's columns",
            ));
        }
        let count = groups.map_or(1, |(groups, _)| groups);
        // Kernels count groups in 31 bits, and matrices without rows would let any number pass.
        if count >= 1 << 31 {
            return Err(Error::shape(
                "B",
                format!("{count} groups"),
                "must be those of fewer than 2^31 groups",
                "split the product",
            ));
        }
        if Some(b_rows) != count.checked_mul(matrices).and_then(|matrices| matrices.checked_mul(n)) {
            let rule = match (matrices > 1, groups.is_some()) {
                (false, false) => format!("must be {n} x {k}: a row for each column of D"),
                (false, true) => format!("must be {count} * {n} x {k}: as many rows for each group as D has columns"),
                (true, false) => format!("must be 2 * {n} x {k}: the rows of gate, then those of up"),
                (true, true) => {
                    format!("must be {count} * 2 * {n} x {k}: for each group the rows of gate, then those of up")
                }
            };
            let remedy = "stack the matrices, rows upon rows, and pass D of their columns";
            return Err(Error::shape("B", format!("{b_rows} x {k}"), rule, remedy));
        }
        if let Some((count, slot_rows)) = groups {
            check_slots(slot_rows, count, rows)?;
        }
        bias.map_or(Ok(()), |bias| check_bias(bias, count, n))
    }
}

/// Refuses what is no bias of products with so many matrices of `n` rows: BF16, F16 or F32, a number for each row of B.
fn check_bias((dtype, len): (DType, usize), matrices: usize, n: usize) -> Result<()> {
    if !dtype.is_wide() {
        return Err(Error::dtype("bias", dtype, "is not bf16, f16 or f32", "convert it first"));
    }
    if Some(len) != matrices.checked_mul(n) {
        let all = if matrices == 1 { n.to_string() } else { format!("{matrices} * {n}") };
        return Err(Error::shape(
            "bias",
            format!("{len} numbers"),
            format!("must have {all}, one for each row of B"),
            "pass as many: of groups those of all, one behind the other",
        ));
    }
    Ok(())
}

/// Refuses a D of numbers that no kernel stores.
pub(crate) fn check_numbers(d: DType, remedy: &'static str) -> Result<()> {
    if matches!(d, DType::Bf16 | DType::F16 | DType::F32) {
        return Ok(());
    }
    Err(Error::dtype("D", d, "is not bf16, f16 or f32", remedy))
}

/// Refuses a D that overlaps what other tiles still read: an operand, or where groups lie.
pub(crate) fn check_apart(operand: &str, read: &[&Span<'_>], d: &Span<'_>) -> Result<()> {
    call::check_apart(operand, read, d, "which other tiles still read")
}

/// The same of A and B.
pub(crate) fn check_operands_apart(a: &QuantSpans<'_>, b: &QuantSpans<'_>, d: &Span<'_>) -> Result<()> {
    check_apart("A", &a.all(), d)?;
    check_apart("B", &b.all(), d)
}

/// The same of a quantized D, whose codes and scales lie apart from one another, too.
pub(crate) fn check_codes_apart(a: &QuantSpans<'_>, b: &QuantSpans<'_>, d: &QuantSpans<'_>) -> Result<()> {
    [&d.codes, &d.scales].into_iter().try_for_each(|written| check_operands_apart(a, b, written))?;
    check_parts_apart(d)
}

/// That last of a quantized D.
pub(crate) fn check_parts_apart(d: &QuantSpans<'_>) -> Result<()> {
    memory::check_apart(std::iter::empty(), [("codes of D", d.codes), ("scales of D", d.scales)].into_iter())
}

/// The same of starts and counts.
pub(crate) fn check_places_apart(places: &GroupPlaces<'_>, d: &Span<'_>) -> Result<()> {
    [Some(places.counts), places.starts].into_iter().flatten().try_for_each(|numbers| {
        check_apart("where groups lie", &[&numbers.slice(0, places.groups.saturating_mul(8))], d)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::device::memory::assert_apart;

    #[test]
    fn codes_and_scales_of_one_d_lie_apart_from_operands_and_from_each_other() {
        fn spans<'s>(at: &[Span<'s>], i: usize) -> QuantSpans<'s> {
            QuantSpans { codes: at[i], scales: at[i + 1], block_scales: at[i].slice(0, 0) }
        }
        assert_apart(&["A", "A", "B", "B", "D", "D"], 2, 64, |at| {
            check_codes_apart(&spans(at, 0), &spans(at, 2), &spans(at, 4))
        });
        assert_apart(&["codes of D", "scales of D"], 2, 64, |at| check_parts_apart(&spans(at, 0)));
    }
}
