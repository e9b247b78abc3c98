//! Grouped tensors: matrices of any shapes in one buffer, its *members*, each quantized to FP8 with a scale of its own or one that all
//! share. Where members lie, how their codes are read, and how their scales are chosen.
//!
//! Nothing here is the operand of a product: any number of columns is a matrix. TransformerEngine's term; a *group* of this crate is
//! what shares a scale.

use std::fmt;
use std::ops::Range;

use super::dtype::DType;
use super::fp8::{Fp8Recipe, Fp8Rule, Fp8Scales};
use super::given::GroupScale;
use super::scheme::{Fp8Format, Fp8Granularity};
use crate::error::{Error, Result};

/// Elements of the longest buffer: lengths in bytes are computed without a check from here on.
const MOST: usize = isize::MAX as usize / 8;

/// A matrix of a grouped tensor: row-major, without padding between its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupedMember {
    rows: usize,
    cols: usize,
    offset: usize,
}

impl GroupedMember {
    /// Rows.
    pub const fn rows(self) -> usize {
        self.rows
    }

    /// Columns.
    pub const fn cols(self) -> usize {
        self.cols
    }

    /// Where it begins, in elements from the start of the buffer.
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// `rows * cols`.
    pub const fn elements(self) -> usize {
        self.rows * self.cols
    }

    /// Its elements in the buffer.
    pub const fn range(self) -> Range<usize> {
        self.offset..self.offset + self.elements()
    }
}

/// Where the members of a grouped tensor lie in their buffer, in elements.
///
/// Members follow one another; what lies between them or behind the last is a *gap*: never read, unspecified on a device, and zero in host
/// memory. Any number of members, of any shapes; those without elements have a place and a scale all the same.
///
/// The experts of a layer are members, of one shape as weights, and of as many rows as each has tokens as activations.
#[doc(alias = "first_dims")]
#[doc(alias = "last_dims")]
#[doc(alias = "tensor_offsets")]
#[doc(alias = "moe")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GroupedLayout {
    members: Vec<GroupedMember>,
    buffer_len: usize,
}

impl GroupedLayout {
    /// Members of these shapes, `[rows, cols]`, without gaps. Allocates.
    ///
    /// # Errors
    /// [`Error::Shape`] if the buffer would have more than `isize::MAX / 8` elements.
    pub fn packed(shapes: &[[usize; 2]]) -> Result<Self> {
        Self::aligned(shapes, 1)
    }

    /// Members that begin at multiples of `alignment` elements; the buffer ends at one too. Allocates.
    ///
    /// # Errors
    /// [`Error::Shape`] if the alignment is 0, or the buffer would have more than `isize::MAX / 8` elements.
    pub fn aligned(shapes: &[[usize; 2]], alignment: usize) -> Result<Self> {
        if alignment == 0 {
            return Err(Error::shape(
                "alignment of a grouped tensor",
                "0",
                "must be at least 1 element",
                "pass 1 for members without gaps",
            ));
        }
        let (mut members, mut end) = (Vec::with_capacity(shapes.len()), 0usize);
        for (t, shape) in shapes.iter().enumerate() {
            let after = elements(*shape).and_then(|n| end.checked_add(n)?.checked_next_multiple_of(alignment));
            let after = after.filter(|after| *after <= MOST).ok_or_else(|| too_long(t, *shape, end))?;
            members.push(GroupedMember { rows: shape[0], cols: shape[1], offset: end });
            end = after;
        }
        Ok(Self { members, buffer_len: end })
    }

    /// Members of these shapes at offsets as TransformerEngine has them, one more than there are members: the last is the length of the
    /// buffer. Allocates.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is not one offset more than shapes, if offsets decrease, and as [`new`](Self::new).
    #[doc(alias = "tensor_offsets")]
    pub fn from_offsets(shapes: &[[usize; 2]], offsets: &[usize]) -> Result<Self> {
        match offsets.split_last() {
            Some((end, starts)) if starts.len() == shapes.len() => {
                // The last offset would be said to be a buffer that is too short, though none was passed.
                if let Some(t) = offsets.windows(2).position(|pair| pair[1] < pair[0]) {
                    return Err(Error::shape(
                        format!("offset {} of a grouped tensor", t + 1),
                        offsets[t + 1].to_string(),
                        format!(
                            "must not lie below offset {t}, {}: offsets never decrease, and the last is the length of the buffer",
                            offsets[t]
                        ),
                        "list members in the order of their offsets, and last the elements of the buffer, gaps included, not its bytes",
                    ));
                }
                Self::new(shapes, starts, *end)
            }
            _ => Err(Error::shape(
                "offsets of a grouped tensor",
                offsets.len().to_string(),
                format!("must be {}, one for each shape and the length of the buffer", shapes.len() + 1),
                "with where members begin alone, call GroupedLayout::new",
            )),
        }
    }

