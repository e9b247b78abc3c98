//! One product a slot, by whatever way [`Handle::scaled_gemm`] has for its rows: planned once for all of them, since a slot has the most rows that a group
//! may have. On one stream or several, as products fill the GPU (`gemm/lanes.rs`).

use super::fit::{check_apart, check_operands_apart};
use super::{GroupedGemmArgs, GroupedRows};
use crate::error::{Error, Result};
use crate::gpu::device::memory::Span;
use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::gemm::call::Spans;
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::lanes::Lanes;
use crate::gpu::gemm::many::{Many, Member};
use crate::gpu::gemm::outline::Outline;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{QuantMatrix, QuantSpans};

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

fn slot_rows(args: &GroupedGemmArgs<'_>) -> usize {
    match args.rows {
        GroupedRows::Masked { slot_rows, .. } => slot_rows,
        GroupedRows::Contiguous { .. } => 0,
    }
}

fn bug(what: String, reason: &'static str) -> Error {
    Error::unsupported(what, reason, "this is a bug of scaled-gemm: please report it")
}

/// From the scale of a group to that of the next in scratch memory, and their alignment.
const SCALE_STEP: usize = 16;

/// Bytes of scratch memory for scales of groups, of A and of B.
fn scales_bytes(args: &GroupedGemmArgs<'_>) -> usize {
    if args.scales.iter().any(Option::is_some) { 2 * args.groups * SCALE_STEP } else { 0 }
}

/// Refuses scales that are not those of all groups.
fn check_scales(name: &str, scales: &Span<'_>, groups: usize) -> Result<()> {
    if scales.bytes < groups.saturating_mul(4) {
        let rule = format!("must be at least {}: one FP32 number for each of {groups} groups", groups * 4);
        return Err(Error::shape(name, format!("{} bytes", scales.bytes), rule, "pass as many scales as groups"));
    }
    if !scales.address.is_multiple_of(4) {
        let (operand, remedy) = (name.to_string(), "begin at a multiple of 4 bytes".to_string());
        return Err(Error::Alignment { operand, address: scales.address, required: 4, remedy });
    }
    Ok(())
}

/// The problem of a slot, and the matrix of the first, which shares the memory of all.
fn first(args: &mut GroupedGemmArgs<'_>, all_a: &QuantMatrix) -> Result<(GemmDesc, QuantMatrix)> {
    let (rows, n) = (slot_rows(args), args.d.cols());
    let part = |x: &QuantMatrix, rows: usize| {
        let no_rows = || bug("rows of a grouped operand".to_string(), "they do not lie together");
        x.rows_part(0..rows).ok_or_else(no_rows)?
    };
    let (a, b) = (part(all_a, rows)?, part(args.b, n)?);
    let bias = args.bias.as_ref().map(|bias| bias.part(0..n)).transpose()?;
    let one = GemmArgs::new(&a, &b, args.d.rows_part(0..rows)?).alpha(args.alpha).activation(args.activation);
    let desc = if let Some(bias) = bias { one.bias(bias) } else { one }.desc()?;
    Ok((desc, b))
}

