//! Casts to groupings that no product reads, as calls on a handle: TileKernels' casts.

use super::norm::along_rows;
use super::source::{CastSource, GatedInput, SourceActivation, SwigluSource, Values};
use crate::error::{Error, Result};
use crate::format::{CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType};
use crate::gpu::device::memory::DeviceBytesMut;
use crate::gpu::device::stream::Order;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{CastFrom, CastPart, CastTo, CastValues, ProducerCall, ProducerKind};
use crate::gpu::matrix::{CastMatrix, MatMut, MatRef};

impl Handle {
    /// Casts a source: `code = sat(fl(x * encode))`, scale and encode of each group as [`CastRecipe`] says, the amax exact.
    /// Allocates the result; waits for nothing.
    ///
    /// Scales of a source are not looked at: where one is NaN or negative the values are what the formula gives
    /// ([`reference::cast`](crate::reference::cast) refuses them, and [`CastMatrix::check_scales`] finds them); nor are chosen rows that a device wrote, where a number beyond the matrix is a row of zeros
    /// ([`RowIndex::check`](crate::RowIndex::check) finds it). Of codes with scales `x = fl(code * scale)`, rounded once before it is multiplied by `encode`
    /// (TileKernels' reference; its kernels multiply both factors first).
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] for a source that the scheme refuses; [`Error::Alignment`] unless counts of the clamp begin at a multiple of 8 bytes, experts and the factors that a norm
    /// writes at one of 4, and matrices and vectors in cudarc's views, whose address a call learns, at one of their elements' size; [`Error::Unsupported`] for transposed codes as a source,
    /// and, since it allocates, inside graph capture; [`Error::Driver`]; [`Error::Kernel`].
    pub fn cast<'a>(&self, source: impl Into<CastSource<'a>>, recipe: CastRecipe) -> Result<CastMatrix> {
        let source = source.into();
        check_source(&source)?;
        let mut out = CastMatrix::zeros(self, recipe.scheme(), source.rows(), source.cols())?;
        self.cast_into(source, recipe, &mut out)?;
        Ok(out)
    }

    /// The same into a matrix that exists. Allocates nothing and waits for nothing: safe inside graph capture, once the kernels are
    /// loaded. [`CastMatrix::zeros`] loads those of plain sources and codes, [`Handle::load_kernels`] those of producers
    /// ([`KernelFamily::Fused`](crate::KernelFamily)).
    ///
    /// # Errors
    /// As [`Handle::cast`], but for the capture; [`Error::Shape`] if the target has another shape, or it or counts of the source overlap what is read or each other; [`Error::Unsupported`] if it has
    /// another scheme than the recipe.
    pub fn cast_into<'a>(
        &self,
        source: impl Into<CastSource<'a>>,
        recipe: CastRecipe,
        out: &mut CastMatrix,
    ) -> Result<()> {
        self.cast_part(source.into(), recipe, CastPart::Both, out)
    }

    /// Only the scales of [`Handle::cast_into`]; the target's codes stay as they are. Allocates nothing and waits for nothing: safe inside graph capture, as that is.
    ///
    /// Codes by these scales ([`Handle::cast_with_scales_into`]) are those of [`Handle::cast_into`] where scales are powers of two. Exact ones divide there: `encode = fl(max / amax)`, which is not always `fl(1 / scale)`.
    ///
    /// # Errors
    /// As [`Handle::cast_into`].
    pub fn cast_scales_into<'a>(
        &self,
        source: impl Into<CastSource<'a>>,
        recipe: CastRecipe,
        out: &mut CastMatrix,
    ) -> Result<()> {
        self.cast_part(source.into(), recipe, CastPart::Scales, out)
    }

    /// Only the codes, by the scales that the target has: `code = sat(fl(x * fl(1 / scale)))`. Allocates nothing and waits for nothing: safe inside graph capture, as [`Handle::cast_into`] is.
    ///
    /// The scales are not looked at: what is no positive number gives what the formula gives ([`CastMatrix::check_given_scales`] finds it).
    ///
    /// # Errors
    /// As [`Handle::cast_into`].
    pub fn cast_with_scales_into<'a>(&self, source: impl Into<CastSource<'a>>, out: &mut CastMatrix) -> Result<()> {
        self.cast_part(source.into(), CastRecipe::new(out.scheme()), CastPart::Codes, out)
    }

    fn cast_part(
        &self,
        source: CastSource<'_>,
        recipe: CastRecipe,
        part: CastPart,
        out: &mut CastMatrix,
    ) -> Result<()> {
        check_source(&source)?;
        let (scheme, rows, cols) = (out.scheme(), out.rows(), out.cols());
        check_scheme("target", scheme, recipe.scheme())?;
        // Of a shape that no target has none can be asked for.
        scheme.check_shape(source.rows(), source.cols())?;
        if (rows, cols) != (source.rows(), source.cols()) {
            return Err(Error::shape(
                "target",
                format!("{rows} x {cols}"),
                format!("must be {} x {}, the shape of the source", source.rows(), source.cols()),
                "allocate it with CastMatrix::zeros for that shape",
            ));
        }
        let mut source = source;
        let order = self.queue().order();
        let [codes, scales] = out.write(&order)?;
        let to = CastTo { codes: &codes, scales: &scales, scheme, rows, cols };
        self.cast_values(&mut source, &order, (recipe, part), &to)
    }

    /// Casts a source, a norm in one pass where that can be.
    pub(super) fn cast_values<'q>(
        &self,
        source: &'q mut CastSource<'_>,
        order: &Order<'q>,
        (recipe, part): (CastRecipe, CastPart),
        to: &CastTo<'_>,
    ) -> Result<()> {
        let whole = source.index.is_none() && part == CastPart::Both && along_rows(recipe.scheme());
        let ready = |from: &CastFrom<'_>| self.kernels().cast(self.queue(), from, recipe, part, to);
        self.with_source_or_norm(source, order, whole.then_some((recipe, to)), ready)
    }

    /// Calls `ready` with the source as the kernels take it, and the launch that it returns.
    pub(super) fn with_source<'q, L: FnOnce() -> Result<()>>(
        &self,
        source: &'q mut CastSource<'_>,
        order: &Order<'q>,
        ready: impl FnOnce(&CastFrom<'_>) -> Result<L>,
    ) -> Result<()> {
        self.with_source_or_norm(source, order, None, ready)
    }

    /// The same, but for a norm if its cast `at_once` is given: that is enqueued then.
    fn with_source_or_norm<'q, L: FnOnce() -> Result<()>>(
        &self,
        source: &'q mut CastSource<'_>,
        order: &Order<'q>,
        at_once: Option<(CastRecipe, &CastTo<'_>)>,
        ready: impl FnOnce(&CastFrom<'_>) -> Result<L>,
    ) -> Result<()> {
        let (rows, cols) = (source.matrix_rows(), source.cols());
        let index = source.index.map(|index| index.read(order)).transpose()?;
        let index = index.as_ref();
        match &mut source.values {
            Values::Plain(x) => {
                let span = x.data().at(order)?;
                let values = CastValues::Plain { dtype: x.dtype(), row_stride: x.row_stride() };
                ready(&CastFrom { x: &span, values, rows, cols, index })?()
            }
            Values::Coded(q) => {
                let [codes, scales] = q.read(order)?;
                let values = CastValues::Coded { scheme: q.scheme(), scales: &scales };
                ready(&CastFrom { x: &codes, values, rows, cols, index })?()
            }
            Values::Activated(x, activation) => {
                let span = x.data().at(order)?;
                let kind = match activation {
                    SourceActivation::Silu => ProducerKind::Silu,
                    SourceActivation::Gelu => ProducerKind::Gelu,
                    SourceActivation::GeluTanh => ProducerKind::GeluTanh,
                };
                let producer = ProducerCall { kind, ..ProducerCall::default() };
                let values = CastValues::Produced { dtype: x.dtype(), row_stride: x.row_stride(), producer };
                ready(&CastFrom { x: &span, values, rows, cols, index })?()
            }
            Values::Normed { x, rstd, weight } => {
                let (span, rstd) = (x.data().at(order)?, rstd.data().at(order)?);
                let factors = weight.data().at(order)?;
                let producer = ProducerCall {
                    kind: ProducerKind::Normed,
                    weights: Some(&rstd),
                    columns: Some((&factors, weight.dtype())),
                    ..ProducerCall::default()
                };
                let values = CastValues::Produced { dtype: x.dtype(), row_stride: x.row_stride(), producer };
                ready(&CastFrom { x: &span, values, rows, cols, index })?()
            }
            Values::Norm(norm) => match at_once {
                Some(cast) => self.norm_at_once(norm, order, cast),
                None => self.with_normed(norm, order, index, ready),
            },
            Values::Swiglu(SwigluSource { x: GatedInput::Coded(q), .. }) => Err(coded_forward(q)),
            Values::Swiglu(SwigluSource { x: GatedInput::Plain(x), clamp, weights, experts, counts }) => {
                let span = x.data().at(order)?;
                let weights = weights.as_ref().map(|weights| weights.data().at(order)).transpose()?;
                let experts = experts.as_ref().map(|experts| experts.at(order)).transpose()?;
                let counts = counts.as_mut().map(|counts| counts.at(order)).transpose()?;
                let producer = ProducerCall {
                    kind: ProducerKind::Swiglu,
                    clamp: *clamp,
                    weights: weights.as_ref(),
                    experts: experts.as_ref(),
                    counts: counts.as_ref(),
                    ..ProducerCall::default()
                };
                let values = CastValues::Produced { dtype: x.dtype(), row_stride: x.row_stride(), producer };
                ready(&CastFrom { x: &span, values, rows, cols, index })?()
            }
        }
    }

    /// `y = round(fl(code * scale))` to BF16, F16 or F32: `rows x cols`, also of transposed codes; to the nearest, ties to even, and to infinity what is beyond y's type. Allocates nothing and waits for nothing:
    /// safe inside graph capture, once the kernels are loaded, as [`CastMatrix::zeros`] does.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Alignment`] if `y` does not fit, overlaps codes or scales, or has more columns than a launch takes (docs/casts.md).
    pub fn cast_back_into(&self, q: &CastMatrix, y: &mut MatMut<'_>) -> Result<()> {
        if (y.rows(), y.cols()) != (q.rows(), q.cols()) {
            return Err(Error::shape(
                "matrix to cast back to",
                format!("{} x {}", y.rows(), y.cols()),
                format!("must be {} x {}, the shape of the codes", q.rows(), q.cols()),
                "pass a matrix of that shape",
            ));
        }
        if !y.dtype().is_wide() {
            let rule = "is not bf16, f16 or f32";
            return Err(Error::dtype("matrix to cast back to", y.dtype(), rule, "pass a matrix of one of these"));
        }
        let order = self.queue().order();
        let [codes, scales] = q.read(&order)?;
        let (dtype, stride) = (y.dtype(), y.row_stride());
        let y = y.data_mut().at(&order)?;
        let q = CastTo { codes: &codes, scales: &scales, scheme: q.scheme(), rows: q.rows(), cols: q.cols() };
        self.kernels().cast_back(self.queue(), &q, &y, stride, dtype)
    }

    /// E2M1 codes to E4M3 codes of the same values. Allocates nothing and waits for nothing: safe inside graph capture, once the kernels are loaded, as [`CastMatrix::zeros`] does.
    ///
    /// `q` has groups along rows of 16 to 128 columns and scales that are powers of two, `2^(i - 127)` with a byte i of each group; the result groups of 128
    /// columns and UE8M0 scales, `o = max(max of the i - 6, 0)`, its codes `code * 2^(i - o)`. Nothing is lost while
    /// `-5 <= i - o <= 6` where codes are not zero, and scales are powers of two; `inexact`, one u32 where given, is raised by each group
    /// of 128 where that does not hold, and whose codes are then wrong: zero it before, 4-byte aligned; without it nothing tells of them. A recipe has such scales only by
    /// [`CastRecipe::power_of_two`] or with UE8M0.
    ///
    /// # Errors
    /// [`Error::Shape`] if the target or `inexact` does not fit, or overlaps what is read or the other; [`Error::Alignment`] unless `inexact` begins at a multiple of 4 bytes; [`Error::Unsupported`]
    /// for other schemes.
    pub fn fp4_to_fp8_into(
        &self,
        q: &CastMatrix,
        out: &mut CastMatrix,
        inexact: Option<&mut DeviceBytesMut<'_>>,
    ) -> Result<()> {
        let along_rows = [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128];
        if q.scheme().format() != CodeFormat::E2M1 || !along_rows.contains(&q.scheme().group()) {
            return Err(Error::unsupported(
                format!("{} to FP8 without loss", q.scheme()),
                "it is for e2m1 codes in groups of 16 to 128 columns",
                "use Handle::cast",
            ));
        }
        let wanted = CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128)?.with_scales(CastScales::Ue8m0);
        check_scheme("target", out.scheme(), wanted)?;
        let (rows, cols) = (q.rows(), q.cols());
        if (out.rows(), out.cols()) != (rows, cols) {
            return Err(Error::shape(
                "target",
                format!("{} x {}", out.rows(), out.cols()),
                format!("must be {rows} x {cols}, the shape of the source"),
                "allocate it with CastMatrix::zeros for that shape",
            ));
        }
        let order = self.queue().order();
        let inexact = inexact.map(|bytes| bytes.at(&order)).transpose()?;
        let [codes, scales] = q.read(&order)?;
        let values = CastValues::Coded { scheme: q.scheme(), scales: &scales };
        let from = CastFrom { x: &codes, values, rows, cols, index: None };
        let [codes, scales] = out.write(&order)?;
        let to = CastTo { codes: &codes, scales: &scales, scheme: wanted, rows, cols };
        self.kernels().fp4_to_fp8(self.queue(), &from, &to, inexact.as_ref())
    }
}

