//! Launches of what a linear layer that trains needs beside casts and products: `kernels/linear/*.cu`.

use super::Kernels;
use super::launch::{Blocks, ByInput, GRID_Y, Kernel, THREADS, enqueue, enqueue_cast};
use super::module::Modules;
use super::operand::{Input, check_aligned, check_bytes, check_floats};
use crate::error::Result;
use crate::format::{AmaxHistory, DelayedScaling, Fp8Format};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// Columns of a block of `bias_strips` and `bias_to_bf16`, as `kernels/linear/bias_gradient.cu` has them.
const BIAS_COLUMNS: usize = 256;

/// Rows of each of their sums, and of the tiles of `gradient.cu`.
const STRIP_ROWS: usize = 128;

/// The kernels of the family.
pub(super) struct LinearKernels {
    /// One scale, one a row, 1x128.
    pub(super) quantize_gradient: [ByInput; 3],
    bias_strips: ByInput,
    bias_to_bf16: ByInput,
    bias_gradient: Kernel,
    add_bias_gradient: Kernel,
    delayed_update: Kernel,
    to_bf16: ByInput,
}

impl LinearKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let (gradient, bias) = (modules.file("linear/gradient")?, modules.file("linear/bias_gradient")?);
        Ok(Self {
            quantize_gradient: [
                gradient.by_input("quantize_gradient_tensor")?,
                gradient.by_input("quantize_gradient_row")?,
                gradient.by_input("quantize_gradient_1x128")?,
            ],
            bias_strips: bias.by_input("bias_strips")?,
            bias_to_bf16: bias.by_input("bias_to_bf16")?,
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

/// Bytes of the column sums of a matrix, FP64, one for each column of each 128 rows.
pub(crate) fn column_sum_bytes(rows: usize, cols: usize) -> usize {
    rows.div_ceil(STRIP_ROWS) * cols * 8
}

/// That so many sums have room.
pub(super) fn check_column_sums(sums: &Span<'_>, rows: usize, cols: usize) -> Result<()> {
    check_bytes("column sums", sums, column_sum_bytes(rows, cols))?;
    check_aligned("column sums", sums, 8)
}

/// That X can be written to `y`, rounded to BF16.
fn check_rounded(x: &Input<'_>, y: &Span<'_>) -> Result<()> {
    x.check()?;
    check_bytes("BF16 matrix", y, x.rows * x.cols * 2)?;
    check_aligned("BF16 matrix", y, 16)
}

/// The most rows whose columns are summed where no cast does that: strips are along y of the grid.
pub(crate) const MOST_SUMMED_ROWS: usize = 65535 * STRIP_ROWS;

/// The blocks of column sums.
fn strips(x: &Input<'_>) -> Blocks {
    Blocks::new((x.cols.div_ceil(BIAS_COLUMNS), x.rows.div_ceil(STRIP_ROWS)), THREADS)
}

impl Kernels {
    /// The column sums of each 128 rows of X, in f64, for [`Kernels::bias_gradient`]: where no cast of X gives them.
    pub(crate) fn column_sums(&self, stream: &Queue, x: &Input<'_>, sums: &Span<'_>) -> Result<()> {
        x.check()?;
        check_column_sums(sums, x.rows, x.cols)?;
        if x.rows == 0 {
            return Ok(());
        }
        enqueue_cast!(stream, self.linear(stream)?.bias_strips, x, strips(x), sums.address)
    }

    /// Both [`Kernels::to_bf16`] and [`Kernels::column_sums`], X read once.
    pub(crate) fn to_bf16_summing(&self, stream: &Queue, x: &Input<'_>, y: &Span<'_>, sums: &Span<'_>) -> Result<()> {
        check_rounded(x, y)?;
        check_column_sums(sums, x.rows, x.cols)?;
        if x.rows == 0 || x.cols == 0 {
            return Ok(());
        }
        enqueue_cast!(stream, self.linear(stream)?.bias_to_bf16, x, strips(x), sums.address, y.address)
    }

    /// `out[j] = sum over the rows` of a matrix whose column sums are these, FP32: in the order of the rows, rounded once.
    pub(crate) fn bias_gradient(
        &self,
        stream: &Queue,
        sums: &Span<'_>,
        (rows, cols): (usize, usize),
        out: &Span<'_>,
    ) -> Result<()> {
        check_column_sums(sums, rows, cols)?;
        check_floats("gradient of the bias", out, cols)?;
        enqueue!(
            stream,
            self.linear(stream)?.bias_gradient,
            Blocks::new((cols.div_ceil(THREADS as usize).max(1), 1), THREADS),
            sums.address,
            rows.div_ceil(STRIP_ROWS) as u32,
            cols as u32,
            out.address,
        )
    }

    /// Whether gradients of a bias can be added there: before other work.
    pub(crate) fn check_bias_sum(&self, to: &Span<'_>, count: usize) -> Result<()> {
        check_floats("sum of gradients of the bias", to, count)
    }

    /// `to[i] += from[i]` of `count` FP32 numbers.
    pub(crate) fn add_bias_gradient(&self, stream: &Queue, from: &Span<'_>, to: &Span<'_>, count: usize) -> Result<()> {
        check_floats("gradient of the bias", from, count)?;
        self.check_bias_sum(to, count)?;
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
        check_rounded(x, y)?;
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
    fn each_128_rows_have_a_sum_of_each_column() {
        assert_eq!([0, 1, 128, 129].map(|rows| column_sum_bytes(rows, 48)), [0, 384, 384, 768]);
        let room = |bytes| check_column_sums(&Span::unguarded(4096, bytes), 129, 48);
        assert!(room(768).is_ok() && room(767).is_err());
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
