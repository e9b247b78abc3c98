//! Launches of what a linear layer that trains needs beside casts and products: `kernels/linear/*.cu`.

use super::Kernels;
use super::launch::{Blocks, ByInput, GRID_Y, Kernel, THREADS, enqueue, enqueue_cast};
use super::module::Modules;
use super::operand::{Input, check_aligned, check_bytes, check_floats};
use crate::error::Result;
use crate::format::{AmaxHistory, DelayedScaling, Fp8Format};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// Columns of a block of `bias_strips`, as `kernels/linear/bias_gradient.cu` has them.
const BIAS_COLUMNS: usize = 256;

/// Rows of a strip at the least, and strips at the most.
const STRIP_ROWS: usize = 128;
const STRIPS: usize = 64;

/// The kernels of the family.
pub(super) struct LinearKernels {
    bias_strips: ByInput,
    bias_gradient: Kernel,
    add_bias_gradient: Kernel,
    delayed_update: Kernel,
    to_bf16: ByInput,
}

impl LinearKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let bias = modules.file("linear/bias_gradient")?;
        Ok(Self {
            bias_strips: bias.by_input("bias_strips")?,
            bias_gradient: bias.kernel("bias_gradient")?,
            add_bias_gradient: bias.kernel("add_bias_gradient")?,
            delayed_update: modules.file("linear/delayed_update")?.kernel("delayed_update")?,
            to_bf16: modules.file("linear/to_bf16")?.by_input("to_bf16")?,
        })
    }
}

/// How the factors of X, W and dY follow from past amax. Mirror of `DelayedRule` in `kernels/linear/delayed_update.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DelayedRule {
    range: [f32; 3],
    window: u32,
    most_recent: u32,
}

impl DelayedRule {
    pub(crate) fn new(rule: DelayedScaling, formats: [Fp8Format; 3]) -> Self {
        Self {
            range: formats.map(|format| format.max() * 2f32.powi(-rule.margin())),
            window: rule.window() as u32,
            most_recent: u32::from(rule.rule() == AmaxHistory::MostRecent),
        }
    }

    /// Numbers in the history of all three.
    fn len(&self) -> usize {
        3 * self.window as usize
    }
}

/// Rows of a strip of the column sum, and how many strips there are: as much as the scratch memory holds, whatever the GPU.
fn strips(rows: usize, cols: usize, scratch_bytes: usize) -> (usize, usize) {
    let room = (scratch_bytes / (8 * cols.max(1))).clamp(1, STRIPS);
    let strip_rows = rows.div_ceil(room).max(STRIP_ROWS);
    (strip_rows, rows.div_ceil(strip_rows))
}

impl Kernels {
    /// `out[j] = sum over i of x[i, j]`, FP32: sums in f64, in an order that the shape decides alone, rounded once.
    pub(crate) fn bias_gradient(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        scratch: &Span<'_>,
        out: &Span<'_>,
    ) -> Result<()> {
        x.check()?;
        check_floats("gradient of the bias", out, x.cols)?;
        if x.rows == 0 {
            return self.zero(stream, out, x.cols * 4);
        }
        let (strip_rows, strips) = strips(x.rows, x.cols, scratch.bytes);
        check_bytes("sums of strips", scratch, strips * x.cols * 8)?;
        check_aligned("sums of strips", scratch, 8)?;
        let family = self.linear(stream)?;
        enqueue_cast!(
            stream,
            family.bias_strips,
            x,
            Blocks::new((x.cols.div_ceil(BIAS_COLUMNS), strips), THREADS),
            strip_rows as u32,
            scratch.address,
        )?;
        enqueue!(
            stream,
            family.bias_gradient,
            Blocks::new((x.cols.div_ceil(THREADS as usize), 1), THREADS),
            scratch.address,
            strips as u32,
            x.cols as u32,
            out.address,
        )
    }

    /// `to[i] += from[i]` of `count` FP32 numbers.
    pub(crate) fn add_bias_gradient(&self, stream: &Queue, from: &Span<'_>, to: &Span<'_>, count: usize) -> Result<()> {
        check_floats("gradient of the bias", from, count)?;
        check_floats("sum of gradients of the bias", to, count)?;
        enqueue!(
            stream,
            self.linear(stream)?.add_bias_gradient,
            Blocks::new((count.div_ceil(THREADS as usize).max(1), 1), THREADS),
            from.address,
            count as u32,
            to.address,
        )
    }

    /// The factors of the next step, of X, W and dY: histories one after the other, the step that ends in front of each.
    pub(crate) fn delayed_update(
        &self,
        stream: &Queue,
        rule: DelayedRule,
        history: &Span<'_>,
        encode: &Span<'_>,
    ) -> Result<()> {
        check_floats("amax history", history, rule.len())?;
        check_floats("encode factors", encode, 3)?;
        let blocks = Blocks::new((3, 1), 1024);
        enqueue!(stream, self.linear(stream)?.delayed_update, blocks, rule, history.address, encode.address)
    }

    /// X rounded to BF16, packed.
    pub(crate) fn to_bf16(&self, stream: &Queue, x: &Input<'_>, y: &Span<'_>) -> Result<()> {
        x.check()?;
        check_bytes("BF16 matrix", y, x.rows * x.cols * 2)?;
        check_aligned("BF16 matrix", y, 16)?;
        if x.rows == 0 || x.cols == 0 {
            return Ok(());
        }
        let grid = (x.cols.div_ceil(8 * THREADS as usize), x.rows.min(GRID_Y));
        enqueue_cast!(stream, self.linear(stream)?.to_bf16, x, Blocks::new(grid, THREADS), y.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_fit_their_scratch_and_cover_all_rows() {
        for rows in [1, 127, 128, 129, 8192, 100_000] {
            for cols in [16, 14336, 1 << 20] {
                for bytes in [8 << 20, 32 << 20] {
                    let (strip_rows, count) = strips(rows, cols, bytes);
                    assert!(strip_rows * count >= rows && strip_rows * (count - 1) < rows, "{rows} {cols}");
                    assert!(count * cols * 8 <= bytes && count <= STRIPS, "{rows} {cols} {bytes}");
                }
            }
        }
        assert_eq!(strips(8192, 14336, 32 << 20), (128, 64));
    }

    #[test]
    fn the_rule_has_the_size_and_the_numbers_of_what_it_mirrors() {
        assert_eq!(size_of::<DelayedRule>(), 20);
        let rule = DelayedScaling::new(16, 1, AmaxHistory::MostRecent).unwrap();
        let rule = DelayedRule::new(rule, [Fp8Format::E4M3, Fp8Format::E4M3, Fp8Format::E5M2]);
        assert_eq!(rule, DelayedRule { range: [224.0, 224.0, 28672.0], window: 16, most_recent: 1 });
        assert_eq!(rule.len(), 48);
    }
}