pub(super) fn check_source(source: &CastSource<'_>) -> Result<()> {
    match &source.values {
        Values::Swiglu(SwigluSource { x: GatedInput::Coded(q), .. }) => Err(coded_forward(q)),
        Values::Plain(x)
        | Values::Activated(x, _)
        | Values::Normed { x, .. }
        | Values::Swiglu(SwigluSource { x: GatedInput::Plain(x), .. }) => check_wide("source of a cast", x),
        // A norm's x was looked at when its arguments were made.
        Values::Coded(_) | Values::Norm(_) => Ok(()),
    }
}

/// Refuses codes without scales.
pub(super) fn check_wide(operand: &str, x: &MatRef<'_>) -> Result<()> {
    if x.dtype().is_wide() {
        return Ok(());
    }
    Err(Error::dtype(operand, x.dtype(), "has no scales", "pass bf16, f16, f32, or a CastMatrix"))
}

fn coded_forward(q: &CastMatrix) -> Error {
    Error::unsupported(
        format!("SwiGLU of x in {}, forward", q.scheme()),
        "only the backward pass, which reads what was kept, opens codes in both halves",
        "cast them back first (Handle::cast_back_into), and take SwiGLU of the result",
    )
}

fn check_scheme(operand: &str, found: CastScheme, wanted: CastScheme) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::unsupported(
        format!("a {operand} of {found}"),
        format!("the cast is to {wanted}"),
        "allocate it with CastMatrix::zeros for that scheme",
    ))
}

/// Bytes that a cast must move: each element or code and scale of the source read, each code and scale written.
///
/// `source` is what the source has; what bandwidth figures are computed from.
pub fn cast_bytes(source: CastBytes, to: CastScheme, rows: usize, cols: usize) -> usize {
    let of = |scheme: CastScheme| scheme.code_bytes(rows, cols) + scheme.scale_bytes(rows, cols);
    let read = match source {
        CastBytes::Plain(dtype) => rows * cols * dtype.bytes(),
        CastBytes::Coded(scheme) => of(scheme),
    };
    read + of(to)
}

/// What a cast reads, for [`cast_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CastBytes {
    /// Elements.
    Plain(DType),
    /// Codes and scales.
    Coded(CastScheme),
}
