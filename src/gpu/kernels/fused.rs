//! Launches of `kernels/fused`: what is computed before it is cast, with results beside the cast.

use super::Kernels;
use super::cast_args::{CastOut, CastRule, CastSource, Producer};
use super::cast_call::{CastFrom, CastPart, CastTo, CastValues, ProducerCall, ProducerKind};
use super::launch::{Blocks, ByInput, Kernel, enqueue};
use super::module::Modules;
use super::mx::MxRule;
use super::operand::{
    Output, address, check_aligned, check_bytes, check_floats, check_output, extent, is_aligned, words,
};
use super::produced::TargetKernels;
use crate::error::{Error, Result};
use crate::format::{
    CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType, Extent, Fp8Format, MxScaleRule, Scheme,
};
use crate::gpu::device::memory::{Named, Span, check_apart};
use crate::gpu::device::stream::Queue;

/// The longest row that a norm keeps in registers, four vectors of eight elements in a thread, and the threads of the blocks of longer ones.
const NORM_HELD: usize = 8192;
const NORM_THREADS: u32 = 128;
/// Warps of the blocks of the gradients of SwiGLU.
const BACKWARD_WARPS: usize = 4;

/// The kernels of sources that are computed.
pub(super) struct FusedKernels {
    /// Groups of columns, where there are few rows; and many, of aligned bf16, f16 and f32: without a gate, gated, and
    /// gated without options, to E4M3 and to E2M1.
    pub(super) few: ByInput,
    many: [[[Kernel; 3]; 2]; 3],
    /// Row read twice, row in registers.
    pub(super) row: [ByInput; 2],
    pub(super) tile: ByInput,
    /// What has no gate; SwiGLU, rounded to BF16 first; and the same of aligned bf16 without options.
    channel: ByInput,
    channel_gated: ByInput,
    channel_bare: Kernel,
    /// To what products read.
    pub(super) targets: TargetKernels,
    /// Row read twice, row in registers.
    norm: [ByInput; 2],
    /// x plain, x in E4M3: gradients as casts, and as MXFP8.
    backward: [ByInput; 2],
    backward_mx: [ByInput; 2],
}

impl FusedKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let (file, norm) = (modules.file("fused/produced")?, modules.file("fused/rms_norm")?);
        let (backward, mx) = (modules.file("fused/swiglu_backward")?, modules.file("fused/swiglu_backward_mx")?);
        let many = |kinds: &str| -> Result<_> {
            let kernel = |format, dtype| file.kernel(&format!("cast_groups_{format}_{kinds}_{dtype}"));
            let of =
                |format| -> Result<_> { Ok([kernel(format, "bf16")?, kernel(format, "f16")?, kernel(format, "f32")?]) };
            Ok([of("e4m3")?, of("e2m1")?])
        };
        Ok(Self {
            few: file.by_input("cast_groups_few_produced")?,
            many: [many("single")?, many("gated")?, many("bare")?],
            row: [file.by_input("cast_row_0_produced")?, file.by_input("cast_row_4_produced")?],
            tile: file.by_input("cast_tile_produced")?,
            channel: file.by_input("cast_channel_ungated")?,
            channel_gated: file.by_input("cast_channel_gated")?,
            channel_bare: file.kernel("cast_channel_bare_bf16")?,
            targets: TargetKernels::of(modules)?,
            norm: [norm.by_input("rms_norm_long")?, norm.by_input("rms_norm_held")?],
            backward: [backward.by_input("swiglu_backward_plain")?, backward.by_input("swiglu_backward_e4m3")?],
            backward_mx: [mx.by_input("swiglu_backward_mx_plain")?, mx.by_input("swiglu_backward_mx_e4m3")?],
        })
    }
}

impl FusedKernels {
    /// The kernel that casts in groups of columns row by row, if there is one. Scales of small groups that lie by columns want rows some at
    /// a time.
    pub(super) fn many(
        &self,
        call: &ProducerCall<'_>,
        scheme: CastScheme,
        dtype: DType,
        aligned: bool,
    ) -> Option<Kernel> {
        let by_columns = scheme.scales() == CastScales::ColumnMajor && scheme.group() != CastGroup::Group1x128;
        if !aligned || by_columns {
            return None;
        }
        let kind = if call.kind == ProducerKind::Swiglu { 1 + usize::from(is_bare(call)) } else { 0 };
        let kernels = &self.many[kind][usize::from(scheme.format() == CodeFormat::E2M1)];
        let place = [DType::Bf16, DType::F16, DType::F32].iter().position(|known| *known == dtype)?;
        Some(kernels[place])
    }