pub(super) fn multiply(handle: &Handle, args: &mut GroupedGemmArgs<'_>, all_a: &QuantMatrix) -> Result<()> {
    check_d_apart(handle, args, all_a)?;
    if args.groups == 0 {
        return Ok(());
    }
    let (desc, first_b) = first(args, all_a)?;
    let (rows, k) = (slot_rows(args), all_a.cols());
    let (streams, beside) = (args.streams, scales_bytes(args));
    let many = Many { count: args.groups, streams, alpha: args.alpha, beta: 0.0, beside };
    handle.with_many(&desc, &first_b, many, |plan| {
        // Nothing that is derived of the whole belongs to its parts: those that would need it have scales that cannot be cut.
        if let Some(outline) = plan.outline().filter(Outline::reads_derived) {
            return Err(bug(format!("slots by {}", outline.formulation), "it reads what a whole matrix derives"));
        }
        let GroupedGemmArgs { b: all_b, groups, d, bias, scales, .. } = args;
        let (n, rows_of) = (d.cols(), |g: usize| g * rows..(g + 1) * rows);
        let (slot_bytes, used_bytes) = (rows * d.row_stride() * d.dtype().bytes(), d.bytes_of_rows(&rows_of(0)).len());
        let order = handle.queue().order();
        let (a, b) = (all_a.read(&order)?, all_b.read_in_order(&order)?);
        let bias = bias.as_ref().map(|bias| Ok::<_, Error>((bias.data().at(&order)?, bias.dtype()))).transpose()?;
        let d = d.data_mut().at(&order)?;
        let places = plan.beside(handle)?;
        let mut of_groups = [None; 2];
        for (side, scales) in scales.iter().enumerate() {
            let Some(scales) = scales else { continue };
            // The scales of one product after the other, as aligned as cuBLASLt wants one of a matrix.
            let to = places.slice(places.bytes / 2 * side, *groups * SCALE_STEP);
            let from = scales.at(&order)?;
            handle.kernels().copy_2d(handle.queue(), &from, 4, &to, SCALE_STEP, *groups, 4)?;
            of_groups[side] = Some(to);
        }
        plan.enqueue(handle, |g| {
            Ok(Member {
                a: with_scale(a.rows_part(all_a.scheme(), k, rows_of(g)), &of_groups[0], g),
                b: with_scale(b.rows_part(all_b.scheme(), k, g * n..(g + 1) * n), &of_groups[1], g),
                d: d.slice(g * slot_bytes, used_bytes),
                bias: bias.map(|(all, dtype)| (all.slice(g * n * dtype.bytes(), n * dtype.bytes()), dtype)),
            })
        })
    })
}

/// What a product reads of an operand, with its own of the scales of all groups.
fn with_scale<'s>(read: QuantSpans<'s>, of_groups: &Option<Span<'s>>, g: usize) -> Spans<'s> {
    let scales = of_groups.as_ref().map_or(read.scales, |all| all.slice(g * SCALE_STEP, 4));
    QuantSpans { scales, ..read }.into()
}

/// Refuses a D that overlaps what other slots still read.
fn check_d_apart(handle: &Handle, args: &mut GroupedGemmArgs<'_>, a: &QuantMatrix) -> Result<()> {
    let GroupedGemmArgs { b, groups, d, bias, scales, .. } = args;
    let order = handle.queue().order();
    let bytes = d.extent_bytes();
    let d = d.data_mut().at(&order)?.slice(0, bytes);
    check_operands_apart(&a.read(&order)?, &b.read_in_order(&order)?, &d)?;
    for (name, scales) in ["scales of A", "scales of B"].into_iter().zip(scales) {
        let Some(scales) = scales else { continue };
        let scales = scales.at(&order)?;
        check_scales(name, &scales, *groups)?;
        check_apart("scales of groups", &[&scales.slice(0, groups.saturating_mul(4))], &d)?;
    }
    bias.as_ref().map_or(Ok(()), |bias| check_apart("a bias", &[&bias.data().at(&order)?], &d))
}

/// How the products of slots go, and the plan of one.
pub(super) struct Explained {
    pub(super) how: String,
    pub(super) plan: String,
}

pub(super) fn explain(handle: &Handle, args: &mut GroupedGemmArgs<'_>, all_a: &QuantMatrix) -> Result<Explained> {
    if args.groups == 0 {
        return Ok(Explained { how: "on the handle's stream".to_string(), plan: "  nothing to do".to_string() });
    }
    let plan = handle.plan(&first(args, all_a)?.0)?;
    let lanes = Lanes::of(&plan, args.groups, args.streams);
    let beside = match scales_bytes(args) {
        0 => String::new(),
        bytes => format!(
            ", and {bytes} for the scales of groups, in which a copy before puts each where a product takes its own"
        ),
    };
    Ok(Explained { how: lanes.how(), plan: format!("  {}{beside}\n{}", lanes.explain(), plan.explain()) })
}
