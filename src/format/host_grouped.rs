//! [`HostGroupedTensor`]: a quantized grouped tensor in host memory.

use std::fmt;

use rayon::prelude::*;

use super::grouped::{GroupedLayout, GroupedScheme};
use super::host::HostQuantMatrix;
use super::pair;
use super::scheme::Scheme;
use crate::error::{Error, Result};

/// Extents of the tiles that are transposed at once, and elements of the least piece for a core.
const TILE: usize = 64;
const PIECE: usize = TILE * TILE;

/// Codes, scales, where members lie and how both are read. Of members, byte for byte what a device holds.
///
/// Codes are `layout.buffer_len()` bytes, in the order that [`GroupedScheme`] says. Gaps are zero here; on a device they are unspecified.
/// Scales are FP32 decode factors, one for each member or one for all.
#[derive(Clone, PartialEq)]
pub struct HostGroupedTensor {
    scheme: GroupedScheme,
    layout: GroupedLayout,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl HostGroupedTensor {
    /// A tensor from the bytes of a device. Gaps are set to zero whatever they held.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are not `layout.buffer_len()` codes, or not as many scales as [`GroupedScheme::scales`] says.
    pub fn from_parts(
        scheme: GroupedScheme,
        layout: GroupedLayout,
        mut codes: Vec<u8>,
        scales: Vec<f32>,
    ) -> Result<Self> {
        if codes.len() != layout.buffer_len() {
            return Err(Error::shape(
                "codes of a grouped tensor",
                format!("{} bytes", codes.len()),
                format!("must be the {} elements of its layout", layout.buffer_len()),
                "pass the whole buffer, gaps included",
            ));
        }
        scheme.scales().check_count("scales of a grouped tensor", layout.members().len(), scales.len())?;
        let mut end = 0;
        for member in layout.members() {
            codes[end..member.offset()].fill(0);
            end = member.range().end;
        }
        codes[end..].fill(0);
        Ok(Self { scheme, layout, codes, scales })
    }

    /// How it is read.
    pub fn scheme(&self) -> GroupedScheme {
        self.scheme
    }

    /// Where its members lie. Shapes are those of the data, also where members are stored transposed.
    pub fn layout(&self) -> &GroupedLayout {
        &self.layout
    }

    /// The codes, gaps included.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The decode factors: one for each member, or one for all.
    #[doc(alias = "scale_inv")]
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The codes of a member, in the order that the scheme says.
    ///
    /// # Panics
    /// If there is no member `t`.
    pub fn member_codes(&self, t: usize) -> &[u8] {
        let members = self.layout.members();
        assert!(t < members.len(), "member {t} of {}", members.len());
        &self.codes[members[t].range()]
    }

    /// The scale of a member.
    ///
    /// # Panics
    /// If there is no member `t`.
    pub fn member_scale(&self, t: usize) -> f32 {
        assert!(t < self.layout.members().len(), "member {t} of {}", self.layout.members().len());
        self.scales[self.scheme.scales().index(t)]
    }

    /// A member as an operand of products, in `fp8-tensor`: `rows x cols`, or where members are stored transposed the transpose,
    /// `cols x rows`. Allocates.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is no such member, or the columns of the result are not a multiple of 16, as products ask.
    pub fn matrix(&self, t: usize) -> Result<HostQuantMatrix> {
        let members = self.layout.members();
        let member = *members.get(t).ok_or_else(|| {
            Error::shape(
                "member of a grouped tensor",
                t.to_string(),
                format!("must be below {}, as many as there are", members.len()),
                "count members from 0",
            )
        })?;
        let [rows, cols] = match self.scheme.is_transposed() {
            true => [member.cols(), member.rows()],
            false => [member.rows(), member.cols()],
        };
        pair::check_quantize_cols(&format!("member {t} of a grouped tensor, as an operand of {rows} x {cols}"), cols)?;
        let scheme = Scheme::Fp8Tensor(self.scheme.format());
        HostQuantMatrix::from_logical(scheme, rows, cols, self.member_codes(t).to_vec(), &[self.member_scale(t)])
    }

    /// The same values with the codes of each member transposed where they lie: of a tensor by rows that by columns, and back.
    ///
    /// What quantizing the other way gives, since a member has one scale. Runs on all cores, of which each takes
    /// 64 columns or more of a member as it is stored. Allocates the result, and up to 180 bytes for each member and for every 4096 elements.
    #[doc(alias = "columnwise")]
    pub fn transpose(&self) -> Self {
        let mut codes = vec![0; self.codes.len()];
        // Bands of the result: the stored member, its extents, the first column of it that is a row of the band.
        let (mut bands, mut rest, mut end) = (Vec::new(), &mut codes[..], 0);
        // Those without elements may have more rows than there is time for.
        let members = self.layout.members().iter().enumerate().filter(|(_, member)| member.elements() > 0);
        for (t, member) in members {
            let [rows, cols] = match self.scheme.is_transposed() {
                true => [member.cols(), member.rows()],
                false => [member.rows(), member.cols()],
            };
            let (to, behind) = rest.split_at_mut(member.offset() - end).1.split_at_mut(member.elements());
            (rest, end) = (behind, member.range().end);
            let height = TILE.max(PIECE / rows);
            let of_member = to.chunks_mut(height * rows).enumerate();
            bands.extend(of_member.map(|(i, to)| (self.member_codes(t), [rows, cols], i * height, to)));
        }
        // As many elements as another core is worth.
        let least = (1 << 16) * bands.len() / self.layout.elements().max(1);
        let bands = bands.par_iter_mut().with_min_len(least.max(1));
        bands.for_each(|(from, extents, first, to)| transpose_band(from, *extents, *first, to));
        let scheme = if self.scheme.is_transposed() { self.scheme.by_rows() } else { self.scheme.transposed() };
        Self { scheme, layout: self.layout.clone(), codes, scales: self.scales.clone() }
    }

    /// The same members elsewhere: with other offsets and gaps. Allocates the result.
    ///
    /// # Errors
    /// [`Error::Shape`] if shapes differ, or there is no memory for the gaps.
    pub fn in_layout(&self, layout: GroupedLayout) -> Result<Self> {
        self.layout.check_shapes("the new layout", &layout)?;
        let mut codes = Vec::new();
        // Gaps alone may be longer than memory.
        codes.try_reserve_exact(layout.buffer_len()).map_err(|_| {
            Error::shape(
                "codes of the new layout",
                format!("{} bytes", layout.buffer_len()),
                "must fit in memory",
                "leave shorter gaps, or none (GroupedLayout::packed)",
            )
        })?;
        codes.resize(layout.buffer_len(), 0);
        for (t, member) in layout.members().iter().enumerate() {
            codes[member.range()].copy_from_slice(self.member_codes(t));
        }
        Ok(Self { scheme: self.scheme, layout, codes, scales: self.scales.clone() })
    }

    /// Codes and scales. Copies nothing.
    pub fn into_parts(self) -> (Vec<u8>, Vec<f32>) {
        (self.codes, self.scales)
    }
}

/// Columns of a matrix, `first` and those behind it, as rows of `to`. A line of memory is read and written once, whatever the stride.
fn transpose_band(from: &[u8], [rows, cols]: [usize; 2], first: usize, to: &mut [u8]) {
    let mut tile = [0; PIECE];
    for (k, to) in to.chunks_mut(TILE * rows).enumerate() {
        let (first, width) = (first + k * TILE, to.len() / rows);
        for start in (0..rows).step_by(TILE) {
            let height = TILE.min(rows - start);
            for i in 0..height {
                let line = &from[(start + i) * cols + first..][..width];
                tile[i..].iter_mut().step_by(TILE).zip(line).for_each(|(to, from)| *to = *from);
            }
            for (to, line) in to.chunks_exact_mut(rows).zip(tile.chunks_exact(TILE)) {
                to[start..start + height].copy_from_slice(&line[..height]);
            }
        }
    }
}

impl fmt::Debug for HostGroupedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (members, len) = (self.layout.members().len(), self.layout.buffer_len());
        write!(f, "HostGroupedTensor({members} members in {len} elements, {})", self.scheme)
    }
}
