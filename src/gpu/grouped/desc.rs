//! What is multiplied: [`GroupedGemmDesc`], a hashable problem of groups without pointers.

use std::fmt;

use super::fit::{Fit, check_numbers};
use super::rows::expected;
use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::{CodeOrder, DType, Operand, Scheme, pair};
use crate::gpu::gemm::desc::{check_packed_a, check_sizes};
use crate::gpu::gemm::lanes::check_streams;
use crate::gpu::gemm::outline::{ScaleUse, second_level};
use crate::gpu::kernels::Sm90Config;
use crate::gpu::matrix::{check_size, check_strided};

/// One problem: `D_g = activation(alpha * A_g B_gᵀ + bias_g)` of every group g, A_g some rows of A (`rows x k`), B_g `n x k` of B (`groups * n x k`), D `rows x n` row-major.
///
/// Everything that decides how it is computed, and nothing else: no pointers, no alpha, and neither starts nor counts of groups, which each launch reads.
/// [`GroupedGemmArgs::desc`](crate::GroupedGemmArgs::desc) is that of operands.
///
/// ```
/// use scaled_gemm::{DType, Fp8Format, GroupedGemmDesc, Scheme};
///
/// // 8 experts of 4096 x 7168 weights, in slots of 1024 tokens.
/// let (a, b) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));
/// let desc = GroupedGemmDesc::slots(8, 1024, 4096, 7168, a, b, DType::Bf16);
/// assert_eq!(desc.rows, 8192);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GroupedGemmDesc {
    /// Groups, of which any may be empty.
    pub groups: usize,
    /// Rows of a slot, if groups lie in slots; else where they begin the device alone knows ([`GroupedRows`](crate::GroupedRows)).
    pub slot_rows: Option<usize>,
    /// Rows of A and D, those between groups too, exactly as every call has them: pass matrices of the most rows that there may be. Fewer tokens are smaller counts, not a smaller A.
    pub rows: usize,
    /// Rows of B for each group, columns of D.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
    /// Scheme of A, or its element type where only the weights are quantized.
    pub a: Operand,
    /// Elements from one row of A to the next: k unless A is plain.
    pub a_stride: usize,
    /// Scheme of B.
    pub b: Scheme,
    /// How the codes of B lie ([`QuantMatrix::repack`](crate::QuantMatrix::repack)).
    pub b_order: CodeOrder,
    /// Element type of D: BF16, F16 or F32.
    pub out: DType,
    /// Elements from one row of D to the next.
    pub out_stride: usize,
    /// Type of the bias, of which each group has its own.
    pub bias: Option<DType>,
    /// What follows the bias.
    pub activation: Activation,
    /// Whether A, and B, have a scale for each group in the place of the one of a whole matrix, as grouped tensors with a scale for each member do.
    pub scales_of_groups: [bool; 2],
    /// Whether groups that are not taken as their numbers say are counted ([`GroupedGemmArgs::clamped`](crate::GroupedGemmArgs::clamped)).
    pub clamped: bool,
    /// How many rows a group usually has ([`GroupedGemmArgs::expected_rows`](crate::GroupedGemmArgs::expected_rows)).
    pub expected_rows: Option<usize>,
    /// This configuration of `sm90` and no other.
    pub config: Option<Sm90Config>,
    /// Whether each slot is a product of its own, also where one launch would take all ([`GroupedGemmArgs::product_a_slot`](crate::GroupedGemmArgs::product_a_slot)).
    pub product_a_slot: bool,
    /// Whether cuBLASLt's own product of groups is asked for ([`GroupedGemmArgs::by_cublaslt`](crate::GroupedGemmArgs::by_cublaslt)).
    pub by_cublaslt: bool,
    /// On how many streams products of slots run ([`GroupedGemmArgs::streams`](crate::GroupedGemmArgs::streams)).
    pub streams: Option<usize>,
}

