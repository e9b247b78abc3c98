//! [`Handle::fused_gemm`]: a product and the pass behind it in one kernel, whole or of groups of rows: SwiGLU of two products, and results in codes.

use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::{Basis, DType, Fp8Format, Fp8Granularity, Fp8Recipe, Operand, Scheme, pair};
use crate::gpu::device::memory::Span;
use crate::gpu::gemm::formulation::HOPPER;
use crate::gpu::gemm::sm90_rules;
use crate::gpu::grouped::GroupedRows;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{
    KernelFamily, Sm90Call, Sm90Codes, Sm90Config, Sm90End, Sm90Groups, Sm90Maps, Sm90Operand, Sm90Scales,
};
use crate::gpu::matrix::{MatMut, QuantMatrix, QuantSpans, VecRef};

/// Where the result goes.
pub enum FusedOut<'a> {
    /// Numbers: BF16, F16 or F32.
    Plain(MatMut<'a>),
    /// `fp8-1x128:e4m3`, codes and scales as the next product reads them.
    Quantized(&'a mut QuantMatrix),
}

impl<'a> From<MatMut<'a>> for FusedOut<'a> {
    fn from(d: MatMut<'a>) -> Self {
        Self::Plain(d)
    }
}

impl<'a> From<&'a mut QuantMatrix> for FusedOut<'a> {
    fn from(d: &'a mut QuantMatrix) -> Self {
        Self::Quantized(d)
    }
}

impl FusedOut<'_> {
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Plain(d) => (d.rows(), d.cols()),
            Self::Quantized(d) => (d.rows(), d.cols()),
        }
    }
}

/// The operands of one product with the pass behind it. A: `fp8-1x128:e4m3`, m x k; B: `fp8-128x128:e4m3`, of columns k. Sums are FP32 from one block of 128
/// along k to the next; what follows is computed in FP32, and nothing is rounded in between.
pub struct FusedGemmArgs<'a> {
    a: &'a QuantMatrix,
    b: &'a QuantMatrix,
    d: FusedOut<'a>,
    swiglu: bool,
    groups: Option<(usize, GroupedRows<'a>)>,
    alpha: f32,
    bias: Option<VecRef<'a>>,
    activation: Activation,
    recipe: Fp8Recipe,
    expected_rows: Option<usize>,
    config: Option<Sm90Config>,
}

impl<'a> FusedGemmArgs<'a> {
    /// `D = silu(alpha A Gᵀ) ∘ (alpha A Uᵀ)`: the gated MLP's first half. B holds the rows of G, then those of U, as engines stack `gate_proj` and `up_proj`:
    /// 2n x k, n a multiple of 128 and k of 16. D, m x n: numbers, or codes for the next product. In the arithmetic of
    /// [`reference::swiglu`](crate::reference::swiglu) of the two products in FP32.
    pub fn swiglu(a: &'a QuantMatrix, b: &'a QuantMatrix, d: impl Into<FusedOut<'a>>) -> Self {
        Self::of(a, b, d.into(), true)
    }

    /// `D = quantize(activation(alpha A Bᵀ + bias))`, m x n, n and k multiples of 16: the bytes of [`Handle::quantize_into`] of the product in FP32.
    pub fn quantized(a: &'a QuantMatrix, b: &'a QuantMatrix, d: &'a mut QuantMatrix) -> Self {
        Self::of(a, b, FusedOut::Quantized(d), false)
    }

