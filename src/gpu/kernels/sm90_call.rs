//! [`Sm90Call`]: one product for Hopper, its operands and what is asked of them.

use super::epilogue::wide_code;
use super::operand::{check_aligned, check_bytes, extent};
use super::sm90_config::{E4M3_PAIR, Kind, Sm90Config};
use super::sm90_groups::{Sm90Along, Sm90Groups};
use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::{CodeFormat, DType, Fp8Format, Fp8Recipe};
use crate::gpu::device::memory::Span;

/// How the scales of both operands lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sm90Scales {
    /// A's [`ScaleLayout::Vec128`], B's [`ScaleLayout::Blk128`].
    Blocks,
    /// Both [`ScaleLayout::Vec128`].
    Vectors,
    /// A's [`ScaleLayout::Blk128`], B's [`ScaleLayout::Vec128`]: of whole products.
    BlocksOfA,
    /// Of A, then of B: one for each row, or one for the matrix.
    Outer { each: [bool; 2] },
}

impl Sm90Scales {
    /// Of these layouts, if the kernels read them.
    pub(crate) fn of(a: ScaleLayout, b: ScaleLayout) -> Option<Self> {
        let outer = |layout| match layout {
            ScaleLayout::Outer => Some(true),
            ScaleLayout::Scalar => Some(false),
            _ => None,
        };
        match (a, b) {
            (ScaleLayout::Vec128, ScaleLayout::Blk128) => Some(Self::Blocks),
            (ScaleLayout::Vec128, ScaleLayout::Vec128) => Some(Self::Vectors),
            (ScaleLayout::Blk128, ScaleLayout::Vec128) => Some(Self::BlocksOfA),
            _ => Some(Self::Outer { each: [outer(a)?, outer(b)?] }),
        }
    }

    /// What the kernels of whole products that store numbers are called by.
    fn of_whole(self) -> Kind {
        match self {
            Self::Blocks => Kind::Block,
            Self::Vectors => Kind::Vector,
            Self::BlocksOfA => Kind::BlockA,
            Self::Outer { .. } => Kind::Outer,
        }
    }

    /// What those of groups that divide this are called by. With blocks of A there are none, which [`Sm90Call::check`] says.
    fn of_groups(self, along: Sm90Along) -> Kind {
        match (self, along) {
            (Self::Blocks, _) => Kind::Grouped,
            (Self::Vectors, Sm90Along::Rows) => Kind::VectorGrouped,
            (Self::Vectors, Sm90Along::K) => Kind::VectorOfK,
            (Self::BlocksOfA, _) => Kind::BlockA,
            (Self::Outer { .. }, Sm90Along::Rows) => Kind::OuterGrouped,
            (Self::Outer { .. }, Sm90Along::K) => Kind::OuterFp32OfK,
        }
    }

    /// Whether there is a kernel of whole products of such codes in this configuration; `plainly`: of those to BF16 where nothing follows the sums.
    pub(crate) fn multiply_in(self, config: Sm90Config, formats: [Fp8Format; 2], plainly: bool) -> bool {
        let kind = self.of_whole();
        let has = |kind| config.tile_of(kind, formats).is_some();
        has(kind) || (plainly && kind == Kind::Block && has(Kind::Plain))
    }

    /// Whether there is one of groups that divide this.
    pub(crate) fn multiply_groups_in(self, along: Sm90Along, config: Sm90Config, formats: [Fp8Format; 2]) -> bool {
        config.tile_of(self.of_groups(along), formats).is_some()
    }

    /// Refuses a configuration without kernels for groups that divide this, of such codes.
    pub(crate) fn check_groups(self, along: Sm90Along, formats: [Fp8Format; 2], config: Sm90Config) -> Result<()> {
        config.check_groups(self.of_groups(along), formats)
    }
}

/// Codes and FP32 scales of an operand, as [`QuantMatrix`](crate::QuantMatrix) has them.
#[derive(Clone, Copy)]
pub(crate) struct Sm90Operand<'a> {
    pub(crate) codes: &'a Span<'a>,
    pub(crate) scales: &'a Span<'a>,
}

/// Where E4M3 codes with 1x128 scales go: the codes in the place of D, [`ScaleLayout::Vec128`] scales here.
#[derive(Clone, Copy)]
pub(crate) struct Sm90Codes<'a> {
    pub(crate) scales: &'a Span<'a>,
    /// 1x128, E4M3.
    pub(crate) recipe: Fp8Recipe,
}