    /// The kernel that casts per channel.
    pub(super) fn channel(&self, call: &ProducerCall<'_>, dtype: DType, aligned: bool) -> Result<Kernel> {
        if call.kind != ProducerKind::Swiglu {
            self.channel.of(dtype, aligned)
        } else if is_bare(call) && dtype == DType::Bf16 && aligned {
            Ok(self.channel_bare)
        } else {
            self.channel_gated.of(dtype, aligned)
        }
    }
}

/// Whether SwiGLU has neither clamp nor weights, for which there are kernels that do not look for them.
fn is_bare(call: &ProducerCall<'_>) -> bool {
    call.clamp.is_none() && call.weights.is_none()
}

/// A plain matrix on the stream: memory and elements from row to row.
pub(crate) type Strided<'a> = (&'a Span<'a>, usize);

/// x, its norm and what is written beside the cast; all matrices of x's shape and type.
pub(crate) struct NormCall<'a> {
    pub(crate) x: Strided<'a>,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Added to x first. Where it is the `sum` as well it is replaced.
    pub(crate) residual: Option<Strided<'a>>,
    pub(crate) sum: Option<Strided<'a>>,
    /// Of columns, of x's type or FP32.
    pub(crate) weight: (&'a Span<'a>, DType),
    pub(crate) epsilon: f32,
    /// FP32, one for each row.
    pub(crate) rstd: Option<&'a Span<'a>>,
}

impl NormCall<'_> {
    /// That the kernel may be launched, with a cast to `to`.
    fn check(&self, to: Option<&CastTo<'_>>) -> Result<()> {
        let Self { x, dtype, rows, cols, residual, sum, weight, rstd, .. } = *self;
        let shape = [rows, cols];
        check_cols("x of a norm", cols)?;
        check_plain("x of a norm", x, shape, dtype)?;
        let others = [("residual of a norm", residual), ("sum of a norm", sum)];
        for (operand, matrix) in others.into_iter().filter_map(|(operand, matrix)| Some((operand, matrix?))) {
            check_plain(operand, matrix, shape, dtype)?;
        }
        check_bytes("weight of a norm", weight.0, cols * weight.1.bytes())?;
        check_aligned("weight of a norm", weight.0, weight.1.bytes() as u64)?;
        check_floats("factors of a norm", rstd, rows)?;
        if let Some(to) = to {
            to.check("target")?;
        }
        let part = |name, matrix| named(name, matrix, shape, dtype);
        let read = part("x of a norm", Some(x)).into_iter().chain(part("residual of a norm", self.kept_residual()));
        let read = read.chain([("weight of a norm", weight.0.slice(0, cols * weight.1.bytes()))]);
        let factors = rstd.map(|span| words("factors of a norm", span, rows));
        let written = part("sum of a norm", sum).into_iter().chain(factors);
        check_apart(read, written.chain(to.into_iter().flat_map(CastTo::spans)))
    }

    /// What the norm reads, by name, that a launch behind it does not: x and the residual where that reads their sum.
    pub(crate) fn before(&self) -> [Option<Named<'_>>; 2] {
        let part = |name, matrix| named(name, matrix, [self.rows, self.cols], self.dtype);
        let residual = part("residual of a norm", self.kept_residual());
        [part("x of a norm", self.sum.map(|_| self.x)), residual]
    }

    /// The residual, but for one that is replaced: it lies where its sum does, and each element is read before it is written.
    fn kept_residual(&self) -> Option<Strided<'_>> {
        self.residual.filter(|residual| self.sum.is_none_or(|sum| place(Some(*residual)) != place(Some(sum))))
    }
}

/// Mirror of `Norm` in `kernels/fused/rms_norm.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Norm {
    residual: u64,
    residual_stride: u64,
    sum: u64,
    sum_stride: u64,
    weight: u64,
    weight_f32: u32,
    epsilon: f32,
    rstd: u64,
}

/// x, the gradient of SwiGLU's result and what is written beside the cast.
pub(crate) struct BackwardCall<'a> {
    /// Both halves, plain or in E4M3.
    pub(crate) x: CastFrom<'a>,
    /// Clamp, weights and experts.
    pub(crate) forward: ProducerCall<'a>,
    pub(crate) gradient: Strided<'a>,
    /// Of the gradient, and of x where it is plain.
    pub(crate) dtype: DType,
    /// BF16, as wide as x.
    pub(crate) wide: Option<Strided<'a>>,
    /// BF16, half as wide.
    pub(crate) again: Option<Strided<'a>>,
    /// FP32, one for each row.
    pub(crate) weights: Option<&'a Span<'a>>,
}

