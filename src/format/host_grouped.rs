//! [`HostGroupedTensor`]: a quantized grouped tensor in host memory.

use std::fmt;

use super::grouped::{GroupedLayout, GroupedScheme};
use super::host::HostQuantMatrix;
use super::pair;
use super::scheme::Scheme;
use crate::error::{Error, Result};

/// Codes, scales, where members lie and how both are read, byte for byte what a device holds.
///
/// Codes are `layout.buffer_len()` bytes, in the order that [`GroupedScheme`] says; gaps are zero. Scales are FP32 decode factors, one for
/// each member or one for all.
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
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The codes of a member, in the order that the scheme says.
    ///
    /// # Panics
    /// If there is no member `t`.
    pub fn member_codes(&self, t: usize) -> &[u8] {
        &self.codes[self.layout.members()[t].range()]
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
    /// What quantizing the other way gives, since a member has one scale. On one core; allocates the result.
    pub fn transpose(&self) -> Self {
        let mut codes = vec![0; self.codes.len()];
        // Those without elements may have more rows than there is time for.
        let members = self.layout.members().iter().enumerate().filter(|(_, member)| member.elements() > 0);
        for (t, member) in members {
            let (from, to) = (self.member_codes(t), &mut codes[member.range()]);
            let [rows, cols] = match self.scheme.is_transposed() {
                true => [member.cols(), member.rows()],
                false => [member.rows(), member.cols()],
            };
            for i in 0..rows {
                for j in 0..cols {
                    to[j * rows + i] = from[i * cols + j];
                }
            }
        }
        let scheme = if self.scheme.is_transposed() { self.scheme.by_rows() } else { self.scheme.transposed() };
        Self { scheme, layout: self.layout.clone(), codes, scales: self.scales.clone() }
    }

    /// The same members elsewhere: with other offsets and gaps. Allocates the result.
    ///
    /// # Errors
    /// [`Error::Shape`] if shapes differ.
    pub fn in_layout(&self, layout: GroupedLayout) -> Result<Self> {
        self.layout.check_shapes("the new layout", &layout)?;
        let mut codes = vec![0; layout.buffer_len()];
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

impl fmt::Debug for HostGroupedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (members, len) = (self.layout.members().len(), self.layout.buffer_len());
        write!(f, "HostGroupedTensor({members} members in {len} elements, {})", self.scheme)
    }
}
