//! Launches for what products read of a source that is computed: `kernels/fused/produced_*.cu`.

use super::Kernels;
use super::cast_args::CastSource;
use super::cast_call::{CastFrom, CastValues};
use super::launch::{Blocks, ByInput, Kernel, THREADS, enqueue};
use super::module::Modules;
use super::mx::{MxRule, warp_grid};
use super::nvfp4::KernelRule;
use super::nvfp4_row_launch::threads_of_row;
use super::operand::{Factor, Output, address, check_floats, check_output, format_code, words};
use crate::error::{Error, Result};
use crate::format::{Fp8Format, MxScaleRule, Nvfp4Recipe, Scheme};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// The kernels of these files.
pub(super) struct TargetKernels {
    tensor: ByInput,
    mx: ByInput,
    /// For plain block scales, then for 4over6; of each first for rows too long for registers, then for rows held there.
    nvfp4: [[ByInput; 2]; 2],
}

impl TargetKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let nvfp4 = modules.file("fused/produced_nvfp4")?;
        let rows = |rule: &str| -> Result<[ByInput; 2]> {
            let kernel = |which: &str| nvfp4.by_input(&format!("quantize_nvfp4_{rule}_{which}_produced"));
            Ok([kernel("long")?, kernel("held")?])
        };
        Ok(Self {
            tensor: modules.file("fused/produced_tensor")?.by_input("quantize_fp8_tensor_produced")?,
            mx: modules.file("fused/produced_mx")?.by_input("quantize_mx_produced")?,
            nvfp4: [rows("plain")?, rows("choice")?],
        })
    }
}

fn not_of_these(what: &str) -> Error {
    Error::unsupported(what, "its kernels do not know it", "report it: it was to be refused before")
}

/// That codes, scales and an amax lie apart from the source, from the number that the scale is given by, and from each other.
fn check_produced_apart(
    from: &CastFrom<'_>,
    given: Option<Factor<'_>>,
    out: &Output<'_>,
    amax: Option<&Span<'_>>,
) -> Result<()> {
    let results = [("codes", *out.codes), ("scales", *out.scales), ("block scales", *out.block_scales)];
    let given = given.map(|given| words("given scale", given.span(), 1));
    let amax = amax.map(|amax| words("amax", amax, 1));
    from.check_apart(given.into_iter(), results.into_iter().chain(amax))
}

/// Functions that return a launch have checked and loaded everything before, so that another may be enqueued first; the spans must be borrowed until it
/// is called.
impl Kernels {
    /// The kernel for the source, whose `rows` rows become `out`, that `choose` gives.
    fn of_produced(
        &self,
        stream: &Queue,
        from: &CastFrom<'_>,
        (scheme, rows): (Scheme, usize),
        out: &Output<'_>,
        choose: impl FnOnce(&TargetKernels) -> &ByInput,
    ) -> Result<Kernel> {
        let CastValues::Produced { dtype, .. } = from.values else {
            return Err(not_of_these("a source that is not computed, in a kernel for those that are"));
        };
        from.check(rows)?;
        check_output(out, scheme, rows, from.cols)?;
        if !from.cols.is_multiple_of(16) || rows > u32::MAX as usize || from.cols > i32::MAX as usize {
            return Err(Error::shape(
                "source",
                format!("{rows} x {}", from.cols),
                "must have a multiple of 16 columns and fewer than 2^31 of each",
                "pad the columns with zeros",
            ));
        }
        choose(&self.fused(stream)?.targets).of(dtype, from.is_aligned())
    }