impl BackwardCall<'_> {
    /// That the kernel may be launched, with a cast to `to`.
    fn check(&self, to: Option<&BackwardTo<'_>>) -> Result<()> {
        let Self { x, forward, gradient, dtype, wide, again, weights } = self;
        let (rows, half) = (x.rows, x.cols / 2);
        check_cols("x of SwiGLU", x.cols)?;
        x.check(rows)?;
        check_plain("gradient of SwiGLU", *gradient, [rows, half], *dtype)?;
        check_floats("weights of SwiGLU", forward.weights, rows)?;
        check_floats("experts of SwiGLU", forward.experts, rows)?;
        check_floats("gradient of the weights", *weights, rows)?;
        let (wide_name, again_name) = ("gradient of x in BF16", "result of SwiGLU in BF16");
        if let Some(matrix) = *wide {
            check_wide(wide_name, matrix, [rows, x.cols])?;
        }
        if let Some(matrix) = *again {
            check_wide(again_name, matrix, [rows, half])?;
        }
        let target = match to {
            Some(BackwardTo::Cast(_, to)) => {
                to.check("target")?;
                to.spans().map(Some)
            }
            Some(BackwardTo::Mx(format, _, out)) => {
                check_output(out, Scheme::Mxfp8(*format), rows, x.cols)?;
                [Some(("codes of the target", *out.codes)), Some(("block scales of the target", *out.block_scales))]
            }
            None => [None; 2],
        };
        let beside = named("gradient of SwiGLU", Some(*gradient), [rows, half], *dtype).into_iter();
        let beside = beside.chain(forward.weights.map(|span| words("weights of SwiGLU", span, rows)));
        let beside = beside.chain(forward.experts.map(|span| words("experts of SwiGLU", span, rows)));
        let wide = named(wide_name, *wide, [rows, x.cols], DType::Bf16);
        let again = named(again_name, *again, [rows, half], DType::Bf16);
        let weights = weights.map(|span| words("gradient of the weights", span, rows));
        let written = wide.into_iter().chain(again).chain(weights);
        x.check_apart(beside, written.chain(target.into_iter().flatten()))
    }
}

/// What the gradient of x is cast to.
pub(crate) enum BackwardTo<'a> {
    /// E4M3 in groups of 32 or 128 columns.
    Cast(CastRecipe, CastTo<'a>),
    /// MXFP8.
    Mx(Fp8Format, MxScaleRule, Output<'a>),
}

/// Mirror of `Backward` in `kernels/fused/swiglu_backward.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Backward {
    gradient: u64,
    gradient_stride: u64,
    wide: u64,
    wide_stride: u64,
    again: u64,
    again_stride: u64,
    weights: u64,
    row_warps: u32,
}

/// How many warps of a block share a row of the gradients of SwiGLU (H200, 2026-11, the record of channels): the fewer, the fewer wait for columns that are not there and the less a block does at its beginning and end;
/// the more, the fewer rows are open at a time, and the more multiprocessors have some of few rows. Codes whose groups have one column have kernels of one
/// warp a row. Of MXFP8 fewer blocks share a multiprocessor.
fn row_warps(x: &CastFrom<'_>, aligned: bool, to_mx: bool, sm_count: usize) -> usize {
    let (half, most) = (x.cols / 2, |warps: usize| x.rows <= warps * sm_count);
    let coded = matches!(x.values, CastValues::Coded { .. });
    match x.values {
        CastValues::Coded { scheme, .. } if scheme.group().extents()[1] == Extent::Elements(1) => 1,
        _ if aligned && (half >= 4096 || (half > 512 && most(2))) => 4,
        _ if aligned && ((half >= 2048 && !to_mx) || (half > 512 && most(6))) => 2,
        _ if aligned => 1,
        _ if half > 1024 && most(4) => 4,
        _ if (half > 512 && most(8)) || (half >= 2048 && !coded) => 2,
        _ => 1,
    }
}

fn place(matrix: Option<Strided<'_>>) -> (u64, u64) {
    matrix.map_or((0, 0), |(span, stride)| (span.address, stride as u64))
}

/// That a matrix lies in its memory.
fn check_plain(operand: &str, (span, stride): Strided<'_>, [rows, cols]: [usize; 2], dtype: DType) -> Result<()> {
    check_bytes(operand, span, extent(rows, cols, stride) * dtype.bytes())?;
    check_aligned(operand, span, dtype.bytes() as u64)
}

/// That columns are numbers of the kernels.
fn check_cols(operand: &str, cols: usize) -> Result<()> {
    if cols <= i32::MAX as usize {
        return Ok(());
    }
    Err(Error::shape(operand, format!("{cols} columns"), format!("must have at most {}", i32::MAX), "split its rows"))
}