impl GroupedGemmDesc {
    /// Groups one behind the other in `rows` rows, where the device says ([`GroupedRows::Contiguous`](crate::GroupedRows::Contiguous)); packed rows, no bias, every choice left to the crate. Checked when planned.
    pub fn contiguous(
        groups: usize,
        rows: usize,
        n: usize,
        k: usize,
        a: impl Into<Operand>,
        b: Scheme,
        out: DType,
    ) -> Self {
        Self {
            groups,
            slot_rows: None,
            rows,
            n,
            k,
            a: a.into(),
            a_stride: k,
            b,
            b_order: CodeOrder::Published,
            out,
            out_stride: n,
            bias: None,
            activation: Activation::None,
            scales_of_groups: [false; 2],
            clamped: false,
            expected_rows: None,
            config: None,
            product_a_slot: false,
            by_cublaslt: false,
            streams: None,
        }
    }

    /// The same of groups in slots of `slot_rows` rows ([`GroupedRows::Masked`](crate::GroupedRows::Masked)).
    pub fn slots(
        groups: usize,
        slot_rows: usize,
        n: usize,
        k: usize,
        a: impl Into<Operand>,
        b: Scheme,
        out: DType,
    ) -> Self {
        let all = Self::contiguous(groups, groups.saturating_mul(slot_rows), n, k, a, b, out);
        Self { slot_rows: Some(slot_rows), ..all }
    }

    /// The same with rows of a plain A that begin `a_stride` elements apart.
    pub fn with_a_stride(self, a_stride: usize) -> Self {
        Self { a_stride, ..self }
    }

    /// The same with rows of D that begin `out_stride` elements apart.
    pub fn with_out_stride(self, out_stride: usize) -> Self {
        Self { out_stride, ..self }
    }

    /// The same for a B whose codes lie in this order.
    pub fn with_b_order(self, b_order: CodeOrder) -> Self {
        Self { b_order, ..self }
    }

    /// The same with a bias of this type.
    pub fn with_bias(self, dtype: DType) -> Self {
        Self { bias: Some(dtype), ..self }
    }

    /// The same with this function after the bias.
    pub fn with_activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// The same with a scale for each group of A, and of B, or not.
    pub fn with_scales_of_groups(self, scales_of_groups: [bool; 2]) -> Self {
        Self { scales_of_groups, ..self }
    }

    /// The same with clamped groups counted or not.
    pub fn with_clamped(self, clamped: bool) -> Self {
        Self { clamped, ..self }
    }

    /// The same with so many rows of a group as a rule.
    pub fn with_expected_rows(self, rows: usize) -> Self {
        Self { expected_rows: Some(rows), ..self }
    }

    /// The same in this configuration of `sm90` and no other.
    pub fn with_config(self, config: Sm90Config) -> Self {
        Self { config: Some(config), ..self }
    }

    /// The same with one product a slot, or as this crate chooses.
    pub fn with_product_a_slot(self, product_a_slot: bool) -> Self {
        Self { product_a_slot, ..self }
    }

    /// The same by cuBLASLt's own product of groups, or as this crate chooses.
    pub fn with_by_cublaslt(self, by_cublaslt: bool) -> Self {
        Self { by_cublaslt, ..self }
    }

    /// The same with products of slots on so many streams.
    pub fn with_streams(self, streams: usize) -> Self {
        Self { streams: Some(streams), ..self }
    }

    /// Refuses what breaks a rule that does not depend on pair or GPU.
    pub(super) fn check(&self) -> Result<()> {
        check_streams(self.streams)?;
        self.check_choices()?;
        self.check_scales()?;
        let &Self { groups, slot_rows, rows, n, k, .. } = self;
        let all = groups.saturating_mul(n);
        Fit {
            a: [rows, k],
            b: [all, k],
            d: [rows, n],
            groups: Some((groups, slot_rows)),
            matrices: 1,
            bias: self.bias.map(|dtype| (dtype, all)),
        }
        .check()?;
        check_numbers(self.out, "store one of them")?;
        check_sizes(&[("rows", rows), ("n", n), ("k", k)])?;
        pair::check_shape(rows, n, k, self.out)?;
        self.check_places(all)?;
        self.b_order.check(self.b, all, k)
    }

