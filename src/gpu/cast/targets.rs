//! Any source to what products read, as calls on a handle: `Handle::quantize_source_into` and its like with given scales.

use super::groups::check_source;
use super::quantize::{check_target, factor, level, output};
use super::source::{CastSource, Values};
use crate::error::{Error, Result};
use crate::format::pair::check_quantize_cols;
use crate::format::{
    Basis, BlockShape, CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, CodeRounding, Fp8Format,
    Fp8Granularity, Fp8Recipe, Fp8Rule, Fp8Scales, GivenScale, Mxfp4Recipe, Mxfp8Recipe, Nvfp4Recipe, Recipe, Scheme,
};
use crate::gpu::device::memory::{DeviceBytes, DeviceBytesMut};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{CastPart, CastTo};
use crate::gpu::matrix::QuantMatrix;

impl Handle {
    /// Quantizes a source to what products read, the bytes of [`Handle::quantize_into`] of its values in FP32. Allocates nothing and
    /// waits for nothing: safe inside graph capture, once the kernels are loaded ([`Handle::load_kernels`]:
    /// [`KernelFamily::Cast`](crate::KernelFamily), of producers `Fused` too).
    ///
    /// `out` has the rows and columns of the source ([`CastSource::rows`], [`CastSource::cols`]: of SwiGLU half of x's) and the recipe's
    /// scheme. Its codes and scales are written, and of MX and NVFP4 the padding; that of FP8 is left as it is: zero, as in every matrix
    /// ([`QuantMatrix::from_parts`]).
    ///
    /// Any source: `fp8-row` and `fp8-1x128`, E4M3 under the rule `deepseek`, which is that of [`Handle::cast`]. Producers also: MXFP8
    /// and MXFP4 by any rule, and `nvfp4-row` rounded to nearest, 4over6 too. A scale of the whole matrix would take a pass of its own,
    /// which computes the source twice: give it ([`Handle::quantize_source_tensor_into`], [`Handle::quantize_source_nvfp4_into`]).
    ///
    /// # Errors
    /// As [`Handle::cast_into`]; [`Error::Unsupported`] for other recipes.
    pub fn quantize_source_into<'a>(
        &self,
        source: impl Into<CastSource<'a>>,
        recipe: impl Into<Recipe>,
        out: &mut QuantMatrix,
    ) -> Result<()> {
        let (mut source, recipe) = (source.into(), recipe.into());
        match recipe {
            Recipe::Fp8(recipe) => return self.cast_source(source, recipe, out),
            Recipe::Mxfp8(_) | Recipe::Mxfp4(_) => {}
            Recipe::Nvfp4(nvfp4) => {
                check_nvfp4(nvfp4)?;
                if nvfp4.scheme() != Scheme::Nvfp4Row {
                    return Err(Error::unsupported(
                        format!("a source quantized to {}", recipe.scheme()),
                        TWICE,
                        "give the second level (Handle::quantize_source_nvfp4_into), take nvfp4-row, or store the values and use \
                         Handle::quantize",
                    ));
                }
            }
        }
        self.check_produced(&source, recipe.scheme(), out)?;
        let _turn = self.queue().turn();
        {
            let order = self.queue().order();
            let rows = out.rows();
            let spans = out.write(&order)?;
            let (stream, kernels, to) = (self.queue(), self.kernels(), output(&spans));
            match recipe {
                Recipe::Nvfp4(recipe) => self.with_source(&mut source, &order, |from| {
                    kernels.quantize_produced_nvfp4(stream, from, recipe, None, rows, &to)
                })?,
                Recipe::Mxfp8(Mxfp8Recipe { rule, .. }) | Recipe::Mxfp4(Mxfp4Recipe { rule }) => {
                    self.with_source(&mut source, &order, |from| {
                        kernels.quantize_produced_mx(stream, from, (recipe.scheme(), rule), rows, &to)
                    })?;
                }
                Recipe::Fp8(recipe) => return Err(not_of_a_source(recipe)),
            }
        }
        out.set_basis(Basis::Plain);
        out.derive_again(self)
    }

    /// Quantizes a producer to NVFP4 with a given second level, the bytes of [`Handle::quantize_nvfp4_into`] of its values in FP32.
    /// Allocates nothing and waits for nothing: safe inside graph capture, once the kernels are loaded
    /// ([`KernelFamily::Fused`](crate::KernelFamily)).
    ///
    /// Rounded to nearest, block scales plain or 4over6. Values above what the second level was made for saturate.
    ///
    /// # Errors
    /// As [`Handle::quantize_source_into`], and for another scheme than [`Scheme::Nvfp4`]; [`Error::Shape`] if the scale has fewer than 4 bytes, [`Error::Alignment`] unless they begin at a
    /// multiple of 4.
    pub fn quantize_source_nvfp4_into<'a>(
        &self,
        source: impl Into<CastSource<'a>>,
        recipe: impl Into<Recipe>,
        scale: &GivenScale<DeviceBytes<'_>>,
        out: &mut QuantMatrix,
    ) -> Result<()> {
        let (mut source, recipe) = (source.into(), recipe.into());
        let recipe = match recipe {
            Recipe::Nvfp4(nvfp4) if nvfp4.scheme() == Scheme::Nvfp4 => nvfp4,
            _ => {
                return Err(Error::unsupported(
                    format!("a given second level for {}", recipe.scheme()),
                    "it is one number for a whole nvfp4 matrix",
                    "use quantize_source_into, or the scheme nvfp4",
                ));
            }
        };
        check_nvfp4(recipe)?;
        self.check_produced(&source, recipe.scheme(), out)?;
        let _turn = self.queue().turn();
        {
            let order = self.queue().order();
            let rows = out.rows();
            let number = scale.number().at(&order)?;
            let spans = out.write(&order)?;
            let given = Some(level(scale, &number));
            self.with_source(&mut source, &order, |from| {
                self.kernels().quantize_produced_nvfp4(self.queue(), from, recipe, given, rows, &output(&spans))
            })?;
        }
        out.set_basis(Basis::Plain);
        out.derive_again(self)
    }

    /// Quantizes a producer to FP8 with one given scale, the bytes of [`Handle::quantize_tensor_into`] of its values in FP32. Allocates
    /// nothing and waits for nothing: safe inside graph capture, once the kernels are loaded
    /// ([`KernelFamily::Fused`](crate::KernelFamily)).
    ///
    /// `amax`, one FP32 where given, is raised to the largest magnitude of the values (NaN ignored); the caller sets it to zero first.
    ///
    /// # Errors
    /// As [`Handle::quantize_source_into`]; [`Error::Shape`] if `amax` or the scale does not fit, or `amax` overlaps codes, scales or what is read; [`Error::Alignment`] unless it and the scale begin at
    /// multiples of 4 bytes; [`Error::Unsupported`] if the scale is given as an amax.
    pub fn quantize_source_tensor_into<'a>(
        &self,
        source: impl Into<CastSource<'a>>,
        format: Fp8Format,
        scale: &GivenScale<DeviceBytes<'_>>,
        out: &mut QuantMatrix,
        amax: Option<&mut DeviceBytesMut<'_>>,
    ) -> Result<()> {
        let mut source = source.into();
        self.check_produced(&source, Scheme::Fp8Tensor(format), out)?;
        let _turn = self.queue().turn();
        {
            let order = self.queue().order();
            let rows = out.rows();
            let number = scale.number().at(&order)?;
            let factor = factor(scale, &number)?;
            let spans = out.write(&order)?;
            let amax = amax.map(|bytes| bytes.at(&order)).transpose()?;
            let (to, amax) = (output(&spans), amax.as_ref());
            self.with_source(&mut source, &order, |from| {
                self.kernels().quantize_produced_tensor(self.queue(), from, format, factor, rows, &to, amax)
            })?;
        }
        out.set_basis(Basis::Plain);
        out.derive_again(self)
    }

    /// FP8 whose groups are also those of a cast.
    fn cast_source(&self, mut source: CastSource<'_>, recipe: Fp8Recipe, out: &mut QuantMatrix) -> Result<()> {
        check_source(&source)?;
        let cast = cast_recipe(recipe)?;
        let (rows, cols) = (source.rows(), source.cols());
        check_quantize_cols("source", cols)?;
        check_target("target", out, recipe.scheme(), rows, cols)?;
        self.check_basis(Basis::Plain, out)?;
        let scheme = cast.scheme();
        let _turn = self.queue().turn();
        {
            let order = self.queue().order();
            let spans = out.write(&order)?;
            // Rows of codes and scales beyond the matrix are zero, and stay so.
            let to = CastTo { codes: &spans.codes, scales: &spans.scales, scheme, rows, cols };
            self.cast_values(&mut source, &order, (cast, CastPart::Both), &to)?;
        }
        out.set_basis(Basis::Plain);
        out.derive_again(self)
    }

    /// What the kernels for producers ask of source and target.
    fn check_produced(&self, source: &CastSource<'_>, scheme: Scheme, out: &QuantMatrix) -> Result<()> {
        check_source(source)?;
        let refuse = |what: &str, reason: &str, remedy: &str| {
            let what = format!("{what} as a source quantized to {scheme}");
            Err(Error::unsupported(what, reason, remedy))
        };
        match source.values {
            Values::Plain(_) => {
                return refuse(
                    "a plain matrix",
                    "nothing is computed of it, and the quantizers read it themselves",
                    "use Handle::quantize_into, or quantize_tensor_into and quantize_nvfp4_into with a given scale; rows are gathered by casts, fp8-row and fp8-1x128 alone: write those that are chosen side by side before",
                );
            }
            Values::Coded(_) => {
                return refuse(
                    "a CastMatrix",
                    "codes are read by casts, and by fp8-row and fp8-1x128 alone",
                    "cast it back first (Handle::cast_back_into), and use Handle::quantize_into",
                );
            }
            Values::Activated(..) | Values::Swiglu(_) | Values::Normed { .. } | Values::Norm(_) => {}
        }
        check_quantize_cols("source", source.cols())?;
        check_target("target", out, scheme, source.rows(), source.cols())?;
        self.check_basis(Basis::Plain, out)
    }
}