/// What becomes of the sums.
#[derive(Clone, Copy)]
pub(crate) enum Sm90End<'a> {
    /// Numbers of D's type.
    Numbers,
    /// Codes of what would be stored, in FP32.
    Codes(Sm90Codes<'a>),
    /// `silu(alpha A G^T) * (alpha A U^T)` of B = [G; U], n rows each (of each group), in FP32: numbers of D's type, or codes.
    Swiglu(Option<Sm90Codes<'a>>),
}

/// One product: `D = residual + activation(alpha * A B^T + beta * D + bias)`, operation by operation as [`Epilogue`](crate::Epilogue) says, or what `end` says
/// of it; or for groups of rows the same of `A_g`, `B_g` and `bias_g`, for groups of k that of `A_g`, `B_g` and `D_g` without the rest.
pub(crate) struct Sm90Call<'a> {
    pub(crate) config: Sm90Config,
    /// Whose kernels take the place of one that ends plainly, where alpha asks for another end: one that [stands in for it](Sm90Config::stands_in_for). With none the call is refused.
    pub(crate) stand_in: Option<Sm90Config>,
    /// Of the codes of A and B.
    pub(crate) formats: [Fp8Format; 2],
    /// Rows of A and D, those of all groups and between them; of groups of k those of each group's D.
    pub(crate) m: usize,
    /// Columns of D: rows of B, of each group; of SwiGLU half of them.
    pub(crate) n: usize,
    /// That of all groups and between them, where they divide it.
    pub(crate) k: usize,
    /// `[m][k]`.
    pub(crate) a: Sm90Operand<'a>,
    /// `[n][k]`, one group of rows after the other.
    pub(crate) b: Sm90Operand<'a>,
    /// How the scales of both lie; groups of k have vectors on both sides, or share those of rows and matrices.
    pub(crate) layout: Sm90Scales,
    /// `[m][n]` of `d_type`: BF16, F16 or F32; or codes. One group of k after the other.
    pub(crate) d: &'a Span<'a>,
    pub(crate) d_stride: usize,
    pub(crate) d_type: DType,
    pub(crate) alpha: f32,
    /// 0: D is not read. Else it is FP32.
    pub(crate) beta: f32,
    /// `[n]`, one group after the other.
    pub(crate) bias: Option<(&'a Span<'a>, DType)>,
    pub(crate) activation: Activation,
    /// `[m][n]`, its row stride and type.
    pub(crate) residual: Option<(&'a Span<'a>, usize, DType)>,
    pub(crate) groups: Option<Sm90Groups<'a>>,
    pub(crate) end: Sm90End<'a>,
}

/// Blocks of 128 along k.
pub(super) fn k_blocks(k: usize) -> usize {
    k.div_ceil(128)
}

