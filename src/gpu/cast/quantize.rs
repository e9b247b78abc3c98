//! Quantizers and dequantizers on the device: `Handle::{quantize, quantize_into, dequantize_into, amax_into, ...}`.
//!
//! The bytes are those of [`crate::reference`], for every recipe, input type and shape.

use super::apart::{Quantizing, check_dequantized};
use crate::error::{Error, Result};
use crate::format::pair::{K_MULTIPLE, check_quantize_cols};
use crate::format::{
    Basis, DType, Fp8Format, Fp8Granularity, Fp8Recipe, GivenScale, Mxfp4Recipe, Mxfp8Recipe, Nvfp4Recipe, Recipe,
    Scheme,
};
use crate::gpu::device::memory::{DeviceBuffer, DeviceBytes, DeviceBytesMut, Span};
use crate::gpu::device::stream::Capture;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{BlockCodes, Factor, Input, Kernels, Output, check_floats};
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix, QuantSpans};

/// Which operands a quantizer writes.
///
/// The transposed matrix is `Xᵀ` quantized with the same recipe: its groups run along the rows of X. It is the K-major
/// operand of the backward products. Its columns are the rows of X: to FP8 any number, which zeros fill up to a multiple of 16; to the
/// other schemes a multiple of 16.
pub enum QuantizeTo<'a> {
    /// X.
    Plain(&'a mut QuantMatrix),
    /// `Xᵀ`.
    Transposed(&'a mut QuantMatrix),
    /// X and `Xᵀ`, the input read once (twice for per-row scales).
    Both(&'a mut QuantMatrix, &'a mut QuantMatrix),
}

impl Handle {
    /// Quantizes X: `code = sat(fl(x * encode))`, the words and factors as [`Recipe`] says. Allocates the result; waits for nothing.
    ///
    /// The first use of a recipe in a process loads its kernels: milliseconds, or up to a minute where NVRTC compiles them
    /// (its result is kept on disk).
    ///
    /// X: BF16, F16 or F32, any number of rows, columns a positive multiple of 16, rows at any stride.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`]; [`Error::Alignment`] for a matrix in one of cudarc's views, whose address a call learns, that begins inside an element; [`Error::Driver`] if there is not enough
    /// memory; [`Error::Unsupported`] inside graph capture.
    pub fn quantize(&self, x: &MatRef<'_>, recipe: impl Into<Recipe>) -> Result<QuantMatrix> {
        let recipe = recipe.into();
        check_input(x)?;
        let mut out = QuantMatrix::zeros(self, recipe.scheme(), x.rows(), x.cols())?;
        self.quantize_into(x, recipe, QuantizeTo::Plain(&mut out))?;
        Ok(out)
    }

    /// Quantizes X and `Xᵀ`. Allocates both results; waits for nothing. A first use loads kernels, as in [`Handle::quantize`].
    ///
    /// # Errors
    /// As [`Handle::quantize`]; [`Error::Shape`] if X's rows are no multiple of 16 and the scheme is not FP8.
    pub fn quantize_both(&self, x: &MatRef<'_>, recipe: impl Into<Recipe>) -> Result<(QuantMatrix, QuantMatrix)> {
        let recipe = recipe.into();
        check_input(x)?;
        let mut out = QuantMatrix::zeros(self, recipe.scheme(), x.rows(), x.cols())?;
        let mut transposed = QuantMatrix::zeros(self, recipe.scheme(), x.cols(), transposed_cols(recipe, x.rows()))?;
        self.quantize_into(x, recipe, QuantizeTo::Both(&mut out, &mut transposed))?;
        Ok((out, transposed))
    }

    /// Quantizes X into matrices that exist. Allocates nothing and waits for nothing: safe inside graph capture.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] if X or a target does not fit the recipe; [`Error::Alignment`] as [`Handle::quantize`].
    pub fn quantize_into(&self, x: &MatRef<'_>, recipe: impl Into<Recipe>, to: QuantizeTo<'_>) -> Result<()> {
        let recipe = recipe.into();
        check_input(x)?;
        let (mut plain, mut transposed) = check_targets(x, recipe, to)?;
        // No launch of another thread comes between the codes and what is derived from them.
        let _turn = self.queue().turn();
        match recipe {
            Recipe::Fp8(recipe) => self.quantize_fp8(x, recipe, [&mut plain, &mut transposed], None)?,
            _ => self.quantize_blocks(x, recipe, None, [&mut plain, &mut transposed])?,
        }
        self.rewritten(recipe, [plain, transposed])
    }

    /// [`Handle::quantize_into`] of both forms by an FP8 recipe, and in the same pass the column sums of each 128 rows of X, in f64.
    pub(crate) fn quantize_summing_into(
        &self,
        x: &MatRef<'_>,
        recipe: Recipe,
        (plain, transposed): (&mut QuantMatrix, &mut QuantMatrix),
        sums: &DeviceBuffer,
    ) -> Result<()> {
        check_input(x)?;
        let (mut plain, mut transposed) = check_targets(x, recipe, QuantizeTo::Both(plain, transposed))?;
        let Recipe::Fp8(fp8) = recipe else {
            return Err(Error::unsupported(
                format!("column sums beside a cast to {}", recipe.scheme()),
                "the kernels of FP8 have them",
                "report it: a layer asked for it",
            ));
        };
        let _turn = self.queue().turn();
        self.quantize_fp8(x, fp8, [&mut plain, &mut transposed], Some(sums))?;
        self.rewritten(recipe, [plain, transposed])
    }

    /// What is said of matrices that were just written, and what is derived from them.
    pub(crate) fn rewritten(&self, recipe: Recipe, targets: [Option<&mut QuantMatrix>; 2]) -> Result<()> {
        targets.into_iter().flatten().try_for_each(|out| {
            out.set_basis(recipe.basis());
            out.derive_again(self)
        })
    }

    /// Refuses to change the basis of a matrix that a graph writes, or will: its launches do not say which was the last to. And of
    /// one that a graph reads: its launches do not ask for the basis.
    pub(crate) fn check_basis(&self, basis: Basis, out: &QuantMatrix) -> Result<()> {
        let same = out.basis() == basis;
        if same || !(out.used_by_graphs() || self.queue().order().capture != Capture::No) {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("quantizing to the basis {basis:?} into a matrix in the basis {:?}", out.basis()),
            "a captured graph uses the matrix, and its launches neither change a basis nor ask for one",
            "take a matrix of its own for each basis, in it from the start (QuantMatrix::assume_basis)",
        ))
    }

    /// The schemes with FP32 scales alone; targets were checked.
    fn quantize_fp8(
        &self,
        x: &MatRef<'_>,
        recipe: Fp8Recipe,
        targets: [&mut Option<&mut QuantMatrix>; 2],
        sums: Option<&DeviceBuffer>,
    ) -> Result<()> {
        let stream = self.queue();
        let order = stream.order();
        let sums = sums.map(|sums| sums.write(&order)).transpose()?;
        let sums = sums.as_ref();
        let source = x.data().at(&order)?;
        let input = input(x, &source);
        let [plain, transposed] = targets;
        for out in [&*plain, &*transposed].into_iter().flatten() {
            self.check_basis(Basis::Plain, out)?;
        }
        let plain_parts = plain.as_mut().map(|out| out.write(&order)).transpose()?;
        let plain = plain_parts.as_ref().map(output);
        let transposed_parts = transposed.as_mut().map(|out| out.write(&order)).transpose()?;
        let transposed = transposed_parts.as_ref().map(output);
        let (out, out_t) = (plain_parts.as_ref(), transposed_parts.as_ref());
        Quantizing { out, transposed: out_t, ..Quantizing::of(read_of(x, &source)) }.check()?;

        let kernels = self.kernels();
        let empty = x.rows() == 0 || x.cols() == 0;
        match (recipe.granularity, &plain, &transposed) {
            (_, Some(out), None) => self.enqueue_fp8(&input, recipe, out),
            (Fp8Granularity::Tensor, plain, transposed) => {
                let (state, factor) = self.amax_state();
                kernels.amax_tensor(stream, &input, recipe, &state, Some(&factor), None)?;
                let factor = Factor::Computed(&factor);
                if empty {
                    // Either has a scale all the same.
                    let mut both = [plain, transposed].into_iter().flatten();
                    return both
                        .try_for_each(|out| kernels.quantize_tensor(stream, &input, recipe.format, factor, out, None));
                }
                let (factor, plain, transposed) = (Some(factor), plain.as_ref(), transposed.as_ref());
                kernels.quantize_tiles(stream, &input, recipe, factor, [None; 2], plain, transposed, sums)
            }
            // Without elements there are no groups, but per-row scales exist for every row of either.
            (Fp8Granularity::Row, plain, transposed) if empty => {
                let turned = Input { rows: x.cols(), cols: 0, row_stride: 0, ..input };
                for (x, out) in [(&input, plain), (&turned, transposed)] {
                    if let Some(out) = out
                        && x.rows > 0
                    {
                        kernels.quantize_row(stream, x, recipe, out)?;
                    }
                }
                Ok(())
            }
            _ if empty => Ok(()),
            (Fp8Granularity::Row, plain, transposed) => {
                let amax = self.workspace();
                let (rows, cols) = (x.rows() * 4, x.cols() * 4);
                if rows + cols > amax.bytes {
                    return Err(too_many_maxima(x.rows(), x.cols(), amax.bytes / 4));
                }
                kernels.zero(stream, &amax, rows + cols)?;
                let (row_amax, col_amax) = (amax.slice(0, rows), amax.slice(rows, cols));
                let row_amax = plain.as_ref().map(|_| &row_amax);
                let col_amax = transposed.as_ref().map(|_| &col_amax);
                kernels.amax_row_column(stream, &input, row_amax, col_amax)?;
                let amax = [row_amax, col_amax];
                kernels.quantize_tiles(stream, &input, recipe, None, amax, plain.as_ref(), transposed.as_ref(), sums)
            }
            (Fp8Granularity::Group1x128 | Fp8Granularity::Group128x128, plain, transposed) => kernels.quantize_tiles(
                stream,
                &input,
                recipe,
                None,
                [None; 2],
                plain.as_ref(),
                transposed.as_ref(),
                sums,
            ),
        }
    }

    /// Enqueues a cast with FP32 scales that transposes nothing, targets checked by the kernels. Allocates nothing and waits for nothing.
    pub(crate) fn enqueue_fp8(&self, x: &Input<'_>, recipe: Fp8Recipe, out: &Output<'_>) -> Result<()> {
        let (stream, kernels) = (self.queue(), self.kernels());
        match recipe.granularity {
            Fp8Granularity::Tensor if kernels.fits_once(x) => {
                kernels.quantize_tensor_once(stream, x, recipe, &self.meeting_place(), out)
            }
            Fp8Granularity::Tensor => {
                let (state, factor) = self.amax_state();
                kernels.amax_tensor(stream, x, recipe, &state, Some(&factor), None)?;
                kernels.quantize_tensor(stream, x, recipe.format, Factor::Computed(&factor), out, None)
            }
            // Without elements there are no groups, but per-row scales exist for every row.
            _ if x.rows == 0 || (x.cols == 0 && recipe.granularity != Fp8Granularity::Row) => Ok(()),
            Fp8Granularity::Row => kernels.quantize_row(stream, x, recipe, out),
            Fp8Granularity::Group1x128 => kernels.quantize_1x128(stream, x, recipe, out),
            Fp8Granularity::Group128x128 => kernels.quantize_128x128(stream, x, recipe, out),
        }
    }

    /// Quantizes X as NVFP4 with a given second level, in the arithmetic of [`Nvfp4Rule`](crate::Nvfp4Rule). Allocates nothing
    /// and waits for nothing.
    ///
    /// Values above what the second level was made for saturate. The recipe's scheme is [`Scheme::Nvfp4`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] if X, a target or the number does not fit; [`Error::Alignment`] unless the number begins at a multiple of 4 bytes; [`Error::Unsupported`] for another scheme.
    pub fn quantize_nvfp4_into(
        &self,
        x: &MatRef<'_>,
        recipe: impl Into<Recipe>,
        scale: &GivenScale<DeviceBytes<'_>>,
        to: QuantizeTo<'_>,
    ) -> Result<()> {
        let recipe = recipe.into();
        check_input(x)?;
        if recipe.scheme() != Scheme::Nvfp4 {
            return Err(Error::unsupported(
                format!("a given second level for {}", recipe.scheme()),
                "it is one number for a whole nvfp4 matrix",
                "use quantize_into, or the scheme nvfp4",
            ));
        }
        let (mut plain, mut transposed) = check_targets(x, recipe, to)?;
        let _turn = self.queue().turn();
        self.quantize_blocks(x, recipe, Some(scale), [&mut plain, &mut transposed])?;
        self.rewritten(recipe, [plain, transposed])
    }

    /// The block-scaled schemes; targets were checked.
    fn quantize_blocks(
        &self,
        x: &MatRef<'_>,
        recipe: Recipe,
        given: Option<&GivenScale<DeviceBytes<'_>>>,
        targets: [&mut Option<&mut QuantMatrix>; 2],
    ) -> Result<()> {
        let stream = self.queue();
        let order = stream.order();
        let source = x.data().at(&order)?;
        let input = input(x, &source);
        let [plain, transposed] = targets;
        for out in [&*plain, &*transposed].into_iter().flatten() {
            self.check_basis(recipe.basis(), out)?;
        }
        let plain_parts = plain.as_mut().map(|out| out.write(&order)).transpose()?;
        let plain = plain_parts.as_ref().map(output);
        let transposed_parts = transposed.as_mut().map(|out| out.write(&order)).transpose()?;
        let transposed = transposed_parts.as_ref().map(output);
        let number = given.map(|given| given.number().at(&order)).transpose()?;
        let apart = Quantizing { given: number.as_ref(), ..Quantizing::of(read_of(x, &source)) };
        Quantizing { out: plain_parts.as_ref(), transposed: transposed_parts.as_ref(), ..apart }.check()?;
        let (out, out_t) = (plain.as_ref(), transposed.as_ref());
        let kernels = self.kernels();
        let recipe = match recipe {
            Recipe::Nvfp4(recipe) => recipe,
            Recipe::Mxfp8(_) | Recipe::Mxfp4(_) if x.rows() == 0 || x.cols() == 0 => return Ok(()),
            Recipe::Mxfp8(Mxfp8Recipe { rule, .. }) | Recipe::Mxfp4(Mxfp4Recipe { rule }) => {
                return kernels.quantize_mx(stream, &input, (recipe.scheme(), rule), out, out_t);
            }
            Recipe::Fp8(_) => {
                return Err(Error::unsupported(
                    format!("{} in a kernel for block scales", recipe.scheme()),
                    "it has FP32 scales alone",
                    "report it: it was to be quantized before",
                ));
            }
        };
        if let (Some(given), Some(number)) = (given, &number) {
            let given = level(given, number);
            return kernels.quantize_nvfp4(stream, &input, recipe, [Some(given); 2], false, out, out_t);
        }
        if recipe.scheme() == Scheme::Nvfp4Row {
            return self.quantize_nvfp4_row(&input, recipe, out, out_t);
        }
        let (state, places) = self.amax_state();
        let (amax, amax_t) = (places.slice(0, 4), places.slice(4, 4));
        if recipe.options().basis == Basis::Plain {
            // The rule of the amax kernel's factors is not used.
            let rule = Fp8Recipe::new(Fp8Granularity::Tensor, Fp8Format::E4M3);
            kernels.amax_tensor(stream, &input, rule, &state, None, Some(&amax))?;
            let given = Some(Factor::Amax(&amax));
            return kernels.quantize_nvfp4(stream, &input, recipe, [given; 2], true, out, out_t);
        }
        kernels.zero(stream, &places, 8)?;
        if x.rows() > 0 && x.cols() > 0 {
            kernels.amax_hadamard(stream, &input, out.map(|_| &amax), out_t.map(|_| &amax_t))?;
        }
        let given = [Some(Factor::Amax(&amax)), Some(Factor::Amax(&amax_t))];
        kernels.quantize_nvfp4(stream, &input, recipe, given, true, out, out_t)
    }

    /// NVFP4 with row scales: in one pass where nothing is transposed, otherwise with maxima in the workspace.
    fn quantize_nvfp4_row(
        &self,
        input: &Input<'_>,
        recipe: Nvfp4Recipe,
        out: Option<&Output<'_>>,
        out_t: Option<&Output<'_>>,
    ) -> Result<()> {
        let (stream, kernels) = (self.queue(), self.kernels());
        if input.rows == 0 || input.cols == 0 {
            // Rows without elements have amax 0, and so has their scale.
            for (out, rows) in [(out, input.rows), (out_t, input.cols)] {
                out.map_or(Ok(()), |out| kernels.zero(stream, out.scales, rows * 4))?;
            }
            return Ok(());
        }
        if out_t.is_none() && Kernels::row_amax_in_pass(recipe) {
            return kernels.quantize_nvfp4(stream, input, recipe, [None; 2], false, out, None);
        }
        let amax = self.workspace();
        let (rows, cols) = (input.rows * 4, input.cols * 4);
        if rows + cols > amax.bytes {
            return Err(too_many_maxima(input.rows, input.cols, amax.bytes / 4));
        }
        kernels.zero(stream, &amax, rows + cols)?;
        let (row_amax, col_amax) = (amax.slice(0, rows), amax.slice(rows, cols));
        kernels.amax_row_column(stream, input, out.map(|_| &row_amax), out_t.map(|_| &col_amax))?;
        let given = [Some(Factor::RowAmax(&row_amax)), Some(Factor::RowAmax(&col_amax))];
        kernels.quantize_nvfp4(stream, input, recipe, given, true, out, out_t)
    }

    /// Quantizes X with one given scale: `code = sat(fl(x * encode))`. Allocates nothing and waits for nothing.
    ///
    /// `amax`, one FP32 where given, is raised to `max |x|` (NaN ignored); the caller sets it to zero first. This is
    /// the cast of delayed scaling, and of checkpoints that carry an input scale.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] if X, the target, the scale or `amax` does not fit; [`Error::Alignment`] unless scale and `amax` begin at multiples of 4 bytes; [`Error::Unsupported`] if the
    /// scale is given as an amax.
    pub fn quantize_tensor_into(
        &self,
        x: &MatRef<'_>,
        format: Fp8Format,
        scale: &GivenScale<DeviceBytes<'_>>,
        out: &mut QuantMatrix,
        amax: Option<&mut DeviceBytesMut<'_>>,
    ) -> Result<()> {
        check_input(x)?;
        check_target("target", out, Scheme::Fp8Tensor(format), x.rows(), x.cols())?;
        let stream = self.queue();
        let order = stream.order();
        let source = x.data().at(&order)?;
        let input = input(x, &source);
        self.check_basis(Basis::Plain, out)?;
        let spans = out.write(&order)?;
        let target = output(&spans);
        let number = scale.number().at(&order)?;
        let factor = factor(scale, &number)?;
        let amax = amax.map(|bytes| bytes.at(&order)).transpose()?;
        let raised = amax.map(|amax| amax.slice(0, 4));
        let apart = Quantizing { given: Some(&number), ..Quantizing::of(read_of(x, &source)) };
        Quantizing { out: Some(&spans), amax: raised, ..apart }.check()?;
        self.kernels().quantize_tensor(stream, &input, format, factor, &target, amax.as_ref())?;
        drop(order);
        out.set_basis(Basis::Plain);
        Ok(())
    }

    /// [`Handle::quantize_tensor_into`] of the transpose alone, whose columns are the rows of X filled up to a multiple of 16;
    /// and the column sums of each 128 rows, where they are wanted.
    pub(crate) fn quantize_tensor_transposed_into(
        &self,
        x: &MatRef<'_>,
        format: Fp8Format,
        scale: &GivenScale<DeviceBytes<'_>>,
        out: &mut QuantMatrix,
        sums: Option<&DeviceBuffer>,
    ) -> Result<()> {
        check_input(x)?;
        let recipe = Fp8Recipe::new(Fp8Granularity::Tensor, format);
        let cols = transposed_cols(recipe.into(), x.rows());
        check_target("transposed target", out, recipe.scheme(), x.cols(), cols)?;
        let (stream, kernels) = (self.queue(), self.kernels());
        let order = stream.order();
        let source = x.data().at(&order)?;
        let input = input(x, &source);
        self.check_basis(Basis::Plain, out)?;
        let spans = out.write(&order)?;
        let target = output(&spans);
        let number = scale.number().at(&order)?;
        let factor = factor(scale, &number)?;
        let sums = sums.map(|sums| sums.write(&order)).transpose()?;
        let apart = Quantizing { given: Some(&number), ..Quantizing::of(read_of(x, &source)) };
        Quantizing { transposed: Some(&spans), ..apart }.check()?;
        if x.rows() == 0 || x.cols() == 0 {
            // The scale alone.
            kernels.quantize_tensor(stream, &input, format, factor, &target, None)?;
        } else {
            let (factor, sums) = (Some(factor), sums.as_ref());
            kernels.quantize_tiles(stream, &input, recipe, factor, [None; 2], None, Some(&target), sums)?;
        }
        drop(order);
        out.set_basis(Basis::Plain);
        Ok(())
    }

    /// `y = round(fl(code * f))` with `f = fl(block_scale * scale)`, to BF16, F16 or F32. Allocates nothing and waits for nothing.
    ///
    /// What a scheme lacks counts as 1. Rows in a Hadamard basis stay in it: `y` holds the transformed values, as
    /// [`reference::dequantize`](crate::reference::dequantize) gives them. A first use loads kernels, as in [`Handle::quantize`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] if `y` does not fit; [`Error::Alignment`] as [`Handle::quantize`].
    pub fn dequantize_into(&self, q: &QuantMatrix, y: &mut MatMut<'_>) -> Result<()> {
        if (y.rows(), y.cols()) != (q.rows(), q.cols()) {
            return Err(Error::shape(
                "dequantized matrix",
                format!("{} x {}", y.rows(), y.cols()),
                format!("must be {} x {}, the shape of the quantized one", q.rows(), q.cols()),
                "pass a matrix of that shape",
            ));
        }
        if q.rows() == 0 {
            return Ok(());
        }
        let stream = self.queue();
        let order = stream.order();
        let spans = q.read_in_order(&order)?;
        let QuantSpans { codes, scales, block_scales } = &spans;
        let (dtype, stride) = (y.dtype(), y.row_stride());
        let bytes = y.extent_bytes();
        let target = y.data_mut().at(&order)?;
        check_dequantized(&spans, target.slice(0, bytes))?;
        if q.scheme().spec().block.is_some() {
            let (scheme, rows, cols, scales) = (q.scheme(), q.rows(), q.cols(), Some(scales));
            let order = q.code_order();
            let q = BlockCodes { scheme, rows, cols, order, codes, block_scales, scales };
            return self.kernels().dequantize_blocks(stream, &q, &target, stride, dtype);
        }
        let parts = Output { codes, scales, block_scales };
        self.kernels().dequantize(stream, q.scheme(), q.rows(), q.cols(), &parts, &target, stride, dtype)
    }

    /// `amax = max |x|` over the matrix, NaN ignored, 0 for an empty one: one FP32. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] if X or `amax` does not fit; [`Error::Alignment`] unless `amax` begins at a multiple of 4 bytes.
    pub fn amax_into(&self, x: &MatRef<'_>, amax: &mut DeviceBytesMut<'_>) -> Result<()> {
        check_input(x)?;
        let stream = self.queue();
        let order = stream.order();
        let source = x.data().at(&order)?;
        let (state, _) = self.amax_state();
        let recipe = Fp8Recipe::new(Fp8Granularity::Tensor, Fp8Format::E4M3);
        let amax = amax.at(&order)?;
        Quantizing { amax: Some(amax.slice(0, 4)), ..Quantizing::of(read_of(x, &source)) }.check()?;
        self.kernels().amax_tensor(stream, &input(x, &source), recipe, &state, None, Some(&amax))
    }

    /// `amax[i] = max over j of |x[i, j]|`, NaN ignored: one FP32 a row. Allocates nothing and waits for nothing. Of groups of rows: [`Handle::group_amax_into`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] if X or `amax` does not fit; [`Error::Alignment`] unless `amax` begins at a multiple of 4 bytes.
    pub fn row_amax_into(&self, x: &MatRef<'_>, amax: &mut DeviceBytesMut<'_>) -> Result<()> {
        check_input(x)?;
        if x.rows() == 0 {
            return Ok(());
        }
        let stream = self.queue();
        let order = stream.order();
        let source = x.data().at(&order)?;
        let amax = amax.at(&order)?;
        // Without columns X may have more rows than any memory has bytes.
        check_floats("row amax", &amax, x.rows())?;
        Quantizing { amax: Some(amax.slice(0, x.rows() * 4)), ..Quantizing::of(read_of(x, &source)) }.check()?;
        self.kernels().zero(stream, &amax, x.rows() * 4)?;
        self.kernels().amax_row_column(stream, &input(x, &source), Some(&amax), None)
    }
}

