//! What is multiplied: [`GemmDesc`], a hashable problem without pointers.

use std::fmt;

use crate::epilogue::{Activation, Epilogue};
use crate::error::{Error, Result};
use crate::format::{CodeOrder, DType, Operand, Scheme, pair};
use crate::gpu::gemm::quantize_a::QuantizeA;
use crate::gpu::matrix::derived::{KeptWeights, check_kept};

/// What happens to D's old value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Accumulate {
    /// D is overwritten; its old value is not read.
    #[default]
    Replace,
    /// `beta * D` is added to the sum, before bias and activation. F32 output only. (With beta = 1 and nothing else behind the sum, `sm90` takes subnormal numbers for 0
    /// where both operands have 1x128 scales.)
    Add,
}

named!(Accumulate, "use of D's old value", Replace => "replace", Add => "add");

/// Width of the tensor cores' accumulator over k.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Accumulation {
    /// Partial sums are promoted to FP32 as the GPU offers it.
    #[default]
    Precise,
    /// The GPU may keep partial sums at tensor-core precision (errors near 1e-3 on sm_90, observed), which is faster.
    /// It concerns tensor x tensor and row x row; pairs with groups of 128 are always precise.
    Fast,
}

named!(Accumulation, "accumulation", Precise => "precise", Fast => "fast");

/// Whether the largest magnitude of D before encoding is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OutAmax {
    /// Not computed.
    #[default]
    Ignore,
    /// Stored as one FP32 number. E4M3 output only.
    Store,
}

named!(OutAmax, "use of D's amax", Ignore => "ignore", Store => "store");

/// One problem: `D = epilogue(alpha * A Bᵀ + beta * D)`, A `m x k`, B `n x k`, D `m x n` row-major.
///
/// Everything that decides how it is computed, and nothing else: no pointers, and neither alpha nor beta's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GemmDesc {
    /// Rows of A and D.
    pub m: usize,
    /// Rows of B, columns of D.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
    /// Scheme of A, or its element type where only the weights are quantized.
    pub a: Operand,
    /// Elements from one row of A to the next: k unless A is given plain.
    pub a_stride: usize,
    /// How A becomes what `a` says, if each call is given it in BF16, F16 or F32.
    pub quantize_a: Option<QuantizeA>,
    /// Scheme of B.
    pub b: Scheme,
    /// How the codes of B lie ([`QuantMatrix::repack`](crate::QuantMatrix::repack)).
    pub b_order: CodeOrder,
    /// Whether B keeps dequantized values: then the plan needs no scratch memory for them.
    pub kept: KeptWeights,
    /// Element type of D: BF16, F16, F32, or E4M3 for tensor x tensor.
    pub out: DType,
    /// Elements from one row of D to the next.
    pub out_stride: usize,
    /// Bias, activation and residual.
    pub epilogue: Epilogue,
    /// Whether D's old value counts.
    pub accumulate: Accumulate,
    /// Precision of the sums.
    pub accumulation: Accumulation,
    /// Whether amax(D) is stored.
    pub out_amax: OutAmax,
    /// Whether a row of D must have the same bits whatever m is, wherever the row stands and whichever rows stand beside it, given the same codes and
    /// scales of the row, B, bias, residual and old D: what reinforcement learning and reproducible serving ask for. [`Formulation::Sm90`] gives it, and
    /// [`Formulation::SmallM`] of weights that it decodes, in passes of 64 rows over B; what neither serves so is then refused by planning. A scale of all of A, as of `fp8-tensor`, is of all rows: the same one must come with
    /// every batch, so that an A to be quantized by a scale that is found from it is refused. A scale of `fp8-128x128` is of a tile of 128 rows: a row has the same bits where the rows of its tile
    /// travel with it, or at least the tile's scales do, and an A to be quantized so is refused too.
    ///
    /// [`Formulation::Sm90`]: crate::Formulation::Sm90
    /// [`Formulation::SmallM`]: crate::Formulation::SmallM
    pub batch_invariant: bool,
    /// Whether calls are links of a [chain](crate::Handle::chain), as all products of a decode step are. That decides into how many parts [`Formulation::SmallM`] cuts k, on sm_90, of up to 16 rows, of FP8 codes on both sides or E2M1 weights (but for tiles): as many as are the fastest there. A link waits
    /// for the one before it with a part of its weights loaded, and other numbers are the fastest than alone (4096 x 7168, `fp8-1x128` x `fp8-128x128`, 16 rows: eight, 7.9 us for 8.7 of four, which alone take 10.3 and 10.0). Elsewhere, and of batch-invariant products, the plan is that of calls alone; the formulation
    /// always is. It says nothing of what is computed: such a plan may be called outside of chains, where it can be slower, and others in them, in the same bits at either place. But two plans that differ in this may sum in
    /// another order of k, and so differ in the last bits of D. Of a table ([`Handle::set_tuning`](crate::Handle::set_tuning)) records of calls alone hold in chains, too, but for those of `small-m` up to 16 rows; one that [`PlanOptions`](crate::PlanOptions) names must be of the same kind.
    ///
    /// [`Formulation::SmallM`]: crate::Formulation::SmallM
    pub chained: bool,
}