impl Sm90Call<'_> {
    /// Whether A, and B, have a scale of whole matrices for each group.
    pub(super) fn scales_of_groups(&self) -> [bool; 2] {
        let Sm90Scales::Outer { each } = self.layout else { return [false; 2] };
        let of = self.groups.map_or([false; 2], |groups| groups.scales);
        [of[0] && !each[0], of[1] && !each[1]]
    }

    pub(super) fn group_count(&self) -> usize {
        self.groups.map_or(1, |groups| groups.count)
    }

    /// How many matrices lie in B, or one behind the other in D, for groups.
    pub(super) fn matrices(&self) -> [usize; 2] {
        match self.groups {
            None => [1, 1],
            Some(Sm90Groups { along: Sm90Along::Rows, count, .. }) => [count, 1],
            Some(Sm90Groups { along: Sm90Along::K, count, .. }) => [1, count],
        }
    }

    /// Matrices in B, of each group.
    pub(super) fn parts(&self) -> usize {
        if matches!(self.end, Sm90End::Swiglu(_)) { 2 } else { 1 }
    }

    pub(super) fn codes(&self) -> Option<Sm90Codes<'_>> {
        match self.end {
            Sm90End::Numbers => None,
            Sm90End::Codes(codes) => Some(codes),
            Sm90End::Swiglu(codes) => codes,
        }
    }

    /// Refuses products that the kernels do not count: of so many groups, and so many matrices in B and in D.
    pub(crate) fn check_shape([m, n, k]: [usize; 3], groups: usize, [in_b, in_d]: [usize; 2]) -> Result<()> {
        let shape = || format!("m = {m}, n = {n}, k = {k}, {groups} groups");
        if k == 0 || !k.is_multiple_of(16) || !n.is_multiple_of(8) {
            let rule = "k must be a multiple of 16 above 0, n a multiple of 8";
            return Err(Error::shape("A and B", shape(), rule, "pad k with zeros, and the rows of B"));
        }
        // Coordinates of the copy engine, and places in the grid, have 31 bits.
        let fits = |count: Option<usize>| count.is_some_and(|count| count < 1 << 31);
        let tile = Sm90Config::Tile64x32.tile();
        let tiles = || m.div_ceil(tile.rows).checked_mul(n.div_ceil(tile.cols))?.checked_mul(groups);
        if [m.checked_mul(in_d), Some(k), Some(groups), n.checked_mul(in_b), tiles()].into_iter().all(fits) {
            return Ok(());
        }
        Err(Error::shape(
            "A and B",
            shape(),
            "k, the groups, the rows of B and D and the tiles of 64 x 32 of all groups must be below 2^31",
            "split the product",
        ))
    }

    /// Refuses rows of a D of numbers that the kernels do not store.
    pub(crate) fn check_d_stride(n: usize, d_stride: usize, d_type: DType) -> Result<()> {
        if d_stride >= n && d_stride.is_multiple_of(16 / d_type.bytes()) {
            return Ok(());
        }
        Err(Error::shape(
            "D",
            format!("row stride {d_stride} ({d_type}) for n = {n}"),
            "must be a multiple of 16 bytes, no shorter than a row",
            "pad the rows of D",
        ))
    }

    /// Every length and alignment against what the kernel touches. Scales are copied 16 bytes at a time: as far as the rows of
    /// [`ScaleLayout::Vec128`] are padded, or those of four k-blocks, as [`ScaleLayout::Blk128`] is padded: all of it lies inside.
    pub(super) fn check(&self) -> Result<()> {
        let Self { m, n, k, .. } = *self;
        let (groups, parts, [of_b, of_d]) = (self.group_count(), self.parts(), self.matrices());
        Self::check_shape([m, n, k], groups, [of_b * parts, of_d])?;
        self.groups.map_or(Ok(()), |groups| groups.check([m, n, k]))?;
        self.check_along()?;
        self.check_end()?;
        let blocks = k_blocks(k);
        let (a_scales, b_scales) = match self.layout {
            Sm90Scales::Blocks => {
                (ScaleLayout::Vec128.len(m, blocks), of_b * parts * ScaleLayout::Blk128.len(n.div_ceil(128), blocks))
            }
            Sm90Scales::Vectors => (ScaleLayout::Vec128.len(m, blocks), ScaleLayout::Vec128.len(of_b * n, blocks)),
            Sm90Scales::BlocksOfA => {
                (ScaleLayout::Blk128.len(m.div_ceil(128), blocks), ScaleLayout::Vec128.len(n, blocks))
            }
            // One for a matrix is that of all groups, unless each has its own.
            Sm90Scales::Outer { each: [a, b] } => {
                let [of_a, of_groups_b] = self.scales_of_groups().map(|each| if each { groups } else { 1 });
                (if a { m } else { of_a }, if b { of_b * parts * n } else { of_groups_b })
            }
        };
        self.check_operand(["A", "scales of A"], self.a, m, a_scales)?;
        self.check_operand(["B", "scales of B"], self.b, of_b * parts * n, b_scales)?;
        if self.codes().is_some() {
            return self.check_codes();
        }
        if wide_code(self.d_type).is_err() {
            return Err(Error::dtype("D", self.d_type, "is not bf16, f16 or f32", "store one of them"));
        }
        Self::check_d_stride(n, self.d_stride, self.d_type)?;
        check_bytes("D", self.d, extent(m * of_d, n, self.d_stride) * self.d_type.bytes())?;
        check_aligned("D", self.d, 16)?;
        self.check_epilogue()
    }

    /// Whether there is a kernel of such groups.
    fn check_along(&self) -> Result<()> {
        let blocks = self.layout == Sm90Scales::Blocks;
        let outer = matches!(self.layout, Sm90Scales::Outer { .. });
        let added = self.d_type == DType::F32 && self.alpha == 1.0 && self.beta == 1.0;
        let more = self.bias.is_some() || self.residual.is_some() || self.activation != Activation::None;
        let (what, reason, remedy) = match self.groups.map(|groups| groups.along) {
            Some(_) if self.layout == Sm90Scales::BlocksOfA => (
                "groups with 128x128 scales of A",
                "rows of a group may begin inside a tile of such scales",
                "quantize A as fp8-1x128, or multiply the groups one by one",
            ),
            Some(Sm90Along::K) if blocks => (
                "groups of k with 128x128 scales",
                "the kernels of groups of k read 1x128 scales on both sides, or those of rows and matrices",
                "multiply the groups one by one",
            ),
            Some(Sm90Along::K) if self.groups.is_some_and(|groups| groups.scales != [false; 2]) => (
                "groups of k with a scale for each",
                "they share the scales of A and of B",
                "cast all groups with one scale, or multiply them one by one",
            ),
            Some(Sm90Along::K) if outer && !added => (
                "groups of k with scales of rows or matrices, and another end than sums that are added to f32",
                "their kernels are used with an alpha and a beta of 1 alone",
                "multiply the groups one by one",
            ),
            Some(Sm90Along::K) if more => (
                "a bias, an activation or a residual with groups of k",
                "what is added up is the products alone",
                "apply it to D in a call of its own",
            ),
            _ => return Ok(()),
        };
        Err(Error::unsupported(what, reason, remedy))
    }

    /// Whether a kernel ends so: with 128x128 scales of B, or SwiGLU with scales of rows and matrices; and of two matrices nothing but SwiGLU, whose scales begin at tiles of their own.
    fn check_end(&self) -> Result<()> {
        let Self { n, layout, .. } = *self;
        let epilogue = self.beta != 0.0 || self.bias.is_some() || self.residual.is_some();
        let (what, reason, remedy) = match self.end {
            Sm90End::Numbers => return Ok(()),
            Sm90End::Codes(_) if layout != Sm90Scales::Blocks => (
                "other scales than 1x128 and 128x128",
                "no kernel reads them and casts D",
                "cast D in a call of its own",
            ),
            _ if matches!(layout, Sm90Scales::Vectors | Sm90Scales::BlocksOfA) => {
                ("1x128 scales of B", "no kernel reads them and casts D", "cast D in a call of its own")
            }
            _ if self.beta != 0.0 || self.residual.is_some() => (
                "an old value of D or a residual",
                "codes are of the product alone",
                "store D, and cast it in a call of its own",
            ),
            Sm90End::Swiglu(_) if epilogue || self.activation != Activation::None => (
                "a bias or an activation with SwiGLU",
                "it is of the products alone",
                "store the products, and apply them in calls of their own",
            ),
            Sm90End::Swiglu(_) if !n.is_multiple_of(128) => {
                let rule = "must be a multiple of 128 with SwiGLU: tiles of 128 rows of B, of scales or of a kernel, belong to one matrix";
                return Err(Error::shape("n", n.to_string(), rule, "pad the rows of both matrices of B with zeros"));
            }
            Sm90End::Codes(_) if !n.is_multiple_of(16) => {
                let rule = "must be a multiple of 16 for codes, of which 16 are stored at once";
                return Err(Error::shape("n", n.to_string(), rule, "pad the rows of B with zeros"));
            }
            Sm90End::Codes(_) | Sm90End::Swiglu(_) => return Ok(()),
        };
        Err(Error::unsupported(format!("{what} in a product that casts D"), reason, remedy))
    }

    /// Codes of D, packed, and their scales.
    fn check_codes(&self) -> Result<()> {
        let Self { m, n, .. } = *self;
        let Some(Sm90Codes { scales, recipe }) = self.codes() else { return Ok(()) };
        let scheme = recipe.scheme();
        if scheme.spec().scale_layout != ScaleLayout::Vec128 || scheme.spec().format != CodeFormat::E4M3 {
            return Err(Error::unsupported(
                format!("D cast to {scheme} by the product"),
                "it stores E4M3 codes with 1x128 scales",
                "take fp8-1x128:e4m3, or store D and cast it in a call of its own",
            ));
        }
        if self.d_stride != n {
            let rule = "must be n: rows of codes lie side by side";
            return Err(Error::shape(
                "D",
                format!("row stride {} for n = {n}", self.d_stride),
                rule,
                "pass a packed D",
            ));
        }
        check_bytes("D", self.d, m * n)?;
        check_aligned("D", self.d, 16)?;
        check_bytes("scales of D", scales, ScaleLayout::Vec128.len(m, n.div_ceil(128)) * 4)?;
        check_aligned("scales of D", scales, 4)?;
        self.check_epilogue()
    }

    /// What beta, bias and residual ask for.
    fn check_epilogue(&self) -> Result<()> {
        let Self { m, n, .. } = *self;
        let groups = self.group_count();
        if self.beta != 0.0 && self.d_type != DType::F32 {
            return Err(Error::dtype("D", self.d_type, "is not f32, which beta is for", "accumulate into f32"));
        }
        if let Some((span, dtype)) = self.bias {
            check_bytes("bias", span, groups * n * dtype.bytes())?;
            check_aligned("bias", span, dtype.bytes() as u64)?;
        }
        let Some((span, stride, dtype)) = self.residual else { return Ok(()) };
        if stride < n {
            let found = format!("row stride {stride} for n = {n}");
            return Err(Error::shape(
                "residual",
                found,
                "must be no shorter than a row",
                "pass the stride of its rows",
            ));
        }
        check_bytes("residual", span, extent(m, n, stride) * dtype.bytes())?;
        check_aligned("residual", span, dtype.bytes() as u64)
    }

    fn check_operand(
        &self,
        [codes, scales]: [&str; 2],
        operand: Sm90Operand<'_>,
        rows: usize,
        scale_count: usize,
    ) -> Result<()> {
        check_bytes(codes, operand.codes, rows * self.k)?;
        check_aligned(codes, operand.codes, 16)?;
        check_bytes(scales, operand.scales, scale_count * 4)?;
        // Those of blocks are copied 16 bytes at a time.
        check_aligned(scales, operand.scales, if matches!(self.layout, Sm90Scales::Outer { .. }) { 4 } else { 16 })
    }

    /// What its kernels are called by, as if each had all ends: those that have one alone differ in nothing else, tensor maps included.
    pub(super) fn kind_with_all_ends(&self) -> Kind {
        let grouped = self.groups.is_some();
        match self.end {
            Sm90End::Codes(_) => return if grouped { Kind::CodesGrouped } else { Kind::Codes },
            Sm90End::Swiglu(_) => {
                return match (self.layout, grouped) {
                    (Sm90Scales::Outer { .. }, false) => Kind::OuterSwiglu,
                    (Sm90Scales::Outer { .. }, true) => Kind::OuterSwigluGrouped,
                    (_, false) => Kind::Swiglu,
                    (_, true) => Kind::SwigluGrouped,
                };
            }
            Sm90End::Numbers => {}
        }
        self.groups.map_or(self.layout.of_whole(), |groups| self.layout.of_groups(groups.along))
    }

    /// What its kernels are called by.
    pub(super) fn kind(&self) -> Kind {
        match self.kind_with_all_ends() {
            Kind::Block if self.has_plain_end() && self.fills_the_loop() => Kind::Plain,
            Kind::Grouped if self.has_plain_end() && self.fills_the_loop() => Kind::PlainGrouped,
            Kind::Outer if self.has_plain_end() => Kind::OuterPlain,
            Kind::OuterGrouped if self.has_plain_end() => Kind::OuterPlainGrouped,
            Kind::Vector if self.has_fp32_end() => Kind::VectorFp32,
            Kind::VectorOfK if self.has_fp32_end() => Kind::VectorFp32OfK,
            kind => kind,
        }
    }

    /// The configuration whose kernel it takes: alpha, which plans do not know, may ask for an end that its own does not have.
    pub(super) fn config_with_the_end(&self) -> Sm90Config {
        let lacks_it = self.config.ends_plainly() && self.kind() == Kind::Block;
        let stand_in = self.stand_in.filter(|other| lacks_it && other.stands_in_for(self.config));
        stand_in.unwrap_or(self.config)
    }

    /// Whether something follows the sums, beside alpha.
    pub(super) fn has_more(&self) -> bool {
        self.beta != 0.0 || self.has_epilogue()
    }

    /// The same, beside alpha and D's old value.
    fn has_epilogue(&self) -> bool {
        self.bias.is_some() || self.activation != Activation::None || self.residual.is_some()
    }

    /// Whether kernels that have no other end than to store BF16 serve it. Its bits are the same by any.
    fn has_plain_end(&self) -> bool {
        self.has_one_end(DType::Bf16) && self.beta == 0.0
    }

    /// Whether those with scales of k-blocks do, which may have one loop over k alone.
    fn fills_the_loop(&self) -> bool {
        k_blocks(self.k) >= self.config.least_plain_blocks()
    }

    /// Whether kernels that store FP32 or add it to D, and have no other end, serve it.
    fn has_fp32_end(&self) -> bool {
        self.has_one_end(DType::F32) && [0.0, 1.0].contains(&self.beta)
    }

    /// What kernels with one end alone ask for, whichever it is.
    fn has_one_end(&self, d_type: DType) -> bool {
        self.formats == E4M3_PAIR && self.d_type == d_type && self.alpha == 1.0 && !self.has_epilogue()
    }
}

#[cfg(test)]
mod tests;