    fn of(a: &'a QuantMatrix, b: &'a QuantMatrix, d: FusedOut<'a>, swiglu: bool) -> Self {
        Self {
            a,
            b,
            d,
            swiglu,
            groups: None,
            alpha: 1.0,
            bias: None,
            activation: Activation::None,
            recipe: Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3),
            expected_rows: None,
            config: None,
        }
    }

    /// The same of groups of A's rows, each with a B of its own, those of group 0 first: experts. Rows of D of no group are not written, their scales
    /// neither. [`GroupedRows`] says where groups lie; n is a multiple of 128.
    pub fn groups(self, groups: usize, rows: GroupedRows<'a>) -> Self {
        Self { groups: Some((groups, rows)), ..self }
    }

    /// Multiplies products by `alpha` (a host number: a captured graph keeps the value it was captured with).
    pub fn alpha(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// Adds a bias for each column, of each group: BF16, F16 or F32. Not with SwiGLU.
    pub fn bias(self, bias: VecRef<'a>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// Applies an activation after the bias. Not with SwiGLU.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// By which rule a quantized D gets its scales: 1x128, E4M3. Unless told, [`Fp8Recipe::new`]'s.
    pub fn recipe(self, recipe: Fp8Recipe) -> Self {
        Self { recipe, ..self }
    }

    /// How many rows a group usually has, which decides the configuration and nothing else. Unless told, all that a slot holds, or an
    /// equal share of A's rows.
    pub fn expected_rows(self, rows: usize) -> Self {
        Self { expected_rows: Some(rows), ..self }
    }

    /// This configuration and no other: `128x128` or `64x128`, of codes without SwiGLU also `256x128`. Results are the same in every bit.
    pub fn config(self, config: Sm90Config) -> Self {
        Self { config: Some(config), ..self }
    }

    /// Matrices in B, of each group.
    fn parts(&self) -> usize {
        if self.swiglu { 2 } else { 1 }
    }

    /// m, n and k.
    fn mnk(&self) -> [usize; 3] {
        let (m, n) = self.d.shape();
        [m, n, self.a.cols()]
    }

    /// Refuses what the kernels do not read, and operands that do not fit together.
    fn check(&self, handle: &Handle) -> Result<()> {
        let Self { a, b, swiglu, .. } = self;
        let (vec, blk) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));
        let (major, minor) = handle.device().compute_capability;
        let after = if *swiglu { "SwiGLU" } else { "a cast" };
        let refuse = |reason: String| {
            Err(Error::Pair {
                a: Operand::Quantized(a.scheme()),
                b: b.scheme(),
                device: handle.device().to_string(),
                reason,
                remedy: if *swiglu {
                    "store the products in one matrix (Handle::scaled_gemm or grouped_gemm), and quantize SwigluSource of it".to_string()
                } else {
                    "store the product (Handle::scaled_gemm or grouped_gemm), and quantize it".to_string()
                },
            })
        };
        if (major, minor) != HOPPER {
            return refuse(format!(
                "a product with {after} in its kernel is for sm_90, and this GPU is sm_{major}{minor}"
            ));
        }
        if (a.scheme(), b.scheme()) != (vec, blk) {
            return refuse(format!("a product with {after} in its kernel is of {vec} and {blk}"));
        }
        pair::check_basis(a.basis(), b.basis())?;
        let [m, n, k] = self.mnk();
        if k == 0 || !k.is_multiple_of(16) {
            let rule = "must be a multiple of 16 above 0";
            return Err(Error::shape("k", k.to_string(), rule, "pad the columns of A and B with zeros"));
        }
        if let Some(config) = self.config
            && !(if *swiglu { config.swiglu_tile().is_some() } else { config.stores_codes() })
        {
            return Err(config.casts_nothing());
        }
        if b.cols() != k {
            let found = format!("{} x {}", b.rows(), b.cols());
            return Err(Error::shape("B", found, format!("must have A's {k} columns"), "pass A and B of the same k"));
        }
        if m != a.rows() {
            let rule = format!("must have A's {} rows", a.rows());
            return Err(Error::shape("D", format!("{m} x {n}"), rule, "pass D of that shape"));
        }
        let groups = self.groups.as_ref().map_or(1, |(groups, _)| *groups);
        if (*swiglu || self.groups.is_some()) && !n.is_multiple_of(128) {
            return Err(Error::shape(
                "D",
                format!("{m} x {n}"),
                "must have a multiple of 128 columns: no 128x128 scale of B belongs to two of its matrices",
                "pad the rows of each matrix of B with zeros, and D's columns",
            ));
        }
        if !n.is_multiple_of(16) {
            let rule = "must be a multiple of 16: so many codes are stored at once";
            return Err(Error::shape(
                "columns of D",
                n.to_string(),
                rule,
                "pad the rows of B with zeros, and D's columns",
            ));
        }
        let rows = groups.checked_mul(self.parts()).and_then(|matrices| matrices.checked_mul(n));
        if Some(b.rows()) != rows {
            return Err(Error::shape(
                "B",
                format!("{} x {k}", b.rows()),
                match (*swiglu, self.groups.is_some()) {
                    (false, false) => format!("must be {n} x {k}: a row for each column of D"),
                    (false, true) => {
                        format!("must be {groups} * {n} x {k}: as many rows for each group as D has columns")
                    }
                    (true, false) => format!("must be 2 * {n} x {k}: the rows of gate, then those of up"),
                    (true, true) => {
                        format!("must be {groups} * 2 * {n} x {k}: for each group the rows of gate, then those of up")
                    }
                },
                "stack the matrices, rows upon rows, and pass D of their columns",
            ));
        }
        if let Some((groups, rows)) = &self.groups {
            rows.check_slots(*groups, m)?;
        }
        match &self.d {
            FusedOut::Plain(d) if !matches!(d.dtype(), DType::Bf16 | DType::F16 | DType::F32) => {
                return Err(Error::dtype(
                    "D",
                    d.dtype(),
                    "is not bf16, f16 or f32",
                    "store one of them, or pass a QuantMatrix",
                ));
            }
            FusedOut::Plain(_) => {}
            FusedOut::Quantized(d) => {
                self.recipe.check()?;
                if self.recipe.scheme() != vec {
                    return Err(Error::unsupported(
                        format!("a recipe of {} for D", self.recipe.scheme()),
                        format!("the kernel stores {vec}"),
                        "pass a recipe of Fp8Granularity::Group1x128 and E4M3",
                    ));
                }
                if d.scheme() != vec {
                    let found = format!("{m} x {n} {}", d.scheme());
                    return Err(Error::shape(
                        "D",
                        found,
                        format!("must be {vec}"),
                        "allocate it with QuantMatrix::zeros",
                    ));
                }
                handle.check_basis(Basis::Plain, d)?;
            }
        }
        if self.swiglu && (self.bias.is_some() || self.activation != Activation::None) {
            return Err(Error::unsupported(
                "a bias or an activation with SwiGLU",
                "the kernel computes SwiGLU of the two products alone",
                "store the products, and apply them in calls of their own",
            ));
        }
        self.bias.as_ref().map_or(Ok(()), |bias| bias.check_bias(groups, n))
    }

    /// The configuration asked for, or the one that should be fastest.
    fn chosen(&self, sm_count: usize) -> Sm90Config {
        let [m, n, k] = self.mnk();
        let (groups, rows) = match &self.groups {
            None => (1, m),
            Some((groups, rows)) => (*groups, rows.expected(*groups, m)),
        };
        let mnk = [self.expected_rows.unwrap_or(rows).clamp(1, m.max(1)), n, k];
        self.config.unwrap_or_else(|| sm90_rules::cast_order(self.swiglu, groups, mnk, sm_count)[0])
    }

    /// Which kernel computes it, what it costs in memory, and why.
    ///
    /// # Errors
    /// As [`Handle::fused_gemm`], but for what memory itself is asked: lengths of counts and starts, alignment and row stride of D, overlap.
    pub fn explain(&self, handle: &Handle) -> Result<String> {
        self.check(handle)?;
        let [m, n, k] = self.mnk();
        let of = self.groups.as_ref().map_or(String::new(), |(groups, _)| format!("{groups} groups, "));
        let what = if self.swiglu { "SwiGLU of two products" } else { "a product" };
        let to = match &self.d {
            FusedOut::Plain(d) => d.dtype().to_string(),
            FusedOut::Quantized(d) => d.scheme().to_string(),
        };
        Ok(format!(
            "{of}m = {m}, n = {n}, k = {k}: {what} to {to}\n  one launch of {}; no scratch memory\n  because our kernels for sm_90 serve this pair",
            self.chosen(handle.device().sm_count as usize)
        ))
    }
}