impl GemmDesc {
    /// The plain product: packed rows of D, no epilogue, D overwritten, precise sums. Checked when planned.
    pub fn new(m: usize, n: usize, k: usize, a: impl Into<Operand>, b: Scheme, out: DType) -> Self {
        Self {
            m,
            n,
            k,
            a: a.into(),
            a_stride: k,
            quantize_a: None,
            b,
            b_order: CodeOrder::Published,
            kept: KeptWeights::Nothing,
            out,
            out_stride: n,
            epilogue: Epilogue::default(),
            accumulate: Accumulate::Replace,
            accumulation: Accumulation::Precise,
            out_amax: OutAmax::Ignore,
            batch_invariant: false,
            chained: false,
        }
    }

    /// The same with rows of D that begin `out_stride` elements apart.
    pub fn with_out_stride(self, out_stride: usize) -> Self {
        Self { out_stride, ..self }
    }

    /// The same with an A that is given plain, and that each call quantizes first: of the recipe's scheme, whatever A was.
    pub fn with_quantize_a(self, quantize: QuantizeA) -> Self {
        Self { a: quantize.recipe.scheme().into(), quantize_a: Some(quantize), ..self }
    }

    /// The same with rows of a plain A that begin `a_stride` elements apart.
    pub fn with_a_stride(self, a_stride: usize) -> Self {
        Self { a_stride, ..self }
    }

    /// The same for a B whose codes lie in this order.
    pub fn with_b_order(self, b_order: CodeOrder) -> Self {
        Self { b_order, ..self }
    }

    /// The same for a B that keeps these values.
    pub fn with_kept(self, kept: KeptWeights) -> Self {
        Self { kept, ..self }
    }

    /// The same with this epilogue.
    pub fn with_epilogue(self, epilogue: Epilogue) -> Self {
        Self { epilogue, ..self }
    }

    /// The same with D replaced or added to.
    pub fn with_accumulate(self, accumulate: Accumulate) -> Self {
        Self { accumulate, ..self }
    }

    /// The same with sums of this precision.
    pub fn with_accumulation(self, accumulation: Accumulation) -> Self {
        Self { accumulation, ..self }
    }

    /// The same with amax(D) stored or not.
    pub fn with_out_amax(self, out_amax: OutAmax) -> Self {
        Self { out_amax, ..self }
    }

    /// The same with rows of D whose bits may or may not follow m ([`GemmDesc::batch_invariant`]).
    pub fn with_batch_invariant(self, batch_invariant: bool) -> Self {
        Self { batch_invariant, ..self }
    }

    /// The same for calls that are links of a chain, or are not ([`GemmDesc::chained`]).
    pub fn with_chained(self, chained: bool) -> Self {
        Self { chained, ..self }
    }