pub(crate) fn input<'a>(x: &MatRef<'_>, span: &'a Span<'a>) -> Input<'a> {
    Input { x: span, dtype: x.dtype(), rows: x.rows(), cols: x.cols(), row_stride: x.row_stride() }
}

/// What is read of x: its memory may be longer.
pub(crate) fn read_of<'s>(x: &MatRef<'_>, span: &Span<'s>) -> Span<'s> {
    span.slice(0, x.extent_bytes())
}

pub(crate) fn check_input(x: &MatRef<'_>) -> Result<()> {
    if !x.dtype().is_wide() {
        return Err(Error::dtype("x", x.dtype(), "cannot be quantized", "pass bf16, f16 or f32"));
    }
    check_quantize_cols("x", x.cols())
}

pub(crate) fn output<'a>(QuantSpans { codes, scales, block_scales }: &'a QuantSpans<'a>) -> Output<'a> {
    Output { codes, scales, block_scales }
}

/// What a given second level is to the kernels, its number being here.
pub(super) fn level<'a, T>(given: &GivenScale<T>, number: &'a Span<'a>) -> Factor<'a> {
    match given {
        GivenScale::Amax(_) => Factor::Amax(number),
        GivenScale::Encode(_) => Factor::Encode(number),
        GivenScale::Decode(_) => Factor::Decode(number),
    }
}