    /// Refuses strides that no operands have, and operands that no memory holds, with a B of so many rows.
    fn check_places(&self, all: usize) -> Result<()> {
        let &Self { rows, n, k, a_stride, .. } = self;
        match self.a {
            Operand::Plain(a) => check_strided("A", a, [rows, k], a_stride).map(drop)?,
            Operand::Quantized(a) => {
                check_packed_a(a, a_stride, k)?;
                check_size(a, rows, k)?;
            }
        }
        check_size(self.b, all, k)?;
        check_strided("D", self.out, [rows, n], self.out_stride).map(drop)
    }

    /// Refuses choices that the operands, or other choices, leave no room for.
    fn check_choices(&self) -> Result<()> {
        if self.by_cublaslt {
            return self.check_alone();
        }
        match (self.a, self.config, self.product_a_slot) {
            (Operand::Plain(_), _, true) => Err(Error::unsupported(
                "one product a slot of a plain A",
                "groups of plain rows are multiplied in one launch, and that alone",
                "multiply them one by one with Handle::scaled_gemm, or leave product_a_slot out",
            )),
            (Operand::Plain(_), Some(_), false) => Err(Error::unsupported(
                "a configuration of sm90 for a plain A",
                "other kernels multiply it",
                "leave it out",
            )),
            (Operand::Quantized(_), Some(config), true) => Err(Error::unsupported(
                format!("the configuration {config} with one product a slot"),
                "it is that of one launch, and products of slots are planned",
                "leave one of the two out",
            )),
            _ => Ok(()),
        }
    }

    /// Refuses what goes with other ways than cuBLASLt's own product of groups.
    fn check_alone(&self) -> Result<()> {
        let other = match (self.a, self.config, self.streams) {
            (Operand::Plain(_), ..) => Some("a plain A".to_string()),
            _ if self.product_a_slot => Some("one product a slot".to_string()),
            (_, Some(config), _) => Some(format!("the configuration {config} of sm90")),
            (.., Some(streams)) => Some(format!("{streams} streams")),
            _ => None,
        };
        other.map_or(Ok(()), |other| {
            Err(Error::unsupported(
                format!("cuBLASLt's own product of groups with {other}"),
                "it is one product of quantized operands, whose algorithm cuBLASLt chooses",
                "leave one of the two out",
            ))
        })
    }

