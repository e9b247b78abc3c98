//! [`Call`]: the operands of one call as addresses on the handle's stream, for the steps of a plan to read.

use crate::error::{Error, Result};
use crate::format::{DType, Fp8Recipe, GivenScale};

use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::{Order, Queue};
use crate::gpu::gemm::args::{ArgA, GemmArgs};
use crate::gpu::gemm::desc::{Accumulate, GemmDesc};
use crate::gpu::gemm::formulation::Formulation;
use crate::gpu::gemm::outline::Outline;
use crate::gpu::gemm::sum::{Target, ValueSource};
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{MatRef, QuantMatrix, QuantSpans};

/// Alignment that plans assume of every operand, and `execute` asks for.
pub(crate) const ALIGNMENT: u32 = 16;

/// One call of a plan.
pub(crate) struct Call<'s> {
    pub(crate) handle: &'s Handle,
    pub(crate) queue: &'s Queue,
    pub(crate) desc: &'s GemmDesc,
    /// In scratch where the call quantizes it.
    pub(crate) a: Spans<'s>,
    pub(crate) a_source: Option<SourceOfA<'s>>,
    pub(crate) b: Spans<'s>,
    pub(crate) d: Span<'s>,
    pub(crate) bias: Option<(Span<'s>, DType)>,
    pub(crate) residual: Option<(Span<'s>, usize, DType)>,
    pub(crate) out_encode: Option<Span<'s>>,
    pub(crate) amax: Option<Span<'s>>,
    pub(crate) alpha: f32,
    /// 0 where D's old value is not asked for.
    pub(crate) beta: f32,
    pub(crate) scratch: ScratchSpans<'s>,
    /// What cuBLASLt's algorithm may use.
    pub(crate) workspace: Span<'s>,
}

/// The parts of [`Scratch`](crate::gpu::gemm::scratch::Scratch); those that a plan does not have are empty.
pub(crate) struct ScratchSpans<'s> {
    pub(crate) sum: Span<'s>,
    pub(crate) a: Span<'s>,
    pub(crate) b: Span<'s>,
    pub(crate) factors: Span<'s>,
    pub(crate) few_rows: Span<'s>,
}

impl<'s> ScratchSpans<'s> {
    /// With codes and scales of an A that the call quantizes.
    pub(crate) fn of(outline: &Outline, scratch: Span<'s>) -> (Self, [Span<'s>; 2]) {
        let [sum, a, b, factors, codes, scales, few_rows] =
            outline.scratch.parts().map(|(at, bytes)| scratch.slice(at, bytes));
        (Self { sum, a, b, factors, few_rows }, [codes, scales])
    }
}

/// An A that the call quantizes.
pub(crate) struct SourceOfA<'s> {
    pub(crate) x: Span<'s>,
    pub(crate) dtype: DType,
    pub(crate) row_stride: usize,
    pub(crate) recipe: Fp8Recipe,
    pub(crate) scale: Option<GivenScale<Span<'s>>>,
}

/// The addresses of one operand.
#[derive(Clone, Copy)]
pub(crate) struct Spans<'s> {
    /// Codes, or plain numbers.
    pub(crate) numbers: Span<'s>,
    pub(crate) block_scales: Option<Span<'s>>,
    pub(crate) scales: Option<Span<'s>>,
}

impl<'s> Spans<'s> {
    fn of_plain<'q: 's>(a: &'q MatRef<'_>, order: &'s Order<'q>) -> Result<Self> {
        Ok(Self { numbers: a.data().at(order)?, block_scales: None, scales: None })
    }

    /// A, quantized.
    pub(crate) fn of_codes<'q: 's>(q: &'q QuantMatrix, order: &'s Order<'q>) -> Result<Self> {
        q.check_published("A of a product")?;
        Ok(q.read_in_order(order)?.into())
    }

    /// B, whose codes lie as the plan knows ([`GemmDesc::b_order`]): with what the plan reads of what the matrix derives, its repeated scales, or its values in the place of codes.
    pub(crate) fn of_b<'q: 's>(q: &'q QuantMatrix, outline: &Outline, order: &'s Order<'q>) -> Result<Self> {
        let mut spans = Self::from(q.read_in_order(order)?);
        if outline.formulation == Formulation::RepeatedScales {
            spans.scales = Some(q.repeated_scales().ok_or_else(not_prepared)?.read(order)?);
        }
        if let Some(values) = outline.sum.values.filter(|values| values.b == ValueSource::Given) {
            let dtype = values.dtype;
            spans.numbers = q.kept_values(dtype).ok_or_else(|| not_kept(dtype))?.read(order)?;
            spans.block_scales = None;
        }
        Ok(spans)
    }
}

impl<'s> From<QuantSpans<'s>> for Spans<'s> {
    fn from(QuantSpans { codes, scales, block_scales }: QuantSpans<'s>) -> Self {
        let present = |span: Span<'s>| (span.bytes > 0).then_some(span);
        Self { numbers: codes, block_scales: present(block_scales), scales: present(scales) }
    }
}