    /// Checks every rule that does not depend on the GPU; `device` goes into messages.
    ///
    /// # Errors
    /// [`Error::Pair`], [`Error::Shape`], [`Error::DType`] or [`Error::Unsupported`], with the rule that is broken.
    pub fn check(&self, device: &str) -> Result<()> {
        if let Some(quantize) = self.quantize_a {
            quantize.check(self.a)?;
            if self.batch_invariant {
                quantize.check_rows_apart(self.m)?;
            }
        }
        pair::check_pair(self.a, self.b, device)?;
        pair::check_output(self.a, self.b, self.out)?;
        pair::check_shape(self.m, self.n, self.k, self.out)?;
        self.b_order.check(self.b, self.n, self.k)?;
        self.check_sizes()?;
        self.check_a_stride()?;
        if let KeptWeights::Dequantized(dtype) = self.kept {
            check_kept(self.b, dtype)?;
        }
        for (operand, dtype) in [("bias", self.epilogue.bias), ("residual", self.epilogue.residual)] {
            dtype.map_or(Ok(()), |dtype| pair::check_epilogue_operand(operand, dtype))?;
        }
        if self.accumulate == Accumulate::Add {
            pair::check_accumulate(self.out)?;
        }
        if self.out_amax == OutAmax::Store && self.out != DType::E4M3 {
            return Err(Error::dtype("D", self.out, "has no amax: it belongs to e4m3 output", "do not ask for amax"));
        }
        Ok(())
    }

    /// Stride and sizes that cuBLASLt can take.
    fn check_sizes(&self) -> Result<()> {
        let stride = self.out_stride.saturating_mul(4);
        check_sizes(&[("m", self.m), ("n", self.n), ("k", self.k), ("row stride of D", stride)])?;
        if self.out_stride < self.n || !(self.out_stride * self.out.bytes()).is_multiple_of(16) {
            return Err(Error::shape(
                "D",
                format!("row stride {} for n = {} ({})", self.out_stride, self.n, self.out),
                "must be at least n, and a row must be a multiple of 16 bytes",
                format!("use a multiple of {} elements", 16 / self.out.bytes()),
            ));
        }
        Ok(())
    }

    /// Rows of an A that is given plain may lie apart; those of a quantized one are packed.
    fn check_a_stride(&self) -> Result<()> {
        let dtype = match self.given_a() {
            Operand::Plain(dtype) => dtype,
            Operand::Quantized(a) => return check_packed_a(a, self.a_stride, self.k),
        };
        const LIMIT: usize = i32::MAX as usize - 512;
        let aligned = (self.a_stride.saturating_mul(dtype.bytes())).is_multiple_of(16);
        if self.a_stride >= self.k && self.a_stride.saturating_mul(dtype.bytes()) <= LIMIT && aligned {
            return Ok(());
        }
        Err(Error::shape(
            "A",
            format!("row stride {} for k = {} ({dtype})", self.a_stride, self.k),
            format!("must be at least k, and a row must be a multiple of 16 bytes, at most {LIMIT}"),
            format!("use a multiple of {} elements", 16 / dtype.bytes()),
        ))
    }

    /// What calls bring as A, which is not what is multiplied where they quantize it.
    pub(crate) fn given_a(&self) -> Operand {
        self.quantize_a.map_or(self.a, |quantize| Operand::Plain(quantize.dtype))
    }

    /// Elements from one row to the next of the A that is multiplied: one that a call quantizes lies packed in its scratch memory.
    pub(crate) fn multiplied_a_stride(&self) -> usize {
        if self.quantize_a.is_some() { self.k } else { self.a_stride }
    }

