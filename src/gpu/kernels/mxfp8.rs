//! Launches for MXFP8: `kernels/cast/mxfp8.cu`. Its dequantizer is enqueued by [`Kernels::dequantize_blocks`].

use super::Kernels;
use super::launch::{Blocks, ByInput, THREADS, enqueue_cast};
use super::module::Modules;
use super::operand::{Input, Output, address, check_output, check_transposable, format_code};
use crate::error::Result;
use crate::format::{Fp8Format, MxScaleRule, Scheme};
use crate::gpu::device::stream::Queue;

/// The kernels of the family.
pub(super) struct Mxfp8Kernels {
    quantize: ByInput,
    tile: ByInput,
    pub(super) dequantize: ByInput,
}

impl Mxfp8Kernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        Ok(Self {
            quantize: modules.by_input("quantize_mxfp8")?,
            tile: modules.by_input("quantize_mxfp8_tile")?,
            dequantize: modules.by_input("dequantize_mxfp8")?,
        })
    }
}

/// Mirror of `MxRule` in `kernels/cast/mxfp8.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MxRule {
    rounding: u32,
    format: u32,
    inverse_max: f32,
    largest: i32,
    half_step: u32,
}

impl MxRule {
    fn new(rounding: MxScaleRule, format: Fp8Format) -> Self {
        let (largest, mantissa_bits) = match format {
            Fp8Format::E4M3 => (8, 3),
            Fp8Format::E5M2 => (15, 2),
        };
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
            largest,
            half_step: 1 << (22 - mantissa_bits),
        }
    }
}

/// Mirror of `MxOut` in `kernels/cast/mxfp8.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MxOut {
    codes: u64,
    block_scales: u64,
    codes_t: u64,
    block_scales_t: u64,
}

/// Blocks of eight warps, each warp four rows by 128 columns, rows padded to 128: for `quantize_mxfp8`.
fn warp_grid(rows: usize, cols: usize) -> (usize, usize) {
    let units = rows.next_multiple_of(128) / 4 * cols.div_ceil(128).max(1);
    (units.div_ceil(8).max(1), 1)
}

impl Kernels {
    /// Quantizes X, and its transpose where wanted, as MXFP8.
    pub(crate) fn quantize_mxfp8(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        (rounding, format): (MxScaleRule, Fp8Format),
        out: Option<&Output<'_>>,
        transposed: Option<&Output<'_>>,
    ) -> Result<()> {
        x.check()?;
        let scheme = Scheme::Mxfp8(format);
        out.map_or(Ok(()), |o| check_output(o, scheme, x.rows, x.cols))?;
        transposed.map_or(Ok(()), |o| check_output(o, scheme, x.cols, x.rows))?;
        let rule = MxRule::new(rounding, format);
        if let (Some(out), None) = (out, transposed) {
            return enqueue_cast!(
                stream,
                self.mxfp8(stream)?.quantize,
                x,
                Blocks::new(warp_grid(x.rows, x.cols), THREADS),
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
            self.mxfp8(stream)?.tile,
            x,
            Blocks::new((x.rows.div_ceil(128) * x.cols.div_ceil(128), 1), THREADS),
            rule,
            MxOut { codes, block_scales, codes_t, block_scales_t },
        )
    }
}