/// Takes the address of every operand, checks alignments, and enqueues what `steps` does with them.
pub(crate) fn with_addresses(
    handle: &Handle,
    desc: &GemmDesc,
    outline: &Outline,
    args: &mut GemmArgs<'_>,
    steps: impl FnOnce(&Call<'_>) -> Result<()>,
) -> Result<()> {
    let GemmArgs { a, b, d, bias, residual, alpha, beta, out_encode, amax, .. } = args;
    let (a, queue): (&ArgA<'_>, _) = (a, handle.queue());
    let order = queue.order();
    // Within the order: no launch that writes them comes before their use. Products derive nothing of A.
    if outline.reads_derived() {
        b.freshen(handle)?;
    }
    let (d_bytes, residual_bytes) = (d.extent_bytes(), residual.as_ref().map_or(0, MatRef::extent_bytes));
    let source_bytes = if let ArgA::Quantize(x, ..) = a { x.extent_bytes() } else { 0 };
    let (scratch, [codes, scales]) = ScratchSpans::of(outline, handle.scratch(outline.scratch.bytes())?);
    let call = Call {
        handle,
        queue,
        desc,
        a: match a {
            ArgA::Quantized(a) => Spans::of_codes(a, &order)?,
            ArgA::Plain(a) => Spans::of_plain(a, &order)?,
            ArgA::Quantize(..) => Spans { numbers: codes, block_scales: None, scales: Some(scales) },
        },
        a_source: match a {
            ArgA::Quantized(_) | ArgA::Plain(_) => None,
            ArgA::Quantize(x, recipe, scale) => Some(SourceOfA {
                x: x.data().at(&order)?,
                dtype: x.dtype(),
                row_stride: x.row_stride(),
                recipe: *recipe,
                scale: match scale {
                    None => None,
                    Some(scale) => Some(scale.with_number(scale.number().at(&order)?)),
                },
            }),
        },
        b: Spans::of_b(b, outline, &order)?,
        d: d.data_mut().at(&order)?,
        bias: bias.as_ref().map(|v| Ok::<_, Error>((v.data().at(&order)?, v.dtype()))).transpose()?,
        residual: residual
            .as_ref()
            .map(|r| Ok::<_, Error>((r.data().at(&order)?, r.row_stride(), r.dtype())))
            .transpose()?,
        out_encode: out_encode.as_ref().map(|encode| encode.at(&order)).transpose()?,
        amax: amax.as_mut().map(|amax| amax.at(&order)).transpose()?,
        alpha: *alpha,
        beta: beta.unwrap_or(0.0),
        scratch,
        workspace: handle.workspace(),
    };
    if let Some(source) = &call.a_source {
        // Some ways store D while others of its rows still read A.
        let (x, d) = (source.x.slice(0, source_bytes), call.d.slice(0, d_bytes));
        check_apart("A", &[&x], &d, "which the call quantizes")?;
    }
    if let Some((residual, ..)) = &call.residual {
        let residual = residual.slice(0, residual_bytes);
        check_apart(
            "the residual",
            &[&residual],
            &call.d.slice(0, d_bytes),
            "which some ways read after they stored D",
        )?;
    }
    call.check_alignments(outline)?;
    steps(&call)
}

impl Call<'_> {
    /// Refuses operands that kernels cannot load from, or store to.
    pub(crate) fn check_alignments(&self, outline: &Outline) -> Result<()> {
        check_alignment("A", self.a_source.as_ref().map_or(&self.a.numbers, |source| &source.x))?;
        check_alignment("B", &self.b.numbers)?;
        // Our kernel of few rows stores single numbers, and checks its operands itself.
        if outline.sum.target == Target::D && outline.formulation != Formulation::SmallM {
            check_alignment("D", &self.d)?;
        }
        Ok(())
    }

    /// Alpha and beta of the product: no beta where D's old value is left to the epilogue kernel.
    pub(crate) fn factors(&self, accumulate: Accumulate) -> (f32, f32) {
        match accumulate {
            Accumulate::Add => (self.alpha, self.beta),
            Accumulate::Replace => (self.alpha, 0.0),
        }
    }
}

/// Refuses, in the caller's words, an address that cuBLASLt's kernels cannot load from.
pub(crate) fn check_alignment(operand: &str, span: &Span<'_>) -> Result<()> {
    if span.address.is_multiple_of(u64::from(ALIGNMENT)) {
        return Ok(());
    }
    Err(Error::Alignment {
        operand: operand.to_string(),
        address: span.address,
        required: u64::from(ALIGNMENT),
        remedy: "begin at an allocation or at a multiple of 16 bytes in it, or copy".to_string(),
    })
}

/// Refuses a D that has a byte of `read`, and says why that may not be.
pub(crate) fn check_apart(operand: &str, read: &[&Span<'_>], d: &Span<'_>, why: &str) -> Result<()> {
    let Some(read) = read.iter().find(|read| read.overlaps(d)) else { return Ok(()) };
    Err(Error::shape(
        "D",
        format!("{} bytes at {:#x}", d.bytes, d.address),
        format!("must not overlap {operand}, {} bytes at {:#x}, {why}", read.bytes, read.address),
        "pass memory of its own",
    ))
}

fn not_prepared() -> Error {
    Error::unsupported(
        "executing with the repeated-scales formulation",
        "B has no repeated scales yet, and execute allocates nothing",
        "call GemmPlan::prepare with this B once, before any graph capture",
    )
}

fn not_kept(dtype: DType) -> Error {
    Error::unsupported(
        format!("executing a plan for a B that keeps {dtype} values"),
        "B keeps none, and execute allocates nothing",
        "call QuantMatrix::keep_dequantized, or plan without kept values",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_lie_apart_from_what_is_read() {
        let span = |address, bytes| Span::unguarded(address, bytes);
        let (codes, scales, none) = (span(4096, 1024), span(8192, 64), span(0, 0));
        let check =
            |address, bytes| check_apart("A", &[&codes, &scales, &none], &span(address, bytes), "which is read");
        for (address, bytes) in [(5120, 3072), (0, 4096), (8256, 10), (5000, 0)] {
            check(address, bytes).unwrap();
        }
        for (address, bytes) in [(5119, 1), (0, 4097), (8000, 193), (4096, 1024)] {
            let error = check(address, bytes).unwrap_err().to_string();
            assert!(error.contains("must not overlap A") && error.contains(&format!("{address:#x}")), "{error}");
            assert!(error.contains("which is read"), "{error}");
        }
    }
}