    /// Refuses scales of groups of an operand that has none for a whole matrix.
    fn check_scales(&self) -> Result<()> {
        let operands = [self.a, self.b.into()];
        let has_one = |operand: Operand| second_level(operand) == ScaleUse::One;
        if self.scales_of_groups.into_iter().zip(operands).all(|(each, operand)| !each || has_one(operand)) {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("a scale for each group of {} x {}", self.a, self.b),
            "it takes the place of the one that a whole matrix has: of fp8-tensor operands and of nvfp4",
            "leave it out: each row of fp8-row and nvfp4-row operands has the scale of its group",
        ))
    }

    /// Rows of a group, as a rule.
    pub(super) fn usual_rows(&self) -> usize {
        let rows = self.expected_rows.unwrap_or_else(|| expected(self.slot_rows, self.groups, self.rows));
        rows.clamp(1, self.rows.max(1))
    }

    /// The same problem with the choices of a planned one where it leaves them open.
    pub(super) fn with_choices_of(self, planned: &Self) -> Self {
        let as_usual = self.expected_rows.is_none() || self.usual_rows() == planned.usual_rows();
        Self {
            expected_rows: if as_usual { planned.expected_rows } else { self.expected_rows },
            config: self.config.or(planned.config),
            product_a_slot: self.product_a_slot || planned.product_a_slot,
            by_cublaslt: self.by_cublaslt || planned.by_cublaslt,
            streams: self.streams.or(planned.streams),
            ..self
        }
    }

    /// Names the first field in which `self` and `other` differ, with both values.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let places = |desc: &Self| {
            desc.slot_rows.map_or("where the device says".to_string(), |rows| format!("in slots of {rows} rows"))
        };
        let fields: [(&str, String, String); 20] = [
            ("groups", self.groups.to_string(), other.groups.to_string()),
            ("place of groups", places(self), places(other)),
            ("rows of A and D", self.rows.to_string(), other.rows.to_string()),
            ("n", self.n.to_string(), other.n.to_string()),
            ("k", self.k.to_string(), other.k.to_string()),
            ("A", self.a.to_string(), other.a.to_string()),
            ("row stride of A", self.a_stride.to_string(), other.a_stride.to_string()),
            ("scheme of B", self.b.to_string(), other.b.to_string()),
            ("order of the codes of B", self.b_order.to_string(), other.b_order.to_string()),
            ("type of D", self.out.to_string(), other.out.to_string()),
            ("row stride of D", self.out_stride.to_string(), other.out_stride.to_string()),
            ("bias", format!("{:?}", self.bias), format!("{:?}", other.bias)),
            ("activation", self.activation.to_string(), other.activation.to_string()),
            (
                "scales of the groups of A and of B",
                format!("{:?}", self.scales_of_groups),
                format!("{:?}", other.scales_of_groups),
            ),
            ("count of clamped groups", self.clamped.to_string(), other.clamped.to_string()),
            ("expected rows", format!("{:?}", self.expected_rows), format!("{:?}", other.expected_rows)),
            ("configuration", format!("{:?}", self.config), format!("{:?}", other.config)),
            ("one product a slot", self.product_a_slot.to_string(), other.product_a_slot.to_string()),
            ("cuBLASLt's own product", self.by_cublaslt.to_string(), other.by_cublaslt.to_string()),
            ("streams", format!("{:?}", self.streams), format!("{:?}", other.streams)),
        ];
        let (name, mine, theirs) = fields.into_iter().find(|(_, a, b)| a != b)?;
        Some(format!("{name} = {theirs} where {mine} was planned"))
    }
}

