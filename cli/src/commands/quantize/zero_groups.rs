//! Groups of elements with a scale of their own of which nothing is left: all that comes back is zero, and not all was.

use ndarray::{ArrayView2, Axis, s};
use scaled_gemm::checkpoint::PlainRows;
use scaled_gemm::{BlockScaleFormat, CodeFormat, Extent, HostCastMatrix, HostQuantMatrix};

use crate::coded::Coded;

/// Columns of a block of MX.
pub const MX_BLOCK: usize = 32;

/// How many groups became zeros, and of how many.
#[derive(Debug, Clone, Copy, Default)]
pub struct ZeroGroups {
    pub zeros: usize,
    pub all: usize,
    /// Of those that became zeros, what [`least_block`] finds; 0 where values of others may be in the same blocks.
    pub least: Option<f32>,
    /// Of those that became zeros, the smallest of their largest values.
    pub smallest: Option<f32>,
    /// Likewise, of that which is nearest to the largest value of its first line, the largest values of both.
    pub nearest: Option<[f32; 2]>,
}

/// The smallest of the largest values in each block of MX, but for those of zeros: what keeps it keeps something of every block.
pub fn least_block(values: ArrayView2<'_, f32>) -> Option<f32> {
    let mut least: Option<f32> = None;
    for row in values.rows() {
        for block in row.axis_chunks_iter(Axis(0), MX_BLOCK) {
            least = smaller(least, largest(block));
        }
    }
    least
}

/// The largest magnitude of finite values; nothing of zeros.
fn largest<'a>(values: impl IntoIterator<Item = &'a f32>) -> Option<f32> {
    let finite = values.into_iter().filter(|value| value.is_finite());
    Some(finite.fold(0.0f32, |most, value| most.max(value.abs()))).filter(|most| *most > 0.0)
}

/// The smaller one of those that are there.
pub fn smaller(a: Option<f32>, b: Option<f32>) -> Option<f32> {
    [a, b].into_iter().flatten().reduce(f32::min)
}

/// That in which the first is the greater part of the second.
fn nearer(a: Option<[f32; 2]>, b: Option<[f32; 2]>) -> Option<[f32; 2]> {
    let part = |[group, line]: [f32; 2]| f64::from(group) / f64::from(line);
    [a, b].into_iter().flatten().reduce(|a, b| if part(a) >= part(b) { a } else { b })
}

impl ZeroGroups {
    /// Of rows that are whole groups, and what was made of them. Where all of the matrix is one group it is told of as a whole: there is
    /// none here.
    pub fn of(x: &PlainRows, part: &Coded) -> Self {
        match part {
            Coded::Quantized(q) => Self::of_quantized(x, q),
            Coded::Cast(q) => Self::of_cast(x, q),
        }
    }

    /// With those of rows that come after.
    pub fn with(self, later: Self) -> Self {
        Self {
            zeros: self.zeros + later.zeros,
            all: self.all + later.all,
            least: smaller(self.least, later.least),
            smallest: smaller(self.smallest, later.smallest),
            nearest: nearer(self.nearest, later.nearest),
        }
    }

    fn of_quantized(x: &PlainRows, q: &HostQuantMatrix) -> Self {
        let spec = q.scheme().spec();
        let [height, width] = [spec.group_rows.size(q.rows()), spec.group_cols.size(q.cols())];
        let grid = Grid { lines: q.rows(), length: q.cols(), format: spec.format, is_transposed: false };
        match spec.block {
            Some(block) => {
                let is_zero = |row, group| {
                    let byte = q.block_scale_at(row, group);
                    // UE8M0 has no zero.
                    (byte == 0 && block.format != BlockScaleFormat::Ue8m0)
                        || (!q.scales().is_empty()
                            && q.scale_at(row / height.max(1), group * block.cols / width) == 0.0)
                };
                grid.count(x, q.logical_codes(), [1, block.cols], is_zero)
            }
            None if spec.group_rows == Extent::All => Self::default(),
            None => grid.count(x, q.logical_codes(), [height, width], |band, group| q.scale_at(band, group) == 0.0),
        }
    }

    fn of_cast(x: &PlainRows, q: &HostCastMatrix) -> Self {
        let (scheme, [rows, cols]) = (q.scheme(), [q.rows(), q.cols()]);
        let [height, width] = scheme.group().extents();
        let [height, width] = [height.size(rows), width.size(cols)];
        let across = scheme.group().grid(rows, cols)[1];
        let scales = q.scales();
        // Codes of a column are beside one another.
        match scheme.is_transposed() {
            false => {
                let grid = Grid { lines: rows, length: cols, format: scheme.format(), is_transposed: false };
                grid.count(x, q.codes(), [height, width], |band, group| scales[band * across + group] == 0.0)
            }
            true => {
                let grid = Grid { lines: cols, length: rows, format: scheme.format(), is_transposed: true };
                grid.count(x, q.codes(), [width, height], |band, group| scales[group * across + band] == 0.0)
            }
        }
    }
}

/// Codes in lines: rows, or columns where they are transposed.
struct Grid {
    lines: usize,
    length: usize,
    format: CodeFormat,
    is_transposed: bool,
}

impl Grid {
    /// Counts groups of so many lines and elements of each. `is_zero_scale` is asked by place of a group.
    fn count(
        &self,
        x: &PlainRows,
        codes: &[u8],
        [height, width]: [usize; 2],
        is_zero_scale: impl Fn(usize, usize) -> bool,
    ) -> ZeroGroups {
        if self.lines == 0 || self.length == 0 {
            return ZeroGroups::default();
        }
        let (bits, mask) = (self.format.bits(), if self.format == CodeFormat::E2M1 { 0x77 } else { 0x7F });
        let groups = self.length.div_ceil(width);
        let mut found = ZeroGroups { all: self.lines.div_ceil(height) * groups, ..ZeroGroups::default() };
        let mut candidates = Vec::new();
        for (band, codes) in codes.chunks(height * self.length * bits / 8).enumerate() {
            for group in 0..groups {
                // Most groups have their largest code among the first few.
                let is_zero = |line: &[u8]| {
                    let (from, to) = (group * width * bits / 8, ((group + 1) * width * bits).div_ceil(8));
                    // A group of one column has half of each byte.
                    let mask = if width * bits < 8 { mask & (0xF << (group % 2 * 4)) } else { mask };
                    line[from..to.min(line.len())].iter().all(|byte| byte & mask == 0)
                };
                if codes.chunks(self.length * bits / 8).all(is_zero) || is_zero_scale(band, group) {
                    candidates.push((band, group));
                }
            }
        }
        if candidates.is_empty() || x.amax() == 0.0 {
            return found;
        }
        let x = x.to_f32();
        let x = if self.is_transposed { x.reversed_axes() } else { x };
        let has_blocks = !self.is_transposed && (width.is_multiple_of(MX_BLOCK) || width >= self.length);
        for (band, group) in candidates {
            let [lines, columns] = [band * height, group * width];
            let (last, end) = ((lines + height).min(self.lines), (columns + width).min(self.length));
            let values = x.slice(s![lines..last, columns..end]);
            if values.iter().any(|value| *value != 0.0) {
                found.zeros += 1;
                let least = if has_blocks { least_block(values) } else { None };
                found.least = smaller(found.least, Some(least.unwrap_or(0.0)));
                let of_group = largest(values);
                found.smallest = smaller(found.smallest, of_group);
                let of_both = of_group.zip(largest(x.row(lines)));
                found.nearest = nearer(found.nearest, of_both.map(|(group, line)| [group, line]));
            }
        }
        found
    }
}