    /// Members of these shapes that begin at these offsets, in a buffer of `buffer_len` elements. Allocates.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is not one offset for each shape, if offsets decrease, or a member reaches into the next or past the
    /// end; if the buffer has more than `isize::MAX / 8` elements.
    pub fn new(shapes: &[[usize; 2]], offsets: &[usize], buffer_len: usize) -> Result<Self> {
        if offsets.len() != shapes.len() {
            return Err(Error::shape(
                "offsets of a grouped tensor",
                offsets.len().to_string(),
                format!("must be {}, one for each shape", shapes.len()),
                "pass where each member begins; the end of the last is no offset, but the length of the buffer: with both in one array, call \
                 GroupedLayout::from_offsets",
            ));
        }
        if buffer_len > MOST {
            return Err(Error::shape(
                "buffer of a grouped tensor",
                format!("{buffer_len} elements"),
                format!("must be at most {MOST}"),
                "split it",
            ));
        }
        let mut members: Vec<GroupedMember> = Vec::with_capacity(shapes.len());
        for (t, (shape, offset)) in shapes.iter().zip(offsets).enumerate() {
            let operand = || format!("member {t} of a grouped tensor, {} x {}", shape[0], shape[1]);
            let (start, end) = members.last().map_or((0, 0), |last| (last.offset, last.range().end));
            if *offset < start {
                return Err(Error::shape(
                    operand(),
                    format!("at offset {offset}"),
                    format!("must not begin before member {}, at {start}: offsets do not decrease", t - 1),
                    "list members in the order of their offsets",
                ));
            }
            if *offset < end {
                return Err(Error::shape(
                    operand(),
                    format!("at offset {offset}"),
                    format!("must not begin before member {} ends, at {end}", t - 1),
                    "move it behind that; offsets count elements, not bytes",
                ));
            }
            let past = elements(*shape).and_then(|n| n.checked_add(*offset)).is_none_or(|end| end > buffer_len);
            if past {
                return Err(Error::shape(
                    operand(),
                    format!("at offset {offset}"),
                    format!("must end within the {buffer_len} elements of the buffer"),
                    "pass the whole buffer; offsets count elements, not bytes",
                ));
            }
            members.push(GroupedMember { rows: shape[0], cols: shape[1], offset: *offset });
        }
        Ok(Self { members, buffer_len })
    }

    /// The members, in order.
    pub fn members(&self) -> &[GroupedMember] {
        &self.members
    }

    /// Elements of the buffer, gaps included.
    pub const fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    /// Elements of all members, without gaps.
    pub fn elements(&self) -> usize {
        self.members.iter().map(|member| member.elements()).sum()
    }

    /// Refuses another layout whose members have not the same shapes; their offsets and gaps may differ.
    ///
    /// # Errors
    /// [`Error::Shape`], which names `operand`, the first member that differs, and both shapes.
    pub fn check_shapes(&self, operand: &str, other: &Self) -> Result<()> {
        if other.members.len() != self.members.len() {
            return Err(Error::shape(
                format!("members of {operand}"),
                other.members.len().to_string(),
                format!("must be {}", self.members.len()),
                "pass tensors of the same shapes, those without elements too",
            ));
        }
        let mut pairs = self.members.iter().zip(&other.members).enumerate();
        match pairs.find(|(_, (a, b))| (a.rows, a.cols) != (b.rows, b.cols)) {
            None => Ok(()),
            Some((t, (want, found))) => Err(Error::shape(
                format!("{operand}, member {t}"),
                format!("{} x {}", found.rows, found.cols),
                format!("must be {} x {}", want.rows, want.cols),
                "pass tensors of the same shapes; offsets and gaps may differ",
            )),
        }
    }
}

fn elements([rows, cols]: [usize; 2]) -> Option<usize> {
    rows.checked_mul(cols)
}

fn too_long(t: usize, [rows, cols]: [usize; 2], offset: usize) -> Error {
    Error::shape(
        format!("member {t} of a grouped tensor, {rows} x {cols}"),
        format!("at offset {offset}"),
        format!("must end within {MOST} elements"),
        "split the tensor",
    )
}

/// Which members of a grouped tensor share a scale, and an amax.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum GroupedScales {
    /// None: each has its own, those without elements too.
    #[default]
    PerMember,
    /// All: there is one, also of a tensor without members.
    Shared,
}

named!(GroupedScales, "kind of scales of a grouped tensor", PerMember => "per-member", Shared => "shared");

impl GroupedScales {
    /// Scales, and amax, of a tensor with this many members.
    pub const fn count(self, members: usize) -> usize {
        match self {
            Self::PerMember => members,
            Self::Shared => 1,
        }
    }

    /// Which of them is that of member `t`.
    pub const fn index(self, t: usize) -> usize {
        match self {
            Self::PerMember => t,
            Self::Shared => 0,
        }
    }

    /// Refuses an array with another number of elements than there are scales.
    ///
    /// # Errors
    /// [`Error::Shape`], which names `operand`.
    pub fn check_count(self, operand: &str, members: usize, found: usize) -> Result<()> {
        if found == self.count(members) {
            return Ok(());
        }
        Err(Error::shape(
            operand,
            found.to_string(),
            match self {
                Self::PerMember => format!("must be {members}, one for each member, those without elements too"),
                Self::Shared => "must be 1: all members share it".to_string(),
            },
            match self {
                Self::PerMember => "pass the whole array, or share one scale (GroupedScheme::shared)",
                Self::Shared => "pass one number, or take a scale for each member (GroupedScheme::new)",
            },
        ))
    }
}