/// Why a source has no scale of the whole matrix.
const TWICE: &str = "the amax of the whole matrix would take a pass of its own, which computes the source twice";

/// The cast whose bytes are those of a recipe for products.
pub(super) fn cast_recipe(recipe: Fp8Recipe) -> Result<CastRecipe> {
    let (group, scales) = match recipe.granularity {
        Fp8Granularity::Row => (CastGroup::Row, CastScales::RowMajor),
        Fp8Granularity::Group1x128 => (CastGroup::Group1x128, CastScales::ColumnMajor),
        Fp8Granularity::Tensor | Fp8Granularity::Group128x128 => return Err(not_of_a_source(recipe)),
    };
    if recipe.rule != Fp8Rule::DeepSeek || recipe.format != Fp8Format::E4M3 {
        return Err(not_of_a_source(recipe));
    }
    let exact = CastRecipe::new(CastScheme::new(CodeFormat::E4M3, group)?.with_scales(scales));
    Ok(if recipe.scales == Fp8Scales::PowerOfTwo { exact.power_of_two() } else { exact })
}

fn not_of_a_source(recipe: Fp8Recipe) -> Error {
    let (reason, remedy) = match recipe.granularity {
        Fp8Granularity::Tensor => (
            TWICE,
            "give the scale (Handle::quantize_source_tensor_into), or store the values and use Handle::quantize",
        ),
        Fp8Granularity::Group128x128 => (
            "tiles are for weights, which nothing computes right before",
            "take fp8-1x128, or store the values and use Handle::quantize",
        ),
        Fp8Granularity::Row | Fp8Granularity::Group1x128 => (
            "sources are written by the casts, whose rule is deepseek and for e4m3 alone",
            "take Fp8Rule::DeepSeek and e4m3, or store the values and use Handle::quantize",
        ),
    };
    let what = format!("a source quantized to {} under the rule {}", recipe.scheme(), recipe.rule);
    Error::unsupported(what, reason, remedy)
}