impl Handle {
    /// A product and what follows it, in one launch: [`FusedGemmArgs::swiglu`] and [`FusedGemmArgs::quantized`]. The pass between the products of an MLP,
    /// which reads and writes its hidden layer in memory, is gone. Codes cost nothing beside the product at most sizes; SwiGLU is faster than a product and a pass from about 1024 rows
    /// on, and for 64 rows of a very wide layer, and slower in between, where its tiles of twice the columns fill the GPU worse (docs/performance.md).
    ///
    /// A row of D has the same bits whatever m is and whichever rows stand beside it, in every configuration. D must not overlap A, B, a bias, and where groups lie. What is derived of a
    /// quantized D follows it ([`QuantMatrix::write_parts`]); its padding is left as it is: zero, as in every matrix.
    ///
    /// Once its kernels are loaded (by the first call, or [`Handle::load_kernels`] of [`KernelFamily::Sm90`]) it allocates nothing and waits for nothing:
    /// safe inside graph capture. Groups may have other places and counts at each launch.
    ///
    /// ```no_run
    /// # use scaled_gemm::{FusedGemmArgs, Fp8Format, Handle, MatMut, QuantMatrix, Result, Scheme};
    /// fn mlp(handle: &Handle, x: &QuantMatrix, gate_up: &QuantMatrix, down: &QuantMatrix, y: MatMut<'_>) -> Result<()> {
    ///     let vec = Scheme::Fp8Group1x128(Fp8Format::E4M3);
    ///     let mut hidden = QuantMatrix::zeros(handle, vec, x.rows(), gate_up.rows() / 2)?;
    ///     handle.fused_gemm(FusedGemmArgs::swiglu(x, gate_up, &mut hidden))?;
    ///     handle.scaled_gemm(scaled_gemm::GemmArgs::new(&hidden, down, y))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Pair`] for other schemes and GPUs; [`Error::Shape`], [`Error::DType`], [`Error::Alignment`] for what does not fit together;
    /// [`Error::Unsupported`] for other recipes and configurations, operands of two bases or of another GPU, and in a capture for kernels that are not loaded and
    /// borrowed memory; [`Error::Kernel`] and [`Error::Library`] if they cannot be loaded; [`Error::Driver`] if the launch fails.
    pub fn fused_gemm(&self, mut args: FusedGemmArgs<'_>) -> Result<()> {
        args.check(self)?;
        let config = args.chosen(self.device().sm_count as usize);
        let [m, n, k] = args.mnk();
        let (queue, kernels) = (self.queue(), self.kernels());
        kernels.load(queue, KernelFamily::Sm90)?;
        let _turn = queue.turn();
        let FusedGemmArgs { a, b, d, swiglu, groups, alpha, bias, activation, recipe, .. } = &mut args;
        {
            let order = queue.order();
            let (a, b) = (a.read(&order)?, b.read(&order)?);
            let bias = bias.as_ref().map(|v| Ok::<_, Error>((v.data().at(&order)?, v.dtype()))).transpose()?;
            let (plain, codes);
            let (d, d_stride, d_type, scales) = match d {
                FusedOut::Plain(d) => {
                    let (stride, dtype) = (d.row_stride(), d.dtype());
                    plain = d.data_mut().at(&order)?;
                    (&plain, stride, dtype, None)
                }
                FusedOut::Quantized(d) => {
                    codes = d.write(&order)?;
                    (&codes.codes, n, DType::E4M3, Some(Sm90Codes { scales: &codes.scales, recipe: *recipe }))
                }
            };
            for written in [Some(d), scales.map(|codes| codes.scales)].into_iter().flatten() {
                check_apart("A", &a, written)?;
                check_apart("B", &b, written)?;
            }
            let end = match scales {
                codes if *swiglu => Sm90End::Swiglu(codes),
                Some(codes) => Sm90End::Codes(codes),
                None => Sm90End::Numbers,
            };
            let launch = |groups: Option<Sm90Groups<'_>>| {
                let call = Sm90Call {
                    config,
                    m,
                    n,
                    k,
                    a: Sm90Operand { codes: &a.codes, scales: &a.scales },
                    b: Sm90Operand { codes: &b.codes, scales: &b.scales },
                    layout: Sm90Scales::Blocks,
                    d,
                    d_stride,
                    d_type,
                    alpha: *alpha,
                    beta: 0.0,
                    bias: bias.as_ref().map(|(span, dtype)| (span, *dtype)),
                    activation: *activation,
                    residual: None,
                    groups,
                    end,
                };
                kernels.sm90_product(queue, &call, &mut Sm90Maps::default())
            };
            match groups {
                None => launch(None)?,
                Some((groups, rows)) => rows.with_places(*groups, &order, |places| launch(Some(places.into())))?,
            }
        }
        if let FusedOut::Quantized(d) = &mut args.d {
            d.set_basis(Basis::Plain);
            d.derive_again(self)?;
        }
        Ok(())
    }
}

/// Refuses a D that overlaps what other tiles still read.
fn check_apart(name: &str, read: &QuantSpans<'_>, written: &Span<'_>) -> Result<()> {
    for span in [&read.codes, &read.scales] {
        if span.overlaps(written) {
            return Err(Error::shape(
                "D",
                format!("{} bytes at {:#x}", written.bytes, written.address),
                format!(
                    "must not overlap {name}, {} bytes at {:#x}, which other tiles still read",
                    span.bytes, span.address
                ),
                "pass memory of its own",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_lie_apart_from_what_is_read() {
        let span = |address, bytes| Span::unguarded(address, bytes);
        let read = QuantSpans { codes: span(4096, 1024), scales: span(8192, 64), block_scales: span(0, 0) };
        for (address, bytes) in [(5120, 3072), (0, 4096), (8256, 10), (5000, 0)] {
            check_apart("A", &read, &span(address, bytes)).unwrap();
        }
        for (address, bytes) in [(5119, 1), (0, 4097), (8000, 193), (4096, 1024)] {
            let error = check_apart("A", &read, &span(address, bytes)).unwrap_err().to_string();
            assert!(error.contains("must not overlap A") && error.contains(&format!("{address:#x}")), "{error}");
        }
    }
}