    /// True if there is nothing to compute.
    pub(crate) fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0
    }

    /// Names the first fields in which `self` and `other` differ, with both values; not where calls stand, which changes nothing of what is computed.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let fields: [(&str, String, String); 16] = [
            ("m", self.m.to_string(), other.m.to_string()),
            ("n", self.n.to_string(), other.n.to_string()),
            ("k", self.k.to_string(), other.k.to_string()),
            ("A", self.a.to_string(), other.a.to_string()),
            ("row stride of A", self.a_stride.to_string(), other.a_stride.to_string()),
            ("scheme of B", self.b.to_string(), other.b.to_string()),
            ("order of the codes of B", self.b_order.to_string(), other.b_order.to_string()),
            ("values kept in B", format!("{:?}", self.kept), format!("{:?}", other.kept)),
            ("type of D", self.out.to_string(), other.out.to_string()),
            ("quantization of A", format!("{:?}", self.quantize_a), format!("{:?}", other.quantize_a)),
            ("row stride of D", self.out_stride.to_string(), other.out_stride.to_string()),
            ("epilogue", format!("{:?}", self.epilogue), format!("{:?}", other.epilogue)),
            ("accumulate", format!("{:?}", self.accumulate), format!("{:?}", other.accumulate)),
            ("accumulation", format!("{:?}", self.accumulation), format!("{:?}", other.accumulation)),
            ("amax of D", format!("{:?}", self.out_amax), format!("{:?}", other.out_amax)),
            ("batch invariance", self.batch_invariant.to_string(), other.batch_invariant.to_string()),
        ];
        let (name, mine, theirs) = fields.into_iter().find(|(_, a, b)| a != b)?;
        Some(format!("{name} = {theirs} where {mine} was planned"))
    }
}

/// Refuses rows of a quantized A that would lie apart.
pub(crate) fn check_packed_a(a: Scheme, a_stride: usize, k: usize) -> Result<()> {
    if a_stride == k {
        return Ok(());
    }
    Err(Error::shape(
        "A",
        format!("row stride {a_stride} for k = {k}"),
        format!("must be k: the rows of a {a} matrix are packed"),
        "set a stride for a plain A only",
    ))
}

/// Refuses sizes that no way takes.
pub(crate) fn check_sizes(sizes: &[(&str, usize)]) -> Result<()> {
    // 2^31 bytes from one row to the next gave wrong results before cuBLASLt 13.3 (documented); no real matrix needs it.
    const LIMIT: usize = i32::MAX as usize - 512;
    let Some((name, value)) = sizes.iter().find(|(_, value)| *value > LIMIT) else { return Ok(()) };
    Err(Error::shape("problem", format!("{name} = {value}"), format!("must be at most {LIMIT}"), "split the product"))
}

