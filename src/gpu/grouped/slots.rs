//! One product a slot, by whatever way [`Handle::scaled_gemm`] has for its rows: planned once for all of them, since a slot has the most rows that a group
//! may have. One behind the other: on four streams they take 0.92 to 1.02 of the time, 0.64 where they are small, and one launch less than that (H200, 2026-11, the record of prefill).

use super::fit::{check_apart, check_operands_apart};
use super::{GroupedGemmArgs, GroupedRows};
use crate::error::{Error, Result};
use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::QuantMatrix;

/// Why there cannot be one product a slot.
pub(super) fn why_not(args: &GroupedGemmArgs<'_>, a: &QuantMatrix) -> Option<String> {
    match &args.rows {
        GroupedRows::Contiguous { .. } => {
            Some("where its groups begin the device alone knows: put them into slots for one product each".to_string())
        }
        GroupedRows::Masked { slot_rows, .. } if !slot_rows.is_multiple_of(128) => Some(format!(
            "slots of {slot_rows} rows are cut out of A for one product each if that is a multiple of 128"
        )),
        GroupedRows::Masked { .. } => [("A", a), ("B", args.b)].into_iter().find_map(|(operand, x)| {
            let whole = x.rows_part(0..0).is_some();
            (!whole).then(|| {
                format!("the scales of {} lie by columns: rows of {operand} cannot be cut out of it", x.scheme())
            })
        }),
    }
}

/// A and B of a group, which share the memory of all.
fn operands(args: &GroupedGemmArgs<'_>, a: &QuantMatrix, slot_rows: usize, g: usize) -> Result<[QuantMatrix; 2]> {
    let n = args.d.cols();
    let part = |x: &QuantMatrix, rows: usize| {
        let no_rows = || {
            Error::unsupported(
                "rows of a grouped operand",
                "they do not lie together",
                "this is a bug of scaled-gemm: please report it",
            )
        };
        x.rows_part(g * rows..(g + 1) * rows).ok_or_else(no_rows)?
    };
    Ok([part(a, slot_rows)?, part(args.b, n)?])
}

fn slot_rows(args: &GroupedGemmArgs<'_>) -> usize {
    match args.rows {
        GroupedRows::Masked { slot_rows, .. } => slot_rows,
        GroupedRows::Contiguous { .. } => 0,
    }
}

pub(super) fn multiply(handle: &Handle, args: &mut GroupedGemmArgs<'_>, all_a: &QuantMatrix) -> Result<()> {
    let rows = slot_rows(args);
    let n = args.d.cols();
    check_d_apart(handle, args, all_a)?;
    // Slots without rows and matrices without columns may be as many as numbers go: the first says whether the pair is one.
    let groups = if rows == 0 || n == 0 { args.groups.min(1) } else { args.groups };
    for g in 0..groups {
        let [a, b] = operands(args, all_a, rows, g)?;
        let bias = args.bias.as_ref().map(|bias| bias.part(g * n..(g + 1) * n)).transpose()?;
        let (alpha, activation) = (args.alpha, args.activation);
        let one =
            GemmArgs::new(&a, &b, args.d.rows_part(g * rows..(g + 1) * rows)?).alpha(alpha).activation(activation);
        handle.scaled_gemm(if let Some(bias) = bias { one.bias(bias) } else { one })?;
    }
    Ok(())
}

/// Refuses a D that overlaps what other slots still read.
fn check_d_apart(handle: &Handle, args: &mut GroupedGemmArgs<'_>, a: &QuantMatrix) -> Result<()> {
    let GroupedGemmArgs { b, d, bias, .. } = args;
    let order = handle.queue().order();
    let bytes = d.extent_bytes();
    let d = d.data_mut().at(&order)?.slice(0, bytes);
    check_operands_apart(&a.read(&order)?, &b.read_in_order(&order)?, &d)?;
    bias.as_ref().map_or(Ok(()), |bias| check_apart("a bias", &[&bias.data().at(&order)?], &d))
}

/// The plan of a slot.
pub(super) fn explain(handle: &Handle, args: &mut GroupedGemmArgs<'_>, all_a: &QuantMatrix) -> Result<String> {
    if args.groups == 0 {
        return Ok("  nothing to do".to_string());
    }
    let (rows, n) = (slot_rows(args), args.d.cols());
    let [a, b] = operands(args, all_a, rows, 0)?;
    let bias = args.bias.as_ref().map(|bias| bias.part(0..n)).transpose()?;
    let one = GemmArgs::new(&a, &b, args.d.rows_part(0..rows)?).alpha(args.alpha).activation(args.activation);
    let desc = if let Some(bias) = bias { one.bias(bias) } else { one }.desc()?;
    Ok(handle.plan(&desc)?.explain())
}