/// Refuses what the kernels for producers do not do.
fn check_nvfp4(recipe: Nvfp4Recipe) -> Result<()> {
    let options = recipe.options();
    let (what, reason, remedy) = if options.basis != Basis::Plain {
        let reason = "it is for operands of weight gradients, which are quantized along columns, and producers are computed along rows";
        ("the Hadamard transform", reason, "store the values and use Handle::quantize")
    } else if options.rounding != CodeRounding::Nearest {
        let reason = "it is for gradients, and producers give activations";
        ("stochastic rounding", reason, "round to nearest, or store the values and use Handle::quantize")
    } else if options.shape != BlockShape::Row1x16 {
        let reason = "tiles are for weights, which nothing computes right before";
        ("16x16 tiles", reason, "use 1x16 blocks, or store the values and use Handle::quantize")
    } else if recipe.torchao().is_some() {
        let reason = "the kernels for producers know the rule transformer-engine";
        ("the rule of torchao", reason, "use that, or store the values and use Handle::quantize")
    } else {
        return Ok(());
    };
    Err(Error::unsupported(format!("{what} of a source quantized to {}", recipe.scheme()), reason, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each says what was asked for, why it is not done, and two ways on.
    #[test]
    fn recipes_that_no_source_is_quantized_by_are_refused_with_a_remedy() {
        let (mut refused, mut taken) = (0, 0);
        for recipe in Recipe::all(CodeRounding::Stochastic { seed: 1, offset: 0 }) {
            let checked = match recipe {
                Recipe::Fp8(fp8) => cast_recipe(fp8).map(drop),
                Recipe::Nvfp4(nvfp4) => check_nvfp4(nvfp4),
                Recipe::Mxfp8(_) | Recipe::Mxfp4(_) => Ok(()),
            };
            let Err(error) = checked else {
                taken += 1;
                continue;
            };
            refused += 1;
            let text = error.to_string();
            let [what, rest] = text.split_once(" is not supported: ").map(|(a, b)| [a, b]).expect("what is refused");
            let [reason, remedy] = rest.rsplit_once("; ").map(|(a, b)| [a, b]).expect("a remedy");
            assert!(what.contains("of a source quantized to ") || what.starts_with("a source quantized to "), "{text}");
            assert!(what.contains(&recipe.scheme().to_string()), "{text}");
            assert!(reason.len() > 30, "{text}");
            assert!(remedy.contains("store the values and use Handle::quantize"), "{text}");
        }
        // FP8 of rows and of groups of 128 by one rule, exact and powers of two; every MX rule; NVFP4 plain and 4over6 in eight modes, twice.
        assert_eq!((taken, refused), (4 + 15 + 18, 64 - 4 + 14));
    }
}