    /// `code = sat(fl(x * encode))` with one given factor; raises `amax` to `max |x|` where wanted.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn quantize_produced_tensor<'k>(
        &'k self,
        stream: &'k Queue,
        from: &CastFrom<'_>,
        format: Fp8Format,
        factor: Factor<'_>,
        rows: usize,
        out: &Output<'_>,
        amax: Option<&Span<'_>>,
    ) -> Result<impl FnOnce() -> Result<()> + use<'k>> {
        let kernel = self.of_produced(stream, from, (Scheme::Fp8Tensor(format), rows), out, |k| &k.tensor)?;
        check_floats("amax", amax, 1)?;
        check_produced_apart(from, Some(factor), out, amax)?;
        let (factor, kind) = factor.of_fp8()?;
        // Eight warps of 4 rows x 128 columns; an empty matrix still has a scale.
        let warps = rows.div_ceil(4) * from.cols.div_ceil(128);
        let blocks = Blocks::new((warps.div_ceil(8).max(1), 1), THREADS);
        blocks.checked()?;
        let (source, cols, code) = (CastSource::new(from), from.cols as u32, format_code(format));
        let (codes, scales, amax) = (out.codes.address, out.scales.address, address(amax));
        Ok(move || enqueue!(stream, kernel, blocks, source, rows as u32, cols, code, factor, kind, codes, scales, amax))
    }

    /// MXFP8 and MXFP4 along rows.
    pub(crate) fn quantize_produced_mx<'k>(
        &'k self,
        stream: &'k Queue,
        from: &CastFrom<'_>,
        (scheme, rounding): (Scheme, MxScaleRule),
        rows: usize,
        out: &Output<'_>,
    ) -> Result<impl FnOnce() -> Result<()> + use<'k>> {
        let kernel = self.of_produced(stream, from, (scheme, rows), out, |k| &k.mx)?;
        check_produced_apart(from, None, out, None)?;
        let blocks = (rows > 0 && from.cols > 0).then(|| Blocks::new(warp_grid(rows, from.cols, 128), THREADS));
        if let Some(blocks) = blocks {
            blocks.checked()?;
        }
        let (source, cols) = (CastSource::new(from), from.cols as u32);
        let rule = MxRule::new(rounding, scheme.spec().format);
        let (codes, block_scales) = (out.codes.address, out.block_scales.address);
        Ok(move || match blocks {
            Some(blocks) => enqueue!(stream, kernel, blocks, source, rows as u32, cols, rule, codes, block_scales),
            None => Ok(()),
        })
    }

    /// NVFP4 along rows with a given second level, or with one of each row that is found in the same pass (`given` is `None`).
    pub(crate) fn quantize_produced_nvfp4<'k>(
        &'k self,
        stream: &'k Queue,
        from: &CastFrom<'_>,
        recipe: Nvfp4Recipe,
        given: Option<Factor<'_>>,
        rows: usize,
        out: &Output<'_>,
    ) -> Result<impl FnOnce() -> Result<()> + use<'k>> {
        let (scheme, cols) = (recipe.scheme(), from.cols);
        check_produced_apart(from, given, out, None)?;
        let given = given.map(|given| given.of_nvfp4(1)).transpose()?;
        let rule = KernelRule::new(recipe, given.map_or(0, |(_, kind)| kind));
        let (Some(place), true) = (rule.along_rows(), given.is_some() == (scheme == Scheme::Nvfp4)) else {
            return Err(not_of_these("this recipe for NVFP4 of a source"));
        };
        let choice = usize::from(place > 0);
        // Two blocks of 16 in each thread (`row_threads` of the kernel).
        let threads = threads_of_row(cols, 2);
        let held = usize::from(threads <= 512);
        let kernel = self.of_produced(stream, from, (scheme, rows), out, |k| &k.nvfp4[choice][held])?;
        // A block for each row and each of padding; an empty matrix still has a second level that is given.
        let lines = rows.next_multiple_of(128).max(usize::from(given.is_some()));
        let blocks = (lines > 0).then(|| Blocks::new((lines, 1), threads.min(512) as u32));
        if let Some(blocks) = blocks {
            blocks.checked()?;
        }
        let (source, number) = (CastSource::new(from), given.map_or(0, |(number, _)| number));
        let (rows, cols) = (rows as u32, cols as u32);
        let (codes, block_scales, scales) = (out.codes.address, out.block_scales.address, out.scales.address);
        Ok(move || match blocks {
            Some(blocks) => {
                enqueue!(stream, kernel, blocks, source, rows, cols, rule, number, codes, block_scales, scales)
            }
            None => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::DType;
    use crate::gpu::device::memory::assert_apart;
    use crate::gpu::kernels::ProducerCall;

    #[test]
    fn codes_scales_and_an_amax_lie_apart_from_source_and_given_scale() {
        let names = ["source", "counts of the clamp", "given scale", "codes", "scales", "block scales", "amax"];
        let check = |at: &[Span<'_>]| {
            let producer = ProducerCall { clamp: Some(1.0), counts: Some(&at[1]), ..ProducerCall::default() };
            let values = CastValues::Produced { dtype: DType::Bf16, row_stride: 32, producer };
            let from = CastFrom { x: &at[0], values, rows: 1, cols: 16, index: None };
            let out = Output { codes: &at[3], scales: &at[4], block_scales: &at[5] };
            check_produced_apart(&from, Some(Factor::Decode(&at[2])), &out, Some(&at[6]))
        };
        // The counts are written, too: they come last here.
        let order = [0, 2, 3, 4, 5, 6, 1];
        assert_apart(&order.map(|i| names[i]), 5, 64, |at| {
            let mut placed = [Span::unguarded(0, 0); 7];
            order.iter().zip(at).for_each(|(i, span)| placed[*i] = *span);
            check(&placed)
        });
    }
}