/// The same of the scale of an FP8 matrix.
pub(crate) fn factor<'a, T>(given: &GivenScale<T>, number: &'a Span<'a>) -> Result<Factor<'a>> {
    match given {
        GivenScale::Amax(_) => Err(given.needs_recipe()),
        GivenScale::Encode(_) | GivenScale::Decode(_) => Ok(level(given, number)),
    }
}

fn too_many_maxima(rows: usize, cols: usize, limit: usize) -> Error {
    Error::shape(
        "input of a transposing per-row cast",
        format!("{rows} rows and {cols} columns"),
        format!("must together be at most {limit}"),
        "quantize the matrix in parts",
    )
}

/// The two targets of a quantizer.
type Targets<'a> = (Option<&'a mut QuantMatrix>, Option<&'a mut QuantMatrix>);

/// Takes the targets apart and checks that they fit.
fn check_targets<'a>(x: &MatRef<'_>, recipe: Recipe, to: QuantizeTo<'a>) -> Result<Targets<'a>> {
    recipe.check(x.rows())?;
    let (plain, transposed) = match to {
        QuantizeTo::Plain(out) => (Some(out), None),
        QuantizeTo::Transposed(out) => (None, Some(out)),
        QuantizeTo::Both(out, transposed) => (Some(out), Some(transposed)),
    };
    if let Some(out) = &plain {
        check_target("target", out, recipe.scheme(), x.rows(), x.cols())?;
    }
    if let Some(out) = &transposed {
        let cols = transposed_cols(recipe, x.rows());
        check_target("transposed target", out, recipe.scheme(), x.cols(), cols)?;
        check_quantize_cols("transposed target (the rows of X)", cols)?;
    }
    Ok((plain, transposed))
}

