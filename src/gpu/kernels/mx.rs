//! Launches for MXFP8 and MXFP4: `kernels/cast/mxfp8.cu` and `mxfp4.cu`. Their dequantizers are enqueued by
//! [`Kernels::dequantize_blocks`].

use super::Kernels;
use super::launch::{Blocks, ByInput, THREADS, enqueue_cast};
use super::module::Modules;
use super::operand::{Input, Output, address, check_output, check_transposable, format_code};
use crate::error::Result;
use crate::format::{CodeFormat, DType, MxScaleRule, Scheme};
use crate::gpu::device::stream::Queue;

/// The kernels of one of the two families.
pub(super) struct MxKernels {
    quantize: ByInput,
    tile: ByInput,
    pub(super) dequantize: ByInput,
}

impl MxKernels {
    pub(super) fn mxfp8(modules: &Modules) -> Result<Self> {
        let file = modules.file("cast/mxfp8")?;
        Ok(Self {
            quantize: file.by_input("quantize_mxfp8")?,
            tile: file.by_input("quantize_mxfp8_tile")?,
            dequantize: file.by_input("dequantize_mxfp8")?,
        })
    }

    pub(super) fn mxfp4(modules: &Modules) -> Result<Self> {
        let file = modules.file("cast/mxfp4")?;
        Ok(Self {
            quantize: file.by_input("quantize_mxfp4")?,
            tile: file.by_input("quantize_mxfp4_tile")?,
            dequantize: file.by_input("dequantize_mxfp4")?,
        })
    }
}

/// Mirror of `MxRule` in `kernels/cast/mx.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MxRule {
    rounding: u32,
    format: u32,
    inverse_max: f32,
    largest: i32,
    half_step: u32,
}

impl MxRule {
    pub(super) fn new(rounding: MxScaleRule, format: CodeFormat) -> Self {
        Self {
            rounding: match rounding {
                MxScaleRule::Up => 0,
                MxScaleRule::Floor => 1,
                MxScaleRule::Ceil => 2,
                MxScaleRule::Even => 3,
                MxScaleRule::Rceil => 4,
            },
            format: format_code(format),
            inverse_max: 1.0 / format.max(),
            largest: format.emax(),
            half_step: 1 << (22 - format.mantissa_bits()),
        }
    }
}

/// Mirror of `MxOut` in `kernels/cast/mx.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MxOut {
    codes: u64,
    block_scales: u64,
    codes_t: u64,
    block_scales_t: u64,
}

/// Blocks of eight warps, each warp four rows by so many columns, rows padded to 128.
pub(super) fn warp_grid(rows: usize, cols: usize, of_warp: usize) -> (usize, usize) {
    let units = rows.next_multiple_of(128) / 4 * cols.div_ceil(of_warp).max(1);
    (units.div_ceil(8).max(1), 1)
}

/// Columns of a warp that quantizes rows: to MXFP4 of aligned 16-bit elements twice as many (`quantize_rows16` in `kernels/cast/mx.cuh`).
fn columns_of_warp(scheme: Scheme, x: &Input<'_>) -> usize {
    let narrow = matches!(x.dtype, DType::Bf16 | DType::F16) && x.aligned();
    if scheme == Scheme::Mxfp4 && narrow { 256 } else { 128 }
}

impl Kernels {
    /// Quantizes X, and its transpose where wanted, as MXFP8 or MXFP4.
    pub(crate) fn quantize_mx(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        (scheme, rounding): (Scheme, MxScaleRule),
        out: Option<&Output<'_>>,
        transposed: Option<&Output<'_>>,
    ) -> Result<()> {
        x.check()?;
        out.map_or(Ok(()), |o| check_output(o, scheme, x.rows, x.cols))?;
        transposed.map_or(Ok(()), |o| check_output(o, scheme, x.cols, x.rows))?;
        let rule = MxRule::new(rounding, scheme.spec().format);
        let kernels = if scheme == Scheme::Mxfp4 { self.mxfp4(stream)? } else { self.mxfp8(stream)? };
        if let (Some(out), None) = (out, transposed) {
            return enqueue_cast!(
                stream,
                kernels.quantize,
                x,
                Blocks::new(warp_grid(x.rows, x.cols, columns_of_warp(scheme, x)), THREADS),
                rule,
                out.codes.address,
                out.block_scales.address,
            );
        }
        check_transposable(x)?;
        let place = |o: Option<&Output<'_>>| [address(o.map(|o| o.codes)), address(o.map(|o| o.block_scales))];
        let ([codes, block_scales], [codes_t, block_scales_t]) = (place(out), place(transposed));
        enqueue_cast!(
            stream,
            kernels.tile,
            x,
            Blocks::new((x.rows.div_ceil(128) * x.cols.div_ceil(128), 1), THREADS),
            rule,
            MxOut { codes, block_scales, codes_t, block_scales_t },
        )
    }
}
