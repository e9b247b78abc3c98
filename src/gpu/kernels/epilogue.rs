//! Launches of what follows a product: `kernels/gemm/epilogue.cu`.

use super::Kernels;
use super::launch::{Blocks, ByInput, GRID_Y, Kernel, THREADS, enqueue};
use super::module::Modules;
use super::operand::{address, check_aligned, check_bytes, extent, is_aligned};
use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::DType;
use crate::format::layout::ScaleLayout;
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// The kernels of the family.
pub(super) struct EpilogueKernels {
    /// By output type.
    epilogue: ByInput,
    /// For aligned operands, then for any.
    epilogue_e4m3: [Kernel; 2],
    gemm_factors: Kernel,
    repeat_scales: Kernel,
}

impl EpilogueKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let file = modules.file("gemm/epilogue")?;
        Ok(Self {
            epilogue: file.by_input("epilogue")?,
            epilogue_e4m3: [file.kernel("epilogue_e4m3")?, file.kernel("epilogue_e4m3_unaligned")?],
            gemm_factors: file.kernel("gemm_factors")?,
            repeat_scales: file.kernel("repeat_scales_128x128")?,
        })
    }
}

/// FP32 factors of the rows or columns of D.
#[derive(Clone, Copy)]
pub(crate) enum ScaleVector<'a> {
    /// One for each.
    Each(&'a Span<'a>),
    /// One number for all.
    One(&'a Span<'a>),
}

impl<'a> ScaleVector<'a> {
    fn span(self) -> &'a Span<'a> {
        match self {
            Self::Each(span) | Self::One(span) => span,
        }
    }

    /// Elements from one factor to the next, as the kernel counts.
    fn step(self) -> u32 {
        match self {
            Self::Each(_) => 1,
            Self::One(_) => 0,
        }
    }
}

/// One epilogue: see [`Epilogue`](crate::Epilogue) for the arithmetic.
pub(crate) struct EpilogueCall<'a> {
    pub(crate) m: usize,
    /// A multiple of 8.
    pub(crate) n: usize,
    /// FP32 `[m][n]`.
    pub(crate) acc: &'a Span<'a>,
    pub(crate) acc_stride: usize,
    /// FP32 `[m]`, or one number.
    pub(crate) row_scale: Option<ScaleVector<'a>>,
    /// FP32 `[n]`, or one number.
    pub(crate) col_scale: Option<ScaleVector<'a>>,
    pub(crate) beta: f32,
    /// FP32 `[m][n]` and its row stride; may be D itself.
    pub(crate) c: Option<(&'a Span<'a>, usize)>,
    /// `[n]`.
    pub(crate) bias: Option<(&'a Span<'a>, DType)>,
    pub(crate) activation: Activation,
    /// `[m][n]`, its row stride and type.
    pub(crate) residual: Option<(&'a Span<'a>, usize, DType)>,
    /// `[m][n]` of `d_type`.
    pub(crate) d: &'a Span<'a>,
    pub(crate) d_stride: usize,
    pub(crate) d_type: DType,
    /// One FP32: the encode factor of an E4M3 output.
    pub(crate) out_encode: Option<&'a Span<'a>>,
    /// One FP32, raised to `max |v|` of an E4M3 output; the caller zeroes it.
    pub(crate) amax: Option<&'a Span<'a>>,
}

/// Mirror of `Epilogue` in `kernels/gemm/epilogue.cu`.
#[repr(C)]
struct EpilogueParameters {
    acc: u64,
    row_scale: u64,
    col_scale: u64,
    c: u64,
    bias: u64,
    residual: u64,
    out_encode: u64,
    amax: u64,
    d: u64,
    acc_stride: u64,
    c_stride: u64,
    residual_stride: u64,
    d_stride: u64,
    m: u32,
    n: u32,
    beta: f32,
    activation: u32,
    bias_type: u32,
    residual_type: u32,
    row_step: u32,
    col_step: u32,
}

impl EpilogueCall<'_> {
    fn check(&self) -> Result<()> {
        let (m, n) = (self.m, self.n);
        if n % 8 != 0 || m > u32::MAX as usize || n > u32::MAX as usize {
            return Err(Error::shape(
                "D",
                format!("{m} x {n}"),
                "must have a multiple of 8 columns",
                "pad the columns",
            ));
        }
        let matrix = |name: &str, span: &Span<'_>, stride: usize, dtype: DType| {
            check_bytes(name, span, extent(m, n, stride) * dtype.bytes())?;
            check_aligned(name, span, dtype.bytes() as u64)
        };
        let vector = |name: &str, span: Option<&Span<'_>>, len: usize, dtype: DType| {
            span.map_or(Ok(()), |s| {
                check_bytes(name, s, len * dtype.bytes()).and_then(|()| check_aligned(name, s, dtype.bytes() as u64))
            })
        };
        matrix("accumulator", self.acc, self.acc_stride, DType::F32)?;
        matrix("D", self.d, self.d_stride, self.d_type)?;
        self.c.map_or(Ok(()), |(s, stride)| matrix("C", s, stride, DType::F32))?;
        self.residual.map_or(Ok(()), |(s, stride, dtype)| matrix("residual", s, stride, dtype))?;
        for (name, scale, len) in [("row scales", self.row_scale, m), ("column scales", self.col_scale, n)] {
            match scale {
                Some(ScaleVector::Each(span)) => vector(name, Some(span), len, DType::F32)?,
                Some(ScaleVector::One(span)) => vector(name, Some(span), 1, DType::F32)?,
                None => {}
            }
        }
        vector("bias", self.bias.map(|b| b.0), n, self.bias.map_or(DType::F32, |b| b.1))?;
        vector("output scale", self.out_encode, 1, DType::F32)?;
        vector("amax", self.amax, 1, DType::F32)
    }

    /// True if every row of every operand starts 16-byte aligned.
    fn aligned(&self) -> bool {
        let row = |span: &Span<'_>, stride, dtype| is_aligned(span.address, self.m, stride, dtype);
        row(self.acc, self.acc_stride, DType::F32)
            && self.c.is_none_or(|(s, stride)| row(s, stride, DType::F32))
            && self.col_scale.is_none_or(|s| s.step() == 0 || row(s.span(), 0, DType::F32))
            && self.bias.is_none_or(|(s, dtype)| row(s, 0, dtype))
            && self.residual.is_none_or(|(s, stride, dtype)| row(s, stride, dtype))
            && row(self.d, self.d_stride, self.d_type)
    }
}