/// How the codes of a grouped tensor are read: `value = code * scale` of the member.
///
/// Code (i, j) of a member is the byte at `offset + i * cols + j`, transposed at `offset + j * rows + i`: by columns, as
/// TransformerEngine says. Offsets are the same both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupedScheme {
    format: Fp8Format,
    scales: GroupedScales,
    transposed: bool,
}

impl GroupedScheme {
    /// Codes of this format by rows, a scale for each member.
    pub const fn new(format: Fp8Format) -> Self {
        Self { format, scales: GroupedScales::PerMember, transposed: false }
    }

    /// Every scheme there is.
    pub fn all() -> impl Iterator<Item = Self> {
        let own = Fp8Format::ALL.into_iter().map(Self::new);
        let all = own.flat_map(|scheme| [scheme, scheme.shared()]);
        all.flat_map(|scheme| [scheme, scheme.transposed()])
    }

    /// The same with one scale for all members.
    pub const fn shared(self) -> Self {
        Self { scales: GroupedScales::Shared, ..self }
    }

    /// The same with the codes of each member stored transposed, `[cols][rows]`.
    #[doc(alias = "columnwise")]
    pub const fn transposed(self) -> Self {
        Self { transposed: true, ..self }
    }

    /// The same with the codes of each member by rows, `[rows][cols]`.
    #[doc(alias = "rowwise")]
    pub const fn by_rows(self) -> Self {
        Self { transposed: false, ..self }
    }

    /// Format of the codes.
    pub const fn format(self) -> Fp8Format {
        self.format
    }

    /// Which members share a scale.
    pub const fn scales(self) -> GroupedScales {
        self.scales
    }

    /// Whether members are stored transposed.
    pub const fn is_transposed(self) -> bool {
        self.transposed
    }
}

impl fmt::Display for GroupedScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { format, scales, transposed } = self;
        write!(f, "grouped {format}, {scales} scales{}", if *transposed { ", transposed" } else { "" })
    }
}

/// Current scaling of a grouped tensor: scales from the amax of each member, or of all, by a rule of [`Fp8Rule`] for whole tensors.
///
/// The default is TransformerEngine's rule with exact scales: `encode = fl(MAX / amax)`, `scale = fl(1 / encode)`, and 1 for a member
/// whose amax is 0 or infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupedRecipe {
    scheme: GroupedScheme,
    rule: Fp8Rule,
    numbers: Fp8Scales,
}

impl GroupedRecipe {
    /// TransformerEngine's rule with exact scales.
    pub const fn new(scheme: GroupedScheme) -> Self {
        Self { scheme, rule: Fp8Rule::TransformerEngine, numbers: Fp8Scales::Exact }
    }

    /// The same with another rule.
    pub const fn with_rule(self, rule: Fp8Rule) -> Self {
        Self { rule, ..self }
    }

    /// The same with scales that are powers of two.
    pub const fn power_of_two(self) -> Self {
        Self { numbers: Fp8Scales::PowerOfTwo, ..self }
    }

    /// How the result is read.
    pub const fn scheme(self) -> GroupedScheme {
        self.scheme
    }

    /// The recipe of one member: the same rule for a matrix that is a tensor of its own.
    pub const fn member(self) -> Fp8Recipe {
        let Self { scheme, rule, numbers } = self;
        Fp8Recipe { granularity: Fp8Granularity::Tensor, format: scheme.format, rule, scales: numbers }
    }

    /// `encode` and `scale` for this amax. The type of the data does not matter where a scale is that of a whole tensor.
    pub fn group_scale(self, amax: f32) -> GroupScale {
        self.member().group_scale(amax, DType::F32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_members_begin_and_end_at_multiples() {
        let shapes = [[3, 5], [0, 7], [1, 64], [2, 0], [1, 1]];
        for alignment in [1, 2, 16, 63, 64] {
            let layout = GroupedLayout::aligned(&shapes, alignment).unwrap();
            let mut end = 0;
            for (member, shape) in layout.members().iter().zip(shapes) {
                assert_eq!([member.rows(), member.cols()], shape);
                assert!(member.offset() >= end && member.offset() - end < alignment);
                assert_eq!(member.offset() % alignment, 0);
                end = member.range().end;
            }
            assert!(layout.buffer_len() >= end && layout.buffer_len() - end < alignment);
            assert_eq!((layout.buffer_len() % alignment, layout.elements()), (0, 80));
            let offsets: Vec<_> = layout.members().iter().map(|member| member.offset()).collect();
            assert_eq!(GroupedLayout::new(&shapes, &offsets, layout.buffer_len()).unwrap(), layout);
        }
    }

    #[test]
    fn every_scheme_is_there_once() {
        let all: std::collections::HashSet<_> = GroupedScheme::all().collect();
        assert_eq!((all.len(), GroupedScheme::all().count()), (8, 8));
        assert!(GroupedScheme::all().all(|scheme| all.contains(&scheme.by_rows())));
    }
}