impl fmt::Display for GroupedGemmDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { groups, rows, n, k, a, b, .. } = self;
        write!(f, "{groups} groups of {a} x {b}, n = {n}, k = {k}")?;
        match self.slot_rows {
            Some(slot_rows) => write!(f, ", in slots of {slot_rows} rows")?,
            None => write!(f, ", in {rows} rows")?,
        }
        if self.b_order == CodeOrder::Repacked {
            f.write_str(", B repacked")?;
        }
        write!(f, " -> {}", self.out)?;
        if let Some(bias) = self.bias {
            write!(f, " + {bias} bias")?;
        }
        if self.activation != Activation::None {
            write!(f, ", {}", self.activation)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Fp8Format;

    const TENSOR: Scheme = Scheme::Fp8Tensor(Fp8Format::E4M3);

    #[test]
    fn every_field_that_differs_is_named_with_both_values() {
        let planned = GroupedGemmDesc::slots(4, 128, 256, 512, TENSOR, TENSOR, DType::Bf16);
        assert_eq!(planned.difference(&planned), None);
        let e5m2 = Scheme::Fp8Tensor(Fp8Format::E5M2);
        let others = [
            // What comes first is named, whatever else differs.
            (GroupedGemmDesc { groups: 5, n: 128, ..planned }, "groups = 5 where 4 was planned"),
            (
                GroupedGemmDesc { slot_rows: None, ..planned },
                "place of groups = where the device says where in slots of 128 rows was planned",
            ),
            (GroupedGemmDesc { rows: 640, ..planned }, "rows of A and D = 640 where 512 was planned"),
            (GroupedGemmDesc { n: 128, ..planned }, "n = 128 where 256 was planned"),
            (GroupedGemmDesc { k: 128, ..planned }, "k = 128 where 512 was planned"),
            (GroupedGemmDesc { a: e5m2.into(), ..planned }, "A = fp8-tensor:e5m2 where fp8-tensor:e4m3 was planned"),
            (planned.with_a_stride(520), "row stride of A = 520 where 512 was planned"),
            (GroupedGemmDesc { b: e5m2, ..planned }, "scheme of B = fp8-tensor:e5m2 where fp8-tensor:e4m3 was planned"),
            (
                planned.with_b_order(CodeOrder::Repacked),
                "order of the codes of B = repacked where published was planned",
            ),
            (GroupedGemmDesc { out: DType::F32, ..planned }, "type of D = f32 where bf16 was planned"),
            (planned.with_out_stride(264), "row stride of D = 264 where 256 was planned"),
            (planned.with_bias(DType::F32), "bias = Some(F32) where None was planned"),
            (planned.with_activation(Activation::Silu), "activation = silu where none was planned"),
            (
                planned.with_scales_of_groups([false, true]),
                "scales of the groups of A and of B = [false, true] where [false, false] was planned",
            ),
            (planned.with_clamped(true), "count of clamped groups = true where false was planned"),
            (planned.with_expected_rows(7), "expected rows = Some(7) where None was planned"),
            (planned.with_config(Sm90Config::Tile128x128), "configuration = Some(Tile128x128) where None was planned"),
            (planned.with_product_a_slot(true), "one product a slot = true where false was planned"),
            (planned.with_by_cublaslt(true), "cuBLASLt's own product = true where false was planned"),
            (planned.with_streams(2), "streams = Some(2) where None was planned"),
        ];
        for (other, words) in others {
            assert_ne!(planned, other);
            assert_eq!(planned.difference(&other).as_deref(), Some(words));
        }
    }

    /// What decides how, and not what, may be left to the plan.
    #[test]
    fn choices_that_are_left_open_are_the_plans() {
        let posed = GroupedGemmDesc::slots(4, 128, 256, 512, TENSOR, TENSOR, DType::Bf16);
        let planned = posed.with_expected_rows(7).with_product_a_slot(true).with_streams(2);
        assert_eq!(posed.with_choices_of(&planned), planned);
        assert_eq!(planned.with_choices_of(&posed), planned);
        let other = posed.with_streams(3).with_choices_of(&planned);
        assert_eq!(planned.difference(&other).unwrap(), "streams = Some(3) where Some(2) was planned");
        let config = posed.with_config(Sm90Config::Tile128x128);
        assert_eq!(posed.with_choices_of(&config), config);
        let library = posed.with_by_cublaslt(true);
        assert_eq!([posed.with_choices_of(&library), library.with_choices_of(&posed)], [library; 2]);
        // As many usual rows as are planned anyway are no other choice: those of a slot, or all.
        assert_eq!(posed.with_expected_rows(128).with_choices_of(&posed), posed);
        assert_eq!(posed.with_choices_of(&posed.with_expected_rows(128)), posed.with_expected_rows(128));
        assert_eq!(posed.with_expected_rows(129).with_choices_of(&posed), posed.with_expected_rows(129));
        let all = posed.with_expected_rows(512);
        assert_eq!(posed.with_expected_rows(9999).with_choices_of(&all), all);
        // Nothing else is.
        let biased = planned.with_bias(DType::F32).with_clamped(true);
        assert_eq!(posed.with_choices_of(&biased).bias, None);
        assert!(!posed.with_choices_of(&biased).clamped);
    }

    #[test]
    fn a_problem_says_what_it_is() {
        let all = GroupedGemmDesc::contiguous(3, 400, 256, 512, Operand::Plain(DType::Bf16), Scheme::Nvfp4, DType::F32)
            .with_b_order(CodeOrder::Repacked)
            .with_bias(DType::F16)
            .with_activation(Activation::Gelu);
        assert_eq!(
            all.to_string(),
            "3 groups of bf16 x nvfp4, n = 256, k = 512, in 400 rows, B repacked -> f32 + f16 bias, gelu"
        );
        let slots = GroupedGemmDesc::slots(3, 128, 256, 512, TENSOR, TENSOR, DType::Bf16);
        assert_eq!(slots.rows, 384);
        assert!(slots.to_string().ends_with("k = 512, in slots of 128 rows -> bf16"), "{slots}");
    }
}