/// Columns of the quantized transpose of a matrix with so many rows: the kernels of FP8 fill them up.
fn transposed_cols(recipe: Recipe, rows: usize) -> usize {
    match recipe {
        Recipe::Fp8(_) => rows.next_multiple_of(K_MULTIPLE),
        _ => rows,
    }
}

pub(crate) fn check_target(name: &str, out: &QuantMatrix, scheme: Scheme, rows: usize, cols: usize) -> Result<()> {
    if out.scheme() != scheme || (out.rows(), out.cols()) != (rows, cols) {
        return Err(Error::shape(
            name,
            format!("{} x {} {}", out.rows(), out.cols(), out.scheme()),
            format!("must be {rows} x {cols} {scheme}"),
            "allocate it with QuantMatrix::zeros for that scheme and shape",
        ));
    }
    Ok(())
}

/// Bytes that a cast of `rows x cols` elements of type `input` must move: each input read, each code and scale written.
///
/// What bandwidth figures are computed from; a per-row cast with a transposed output reads its input twice, and so does
/// a per-tensor cast that computes its scale.
pub fn quantize_bytes(recipe: impl Into<Recipe>, input: DType, rows: usize, cols: usize, transposed: bool) -> usize {
    let recipe = recipe.into();
    let scheme = recipe.scheme();
    let output = |rows, cols| {
        scheme.code_bytes(rows, cols) + scheme.scale_len(rows, cols) * 4 + scheme.block_scale_len(rows, cols)
    };
    let reads = if transposed && matches!(scheme, Scheme::Fp8Row(_) | Scheme::Nvfp4Row) { 2 } else { 1 };
    rows * cols * input.bytes() * reads + output(rows, cols) + if transposed { output(cols, rows) } else { 0 }
}
