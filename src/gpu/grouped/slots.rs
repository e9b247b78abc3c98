//! One product a slot, by whatever way [`Handle::scaled_gemm`] has for its rows: planned once for all of them, since a slot has the most rows that a group
//! may have. On one stream or several, as products fill the GPU (`gemm/lanes.rs`).

use super::fit::{check_apart, check_operands_apart};
use super::{GroupedGemmArgs, GroupedGemmDesc};
use crate::epilogue::Epilogue;
use crate::error::{Error, Result};
use crate::format::Scheme;
use crate::gpu::device::info::DeviceInfo;
use crate::gpu::device::memory::Span;
use crate::gpu::gemm::call::Spans;
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::lanes::Lanes;
use crate::gpu::gemm::many::{Many, ManyPlan, Member};
use crate::gpu::gemm::outline::Outline;
use crate::gpu::gemm::plan::GemmPlan;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{QuantMatrix, QuantSpans, rows_lie_together};

/// Why there cannot be one product a slot, of an A of this scheme.
pub(super) fn why_not(desc: &GroupedGemmDesc, a: Scheme) -> Option<String> {
    match desc.slot_rows {
        None => {
            Some("where its groups begin the device alone knows: put them into slots for one product each".to_string())
        }
        Some(slot_rows) if !slot_rows.is_multiple_of(128) => Some(format!(
            "slots of {slot_rows} rows are cut out of A for one product each if that is a multiple of 128"
        )),
        Some(_) => [("A", a), ("B", desc.b)].into_iter().find_map(|(operand, scheme)| {
            let by_columns =
                || format!("the scales of {scheme} lie by columns: rows of {operand} cannot be cut out of it");
            (!rows_lie_together(scheme)).then(by_columns)
        }),
    }
}

pub(super) fn bug(what: String, reason: &'static str) -> Error {
    Error::unsupported(what, reason, "this is a bug of scaled-gemm: please report it")
}

/// Of a way that multiplies no plain A.
pub(super) fn of_plain_a() -> Error {
    bug("a plain A".to_string(), "the way that was chosen is of a quantized one")
}

/// From the scale of a group to that of the next in scratch memory, and their alignment.
const SCALE_STEP: usize = 16;

/// Bytes of scratch memory for scales of groups, of A and of B.
fn scales_bytes(desc: &GroupedGemmDesc) -> usize {
    if desc.scales_of_groups.contains(&true) { 2 * desc.groups * SCALE_STEP } else { 0 }
}

/// Refuses scales that are not those of all groups.
pub(super) fn check_scales(name: &str, scales: &Span<'_>, groups: usize) -> Result<()> {
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

/// The problem of a slot.
fn of_slot(desc: &GroupedGemmDesc) -> GemmDesc {
    let GroupedGemmDesc { slot_rows, n, k, a, b, b_order, out, out_stride, bias, activation, .. } = *desc;
    GemmDesc::new(slot_rows.unwrap_or(0), n, k, a, b, out)
        .with_b_order(b_order)
        .with_out_stride(out_stride)
        .with_epilogue(Epilogue { bias, activation, ..Epilogue::default() })
}

/// Refuses what no plan of a slot's product takes.
pub(super) fn check(desc: &GroupedGemmDesc, device: &DeviceInfo) -> Result<()> {
    if desc.groups > 0 { of_slot(desc).check(&device.to_string()) } else { Ok(()) }
}

/// The products of all slots.
fn all(desc: &GroupedGemmDesc, alpha: f32) -> Many {
    Many { count: desc.groups, streams: desc.streams, alpha, beta: 0.0, beside: scales_bytes(desc) }
}

/// The plan of a slot's product; `None` without slots.
pub(super) fn plan(handle: &Handle, desc: &GroupedGemmDesc) -> Result<Option<GemmPlan>> {
    (desc.groups > 0).then(|| handle.plan(&of_slot(desc))).transpose()
}

/// What calls by this plan need: streams and scratch memory, and kernels of cuBLASLt, which one product on zeros loads.
pub(super) fn make_ready(handle: &Handle, desc: &GroupedGemmDesc, plan: &mut GemmPlan) -> Result<()> {
    if !plan.desc().is_empty() {
        let mut b = QuantMatrix::zeros(handle, desc.b, desc.n, desc.k)?;
        b.repack(handle, desc.b_order)?;
        plan.prepare(handle, &b)?;
    }
    handle.reserve_many(plan, all(desc, 1.0))
}

/// Of all products together.
pub(super) fn scratch_bytes(desc: &GroupedGemmDesc, plan: &GemmPlan) -> usize {
    all(desc, 1.0).scratch_bytes(&Lanes::of(plan, desc.groups, desc.streams))
}

/// By this plan, which was made ready, or by that which the handle keeps.
pub(super) fn multiply(
    handle: &Handle,
    args: &mut GroupedGemmArgs<'_>,
    desc: &GroupedGemmDesc,
    all_a: &QuantMatrix,
    plan: Option<&mut GemmPlan>,
) -> Result<()> {
    check_d_apart(handle, args, all_a)?;
    if desc.groups == 0 {
        return Ok(());
    }
    let (all_b, many) = (args.b, all(desc, args.alpha));
    let run = |plan: ManyPlan<'_>| multiply_all(handle, args, desc, all_a, plan);
    if let Some(plan) = plan {
        return handle.with_many_of(plan, many, run);
    }
    let no_rows = || bug("rows of a grouped operand".to_string(), "they do not lie together");
    let first = all_b.rows_part(0..desc.n).ok_or_else(no_rows)??;
    handle.with_many(&of_slot(desc), &first, many, run)
}

fn multiply_all(
    handle: &Handle,
    args: &mut GroupedGemmArgs<'_>,
    desc: &GroupedGemmDesc,
    all_a: &QuantMatrix,
    plan: ManyPlan<'_>,
) -> Result<()> {
    // Nothing that is derived of the whole belongs to its parts: those that would need it have scales that cannot be cut.
    if let Some(outline) = plan.outline().filter(Outline::reads_derived) {
        return Err(bug(format!("slots by {}", outline.formulation), "it reads what a whole matrix derives"));
    }
    let (&GroupedGemmDesc { n, k, .. }, rows) = (desc, desc.slot_rows.unwrap_or(0));
    let GroupedGemmArgs { b: all_b, groups, d, bias, scales, .. } = args;
    let rows_of = |g: usize| g * rows..(g + 1) * rows;
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

/// By this plan; `None` without slots.
pub(super) fn explain(desc: &GroupedGemmDesc, plan: Option<&GemmPlan>) -> Explained {
    let Some(plan) = plan else {
        return Explained { how: "on the handle's stream".to_string(), plan: "  nothing to do".to_string() };
    };
    let lanes = Lanes::of(plan, desc.groups, desc.streams);
    let beside = match scales_bytes(desc) {
        0 => String::new(),
        bytes => format!(
            ", and {bytes} for the scales of groups, in which a copy before puts each where a product takes its own"
        ),
    };
    Explained { how: lanes.how(), plan: format!("  {}{beside}\n{}", lanes.explain(), plan.explain()) }
}