/// Types of what an epilogue reads and writes, as kernels number them.
pub(super) fn wide_code(dtype: DType) -> Result<u32> {
    match dtype {
        DType::Bf16 => Ok(0),
        DType::F16 => Ok(1),
        DType::F32 => Ok(2),
        other => Err(Error::dtype("bias or residual", other, "is not one of bf16, f16, f32", "convert it first")),
    }
}

/// Activations as kernels number them (`base/activation.cuh`).
pub(super) fn activation_code(activation: Activation) -> u32 {
    match activation {
        Activation::None => 0,
        Activation::Relu => 1,
        Activation::Gelu => 2,
        Activation::Silu => 3,
    }
}

impl Kernels {
    /// Scales, beta * C, bias, activation, residual and the final rounding, in FP32, in one pass.
    pub(crate) fn epilogue(&self, stream: &Queue, call: &EpilogueCall<'_>) -> Result<()> {
        call.check()?;
        let family = self.epilogue_kernels(stream)?;
        let kernel = match (call.d_type, call.out_encode) {
            (DType::E4M3, Some(_)) => family.epilogue_e4m3[usize::from(!call.aligned())],
            (found @ (DType::E4M3 | DType::E5M2), _) => {
                return Err(Error::dtype(
                    "D",
                    found,
                    "is not bf16, f16, f32, or e4m3 with an output scale",
                    "choose another output type or give the scale",
                ));
            }
            (wide, _) => family.epilogue.of(wide, call.aligned())?,
        };
        let parameters = EpilogueParameters {
            acc: call.acc.address,
            row_scale: address(call.row_scale.map(ScaleVector::span)),
            col_scale: address(call.col_scale.map(ScaleVector::span)),
            c: address(call.c.map(|c| c.0)),
            bias: address(call.bias.map(|b| b.0)),
            residual: address(call.residual.map(|r| r.0)),
            out_encode: address(call.out_encode),
            amax: address(call.amax),
            d: call.d.address,
            acc_stride: call.acc_stride as u64,
            c_stride: call.c.map_or(0, |c| c.1) as u64,
            residual_stride: call.residual.map_or(0, |r| r.1) as u64,
            d_stride: call.d_stride as u64,
            m: call.m as u32,
            n: call.n as u32,
            beta: call.beta,
            activation: activation_code(call.activation),
            bias_type: call.bias.map_or(Ok(0), |b| wide_code(b.1))?,
            residual_type: call.residual.map_or(Ok(0), |r| wide_code(r.2))?,
            row_step: call.row_scale.map_or(0, ScaleVector::step),
            col_step: call.col_scale.map_or(0, ScaleVector::step),
        };
        // Small outputs need many small blocks to reach every multiprocessor.
        let threads = if call.m * call.n < 1 << 20 { 64 } else { THREADS };
        let grid = ((call.n / 8).div_ceil(threads as usize), call.m.div_ceil(4).clamp(1, GRID_Y));
        enqueue!(stream, kernel, Blocks::new(grid, threads), parameters)
    }

    /// Writes `{fl(fl(alpha * scale_a) * scale_b), beta}` to `out`, two FP32 numbers; an absent scale is left out.
    pub(crate) fn gemm_factors(
        &self,
        stream: &Queue,
        (alpha, beta): (f32, f32),
        scale_a: Option<&Span<'_>>,
        scale_b: Option<&Span<'_>>,
        out: &Span<'_>,
    ) -> Result<()> {
        for (name, scale) in [("scale of A", scale_a), ("scale of B", scale_b)] {
            scale.map_or(Ok(()), |span| check_bytes(name, span, 4).and_then(|()| check_aligned(name, span, 4)))?;
        }
        check_bytes("alpha and beta", out, 8)?;
        check_aligned("alpha and beta", out, 8)?;
        let (scale_a, scale_b, out) = (address(scale_a), address(scale_b), out.address);
        enqueue!(
            stream,
            self.epilogue_kernels(stream)?.gemm_factors,
            Blocks::new((1, 1), 32),
            alpha,
            beta,
            scale_a,
            scale_b,
            out
        )
    }

    /// The scales of a 128x128 matrix repeated for each of its rows.
    pub(crate) fn repeat_scales(
        &self,
        stream: &Queue,
        tiles: &Span<'_>,
        n: usize,
        k: usize,
        out: &Span<'_>,
    ) -> Result<()> {
        let blocks = k.div_ceil(128);
        check_bytes("128x128 scales", tiles, ScaleLayout::Blk128.len(n.div_ceil(128), blocks) * 4)?;
        check_bytes("repeated scales", out, ScaleLayout::Vec128.len(n, blocks) * 4)?;
        let grid = (n.next_multiple_of(4).div_ceil(THREADS as usize), blocks.clamp(1, GRID_Y));
        enqueue!(
            stream,
            self.epilogue_kernels(stream)?.repeat_scales,
            Blocks::new(grid, THREADS),
            tiles.address,
            n as u32,
            k as u32,
            out.address
        )
    }
}