impl fmt::Display for GemmDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{} {}", self.m, self.n, self.k, self.a)?;
        if let Some(quantize) = self.quantize_a {
            write!(f, " of {quantize}")?;
        }
        if self.a_stride != self.k {
            write!(f, " stride {}", self.a_stride)?;
        }
        write!(f, " x {}", self.b)?;
        if self.b_order == CodeOrder::Repacked {
            f.write_str(" repacked")?;
        }
        if let KeptWeights::Dequantized(dtype) = self.kept {
            write!(f, " kept as {dtype}")?;
        }
        write!(f, " -> {}", self.out)?;
        if self.out_stride != self.n {
            write!(f, " stride {}", self.out_stride)?;
        }
        if let Some(bias) = self.epilogue.bias {
            write!(f, " + {bias} bias")?;
        }
        if self.epilogue.activation != Activation::None {
            write!(f, ", {}", self.epilogue.activation.name())?;
        }
        if let Some(residual) = self.epilogue.residual {
            write!(f, " + {residual} residual")?;
        }
        match self.accumulate {
            Accumulate::Replace => {}
            Accumulate::Add => f.write_str(", added to D")?,
        }
        match self.accumulation {
            Accumulation::Precise => {}
            Accumulation::Fast => f.write_str(", fast accumulation")?,
        }
        match self.out_amax {
            OutAmax::Ignore => {}
            OutAmax::Store => f.write_str(", amax")?,
        }
        if self.batch_invariant {
            f.write_str(", batch-invariant")?;
        }
        if self.chained { f.write_str(", chained") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Fp8Format, Fp8Granularity, Fp8Recipe};

    const TENSOR: Scheme = Scheme::Fp8Tensor(Fp8Format::E4M3);
    const ROW: Scheme = Scheme::Fp8Row(Fp8Format::E4M3);

    #[test]
    fn every_refusal_says_operand_numbers_rule_and_remedy() {
        let plain = |out| GemmDesc::new(5, 64, 32, TENSOR, TENSOR, out);
        assert!(plain(DType::Bf16).check("cpu").is_ok());
        assert!(plain(DType::E4M3).with_out_amax(OutAmax::Store).check("cpu").is_ok());
        let bias = |dtype| Epilogue { bias: Some(dtype), ..Epilogue::default() };
        let cases: [(GemmDesc, &[&str]); 7] = [
            (plain(DType::Bf16).with_out_stride(63), &["D", "row stride 63", "n = 64", "multiple of 8"]),
            (plain(DType::Bf16).with_out_stride(68), &["row stride 68", "16 bytes"]),
            (plain(DType::Bf16).with_accumulate(Accumulate::Add), &["D", "bf16", "accumulate", "f32"]),
            (plain(DType::F32).with_out_amax(OutAmax::Store), &["f32", "amax"]),
            (plain(DType::F32).with_epilogue(bias(DType::E4M3)), &["bias", "e4m3", "bf16, f16 or f32"]),
            (GemmDesc::new(5, 64, 32, ROW, TENSOR, DType::Bf16), &["fp8-row", "fp8-tensor"]),
            (GemmDesc::new(5, 64, 0, TENSOR, TENSOR, DType::Bf16), &["k = 0"]),
        ];
        for (desc, words) in cases {
            let text = desc.check("cpu").unwrap_err().to_string();
            for word in words {
                assert!(text.contains(word), "{text:?} lacks {word:?}");
            }
        }
        let vector = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3);
        let blocks = Scheme::Fp8Group128x128(Fp8Format::E4M3);
        let quantizing = GemmDesc::new(5, 64, 32, Operand::Plain(DType::F32), blocks, DType::Bf16)
            .with_quantize_a(QuantizeA::new(DType::F32, vector))
            .with_a_stride(36);
        assert!(quantizing.check("cpu").is_ok());
        assert_eq!(
            quantizing.to_string(),
            "5x64x32 fp8-1x128:e4m3 of f32, torchao, exact scales stride 36 x fp8-128x128:e4m3 -> bf16"
        );
        let unaligned = quantizing.with_a_stride(34).check("cpu").unwrap_err().to_string();
        assert!(unaligned.contains("row stride 34 for k = 32 (f32)") && unaligned.contains("multiple of 4"));
        let other = quantizing.with_quantize_a(QuantizeA::new(DType::Bf16, vector));
        assert!(quantizing.difference(&other).unwrap().starts_with("quantization of A = Some"));
        // Of rows that must not depend on each other, the scale must not either.
        let tensors = |quantize| {
            let desc = GemmDesc::new(5, 64, 32, TENSOR, TENSOR, DType::Bf16).with_quantize_a(quantize);
            assert!(desc.check("cpu").is_ok());
            desc.with_batch_invariant(true)
        };
        assert!(quantizing.with_batch_invariant(true).check("cpu").is_ok());
        assert!(tensors(QuantizeA::with_given_scale(DType::Bf16, Fp8Format::E4M3)).check("cpu").is_ok());
        for (granularity, scheme) in
            [(Fp8Granularity::Tensor, "fp8-tensor:e4m3"), (Fp8Granularity::Group128x128, "fp8-128x128:e4m3")]
        {
            let b = if granularity == Fp8Granularity::Tensor { TENSOR } else { vector.scheme() };
            let own = QuantizeA::new(DType::Bf16, Fp8Recipe::new(granularity, Fp8Format::E4M3));
            let desc = GemmDesc::new(5, 64, 32, TENSOR, b, DType::Bf16).with_quantize_a(own);
            assert!(desc.check("cpu").is_ok());
            let text = desc.with_batch_invariant(true).check("cpu").unwrap_err().to_string();
            for word in ["A of 5 rows", scheme, "found from other rows", "quantize_a_by", "batch_invariant"] {
                assert!(text.contains(word), "{text:?} lacks {word:?}");
            }
        }
        let asked = plain(DType::Bf16).with_batch_invariant(true);
        assert!(asked.check("cpu").is_ok() && asked.to_string().ends_with("-> bf16, batch-invariant"));
        assert_eq!(plain(DType::Bf16).difference(&asked).unwrap(), "batch invariance = true where false was planned");
        let chained = plain(DType::Bf16).with_chained(true);
        assert!(chained.check("cpu").is_ok() && chained.to_string().ends_with("-> bf16, chained"));
        assert_eq!(chained.difference(&plain(DType::Bf16)), None, "plans are for calls at any place");
        assert!(GemmDesc::new(0, 0, 16, TENSOR, TENSOR, DType::F32).check("cpu").is_ok());
        let weight_only = |a, b| GemmDesc::new(5, 64, 32, Operand::Plain(a), b, DType::Bf16);
        let nvfp4 = weight_only(DType::F16, Scheme::Nvfp4Row);
        assert!(nvfp4.with_a_stride(40).with_kept(KeptWeights::Dequantized(DType::F16)).check("cpu").is_ok());
        let mxfp8 = weight_only(DType::Bf16, Scheme::Mxfp8(Fp8Format::E4M3));
        let kept = |dtype| KeptWeights::Dequantized(dtype);
        let cases: [(GemmDesc, &[&str]); 8] = [
            (nvfp4.with_a_stride(31), &["A: row stride 31", "k = 32 (f16)", "at least k", "multiple of 8"]),
            (nvfp4.with_a_stride(36), &["row stride 36", "16 bytes"]),
            (plain(DType::Bf16).with_a_stride(48), &["row stride 48", "packed", "plain A only"]),
            (plain(DType::Bf16).with_kept(kept(DType::Bf16)), &["fp8-tensor:e4m3", "bf16", "nvfp4, nvfp4-row, mxfp8"]),
            (mxfp8.with_kept(kept(DType::F16)), &["mxfp8:e4m3", "f16", "exact in bf16"]),
            (nvfp4.with_kept(kept(DType::F32)), &["nvfp4-row", "f32", "exact in bf16"]),
            (weight_only(DType::F16, Scheme::Mxfp8(Fp8Format::E4M3)), &["f16 x mxfp8:e4m3", "E8M0"]),
            (GemmDesc::new(5, 64, 32, Scheme::Nvfp4, TENSOR, DType::Bf16), &["nvfp4 x fp8-tensor:e4m3", "NVFP4"]),
        ];
        for (desc, words) in cases {
            let text = desc.check("cpu").unwrap_err().to_string();
            words.iter().for_each(|word| assert!(text.contains(word), "{text:?} lacks {word:?}"));
        }
    }

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let planned = GemmDesc::new(5, 64, 32, TENSOR, TENSOR, DType::F32);
        assert_eq!(planned.difference(&planned), None);
        let other = GemmDesc { n: 72, ..planned };
        assert_eq!(planned.difference(&other).unwrap(), "n = 72 where 64 was planned");
        let other = planned.with_accumulation(Accumulation::Fast);
        assert!(planned.difference(&other).unwrap().contains("accumulation = Fast where Precise"));
        let kept = GemmDesc::new(5, 64, 32, Operand::Plain(DType::Bf16), Scheme::Nvfp4, DType::F32).with_a_stride(40);
        let other = kept.with_kept(KeptWeights::Dequantized(DType::Bf16));
        assert!(kept.difference(&other).unwrap().starts_with("values kept in B = Dequantized(Bf16) where Nothing"));
        let repacked = kept.with_b_order(CodeOrder::Repacked);
        assert!(kept.difference(&repacked).unwrap().starts_with("order of the codes of B = repacked where published"));
        assert!(repacked.check("cpu").unwrap_err().to_string().contains("64 x 32"), "no such order of 32 columns");
        assert_eq!(repacked.to_string(), "5x64x32 bf16 stride 40 x nvfp4 repacked -> f32");
        assert!(kept.difference(&kept.with_a_stride(48)).unwrap().starts_with("row stride of A = 48 where 40"));
        assert_eq!(other.to_string(), "5x64x32 bf16 stride 40 x nvfp4 kept as bf16 -> f32");
        assert!(planned.to_string().starts_with("5x64x32 fp8-tensor:e4m3 x fp8-tensor:e4m3 -> f32"));
    }
}