/// That rows of BF16 which are written sixteen bytes at a time begin where that is possible.
fn check_wide(operand: &str, matrix: Strided<'_>, shape: [usize; 2]) -> Result<()> {
    check_plain(operand, matrix, shape, DType::Bf16)?;
    let (span, stride) = matrix;
    if is_aligned(span.address, shape[0], stride, DType::Bf16) {
        return Ok(());
    }
    Err(Error::shape(
        operand,
        format!("begins at {:#x}, a row every {stride} elements", span.address),
        "must have rows that begin at multiples of 16 bytes",
        "take a buffer that begins so, and a row stride that is a multiple of 8",
    ))
}

/// A matrix by name, from its first to past its last element.
fn named<'a>(
    operand: &'static str,
    matrix: Option<Strided<'a>>,
    [rows, cols]: [usize; 2],
    dtype: DType,
) -> Option<Named<'a>> {
    matrix.map(|(span, stride)| (operand, span.slice(0, extent(rows, cols, stride) * dtype.bytes())))
}

impl Kernels {
    /// RMSNorm, cast to the grouping along rows of `to`; without, only what is written beside.
    pub(crate) fn rms_norm(
        &self,
        stream: &Queue,
        call: &NormCall<'_>,
        cast: Option<(CastRecipe, &CastTo<'_>)>,
    ) -> Result<()> {
        call.check(cast.map(|(_, to)| to))?;
        let NormCall { x, dtype, rows, cols, residual, sum, weight, epsilon, rstd } = *call;
        if rows == 0 {
            return Ok(());
        }
        let aligned = [Some(x), residual, sum]
            .into_iter()
            .flatten()
            .all(|(span, stride)| is_aligned(span.address, rows, stride, dtype))
            && weight.0.address.is_multiple_of(16);
        let from = CastFrom { x: x.0, values: CastValues::Plain { dtype, row_stride: x.1 }, rows, cols, index: None };
        let ((residual, residual_stride), (sum, sum_stride)) = (place(residual), place(sum));
        let norm = Norm {
            residual,
            residual_stride,
            sum,
            sum_stride,
            weight: weight.0.address,
            weight_f32: u32::from(weight.1 == DType::F32),
            epsilon,
            rstd: address(rstd),
        };
        let held = cols <= NORM_HELD;
        let kernels = &self.fused(stream)?.norm[usize::from(held)];
        // As many as the row takes; where there are few rows, more of them wait at once.
        let threads = match held {
            true if self.are_few(rows, cols) => 2 * NORM_THREADS,
            true => cols.div_ceil(32).max(1).next_multiple_of(32) as u32,
            false => NORM_THREADS,
        };
        let (rule, out) = cast_of(cast);
        enqueue!(
            stream,
            kernels.of(dtype, aligned)?,
            Blocks::new((rows, 1), threads),
            CastSource::new(&from),
            norm,
            rule,
            out,
        )
    }

    /// The gradients of SwiGLU, cast to `to`, as wide as x; without, only what is written beside.
    pub(crate) fn swiglu_backward(
        &self,
        stream: &Queue,
        call: &BackwardCall<'_>,
        to: Option<&BackwardTo<'_>>,
    ) -> Result<()> {
        call.check(to)?;
        let BackwardCall { x, forward, gradient, dtype, wide, again, weights } = call;
        let rows = x.rows;
        if rows == 0 {
            return Ok(());
        }
        let coded = matches!(x.values, CastValues::Coded { .. });
        let aligned = x.is_aligned() && is_aligned(gradient.0.address, rows, gradient.1, *dtype);
        let to_mx = matches!(to, Some(BackwardTo::Mx(..)));
        let row_warps = row_warps(x, aligned, to_mx, self.sm_count);
        // Scale bytes of padding of MXFP8 are written, too.
        let lines = if to_mx { rows.next_multiple_of(128) } else { rows };
        let blocks = Blocks::new((lines.div_ceil(BACKWARD_WARPS / row_warps), 1), 32 * BACKWARD_WARPS as u32);
        let ((wide, wide_stride), (again, again_stride)) = (place(*wide), place(*again));
        let backward = Backward {
            gradient: gradient.0.address,
            gradient_stride: gradient.1 as u64,
            wide,
            wide_stride,
            again,
            again_stride,
            weights: address(*weights),
            row_warps: row_warps as u32,
        };
        let source = CastSource::new(x).with_producer(Producer::new(forward));
        let kernels = self.fused(stream)?;
        if let Some(BackwardTo::Mx(format, rule, out)) = to {
            return enqueue!(
                stream,
                kernels.backward_mx[usize::from(coded)].of(*dtype, aligned)?,
                blocks,
                source,
                backward,
                rows as u32,
                MxRule::new(*rule, Scheme::Mxfp8(*format).spec().format),
                out.codes.address,
                out.block_scales.address,
            );
        }
        let cast = to.and_then(|to| match to {
            BackwardTo::Cast(recipe, to) => Some((*recipe, to)),
            BackwardTo::Mx(..) => None,
        });
        let (rule, out) = cast_of(cast);
        enqueue!(
            stream,
            kernels.backward[usize::from(coded)].of(*dtype, aligned)?,
            blocks,
            source,
            backward,
            rows as u32,
            rule,
            out,
        )
    }
}

/// Rule and target as the kernels take them; null where nothing is cast.
fn cast_of(cast: Option<(CastRecipe, &CastTo<'_>)>) -> (CastRule, CastOut) {
    cast.map_or_else(Default::default, |(recipe, to)| (CastRule::new(recipe), CastOut::new(to, CastPart::Both)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::CodeFormat;
    use crate::gpu::device::memory::assert_apart;

    fn e4m3() -> CastScheme {
        CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x32).unwrap()
    }

    #[test]
    fn results_of_a_norm_lie_apart_from_what_it_reads_and_from_each_other() {
        let names = [
            "x of a norm",
            "weight of a norm",
            "residual of a norm",
            "sum of a norm",
            "factors of a norm",
            "codes of the target",
            "scales of the target",
        ];
        let (rows, cols) = (4, 32);
        let check = |at: &[Span<'_>], replaced: bool| {
            // Of another stride it is not replaced, wherever it lies.
            let residual = if replaced { (&at[3], cols) } else { (&at[2], cols + 16) };
            let call = NormCall {
                x: (&at[0], cols),
                dtype: DType::Bf16,
                rows,
                cols,
                residual: Some(residual),
                sum: Some((&at[3], cols)),
                weight: (&at[1], DType::F32),
                epsilon: 1e-6,
                rstd: Some(&at[4]),
            };
            let to = CastTo { codes: &at[5], scales: &at[6], scheme: e4m3(), rows, cols };
            call.check(Some(&to))?;
            // Another launch of the same call may not write these.
            assert_eq!(
                call.before().map(|named| named.map(|(name, _)| name)),
                match replaced {
                    true => [Some(names[0]), None],
                    false => [Some(names[0]), Some(names[2])],
                }
            );
            Ok(())
        };
        assert_apart(&names, 4, 512, |at| check(at, false));
        let without: Vec<_> = names.into_iter().filter(|name| *name != names[2]).collect();
        assert_apart(&without, 4, 512, |at| check(&[at[0], at[1], at[1], at[2], at[3], at[4], at[5]], true));
    }

    #[test]
    fn gradients_of_swiglu_lie_apart_from_what_is_read_and_from_each_other() {
        let names = [
            "source",
            "gradient of SwiGLU",
            "weights of SwiGLU",
            "experts of SwiGLU",
            "gradient of x in BF16",
            "result of SwiGLU in BF16",
            "gradient of the weights",
            "codes of the target",
            "scales of the target",
        ];
        let (rows, cols) = (4, 64);
        let format = Fp8Format::E4M3;
        let check = |at: &[Span<'_>], to: Option<&BackwardTo<'_>>| {
            let values = CastValues::Plain { dtype: DType::Bf16, row_stride: cols };
            BackwardCall {
                x: CastFrom { x: &at[0], values, rows, cols, index: None },
                forward: ProducerCall { weights: Some(&at[2]), experts: Some(&at[3]), ..ProducerCall::default() },
                gradient: (&at[1], cols / 2),
                dtype: DType::Bf16,
                wide: Some((&at[4], cols)),
                again: Some((&at[5], cols / 2)),
                weights: Some(&at[6]),
            }
            .check(to)
        };
        let bytes = 512;
        assert_apart(&names, 5, bytes, |at| {
            let to = CastTo { codes: &at[7], scales: &at[8], scheme: e4m3(), rows, cols };
            check(at, Some(&BackwardTo::Cast(CastRecipe::new(e4m3()), to)))
        });
        let mut of_mx = names;
        of_mx[8] = "block scales of the target";
        assert_apart(&of_mx, 5, bytes, |at| {
            let out = Output { codes: &at[7], scales: &at[8].slice(0, 0), block_scales: &at[8] };
            check(at, Some(&BackwardTo::Mx(format, MxScaleRule::default(), out)))
        });
        assert_apart(&names[..7], 3, bytes, |at| check(at, None));
    }
}
