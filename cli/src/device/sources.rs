//! What a cast reads beside a plain matrix, and what is made of it: what `verify` asks of a device beyond quantizing weights.

use ndarray::{Array2, Axis};
use scaled_gemm::reference::{self, CastInput, ClampCounts, RmsNorm, RmsNormed, Swiglu};
use scaled_gemm::{CastRecipe, CastScheme, DType, GivenScale, HostCastMatrix, HostQuantMatrix, Recipe, Result};

use crate::quantizers::Function;

/// Values that their type holds exactly.
#[derive(Clone, Copy)]
pub struct Wide<'a> {
    pub values: &'a Array2<f32>,
    /// How they lie on a GPU; the CPU reads them as they are.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    pub dtype: DType,
}

/// Where the values of a cast come from, in host memory.
#[derive(Clone, Copy)]
pub enum HostValues<'a> {
    Plain(Wide<'a>),
    Coded(&'a HostCastMatrix),
    /// Of both halves side by side.
    Swiglu(Wide<'a>, Swiglu<'a>, Counting),
    Activated(Wide<'a>, Function),
    /// A norm whose factors of rows and of columns are known.
    Normed(Wide<'a>, &'a [f32], &'a [f32]),
}

/// Whether SwiGLU counts what its clamp changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    Counted,
    Uncounted,
}

/// Whether groups that FP4 to FP8 loses are counted: on a GPU by kernels of their own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Inexact {
    Counted,
    Uncounted,
}

/// The same, and which of its rows.
#[derive(Clone, Copy)]
pub struct HostSource<'a> {
    pub values: HostValues<'a>,
    pub rows: Option<&'a [i32]>,
}

impl<'a> From<HostValues<'a>> for HostSource<'a> {
    fn from(values: HostValues<'a>) -> Self {
        Self { values, rows: None }
    }
}

/// Which part of a cast.
#[derive(Clone, Copy)]
pub enum Part<'a> {
    Whole,
    /// Scales alone: codes stay zero.
    Scales,
    /// Codes, by these scales.
    Codes(&'a [f32]),
}

/// x of the backward pass.
#[derive(Clone, Copy)]
pub enum GatedInput<'a> {
    Plain(Wide<'a>),
    Coded(&'a HostCastMatrix),
}

/// All that the backward pass of SwiGLU gives.
pub struct Gradients {
    /// That of x, cast.
    pub x: HostCastMatrix,
    /// That of x, and the forward pass again, in BF16.
    pub x_bf16: Array2<f32>,
    pub out: Array2<f32>,
    /// Those of the rows' weights.
    pub weights: Vec<f32>,
}

/// A norm's result, cast, and what is written beside it.
pub struct NormCast {
    pub cast: HostCastMatrix,
    pub sum: Option<Array2<f32>>,
    pub rstd: Vec<f32>,
}

/// Casts from every source, and the producers with results beside a cast.
pub trait Sources {
    /// Codes and scales, or one of them, and what a clamp has changed.
    fn cast_source(
        &mut self,
        source: &HostSource<'_>,
        part: Part<'_>,
        recipe: CastRecipe,
    ) -> Result<(HostCastMatrix, ClampCounts)>;

    /// To what products read; with the scale of the whole matrix where its scheme has one. Of FP8 by a given encode factor also the largest
    /// magnitude of the values.
    fn quantize_source(
        &mut self,
        source: &HostSource<'_>,
        recipe: Recipe,
        given: Option<GivenScale>,
    ) -> Result<(HostQuantMatrix, Option<f32>)>;

    /// Whether [`Sources::quantize_source`] of a producer refuses recipes. The CPU quantizes values, whatever made them.
    fn refuses_recipes(&self) -> bool;

    /// So many rows that casts have other kernels for them than for few, and no multiple of a tile's; none where there are no others.
    fn many_rows(&self) -> Option<usize>;

    /// E2M1 as E4M3 of the same values, and how many groups are lost. The CPU has no count: it refuses these.
    fn fp4_to_fp8(&mut self, q: &HostCastMatrix, count: Inexact) -> Result<(HostCastMatrix, Option<u32>)>;

    /// RMSNorm cast along rows in one pass.
    fn rms_norm_cast(&mut self, x: Wide<'_>, norm: &RmsNorm<'_>, recipe: CastRecipe) -> Result<NormCast>;

    /// The same to what products read, with the scale of the whole matrix where its scheme has one.
    fn rms_norm_quantize(
        &mut self,
        x: Wide<'_>,
        norm: &RmsNorm<'_>,
        recipe: Recipe,
        given: Option<GivenScale>,
    ) -> Result<HostQuantMatrix>;

    /// The gradients of SwiGLU; `gradient` is that of its result.
    fn swiglu_backward(
        &mut self,
        x: GatedInput<'_>,
        gradient: Wide<'_>,
        options: &Swiglu<'_>,
        recipe: CastRecipe,
    ) -> Result<Gradients>;

    /// The gradient of x as what products read.
    fn swiglu_backward_quantize(
        &mut self,
        x: GatedInput<'_>,
        gradient: Wide<'_>,
        options: &Swiglu<'_>,
        recipe: Recipe,
    ) -> Result<HostQuantMatrix>;
}

impl HostValues<'_> {
    /// What the reference makes of them in FP32, as a cast along rows reads it, and what a clamp has changed.
    pub fn computed(&self) -> Result<(Array2<f32>, ClampCounts)> {
        let values = match *self {
            Self::Plain(x) => x.values.clone(),
            Self::Coded(q) => reference::cast_back(q, DType::F32),
            Self::Swiglu(x, options, counting) => {
                let (y, counts) = reference::swiglu(x.values.view(), &options)?;
                return Ok((y, if counting == Counting::Counted { counts } else { ClampCounts::default() }));
            }
            Self::Activated(x, function) => function.of(x.values.view()),
            Self::Normed(x, rows, columns) => {
                Array2::from_shape_fn(x.values.dim(), |(i, j)| x.values[(i, j)] * rows[i] * columns[j])
            }
        };
        Ok((values, ClampCounts::default()))
    }

    /// The same as a cast to this scheme reads it: SwiGLU per channel in BF16.
    pub fn read_by(&self, scheme: CastScheme) -> Result<(Array2<f32>, ClampCounts)> {
        let (values, counts) = self.computed()?;
        let rounded = matches!(self, Self::Swiglu(..)) && scheme.group().is_per_channel();
        Ok((if rounded { reference::round_values(values, DType::Bf16) } else { values }, counts))
    }
}

impl HostSource<'_> {
    /// What a clamp changes in the rows that are read, a row as often as it is read; `whole` is what it changes in all of them.
    fn counts(&self, whole: ClampCounts) -> Result<ClampCounts> {
        let (HostValues::Swiglu(x, options, Counting::Counted), Some(rows)) = (self.values, self.rows) else {
            return Ok(whole);
        };
        let (x, experts) = read_rows(x.values, options.experts, rows);
        let options = Swiglu { weights: None, experts: experts.as_deref(), ..options };
        Ok(reference::swiglu(x.view(), &options)?.1)
    }
}

/// The rows of a gated matrix that are read, and their experts: a row of zeros is none.
pub fn read_rows(x: &Array2<f32>, experts: Option<&[i32]>, rows: &[i32]) -> (Array2<f32>, Option<Vec<i32>>) {
    let read: Vec<usize> = rows.iter().filter_map(|row| usize::try_from(*row).ok()).collect();
    let experts = experts.map(|experts| read.iter().map(|row| experts[*row]).collect());
    (x.select(Axis(0), &read), experts)
}

/// Chosen rows, zeros for a negative one.
pub fn gather(x: &Array2<f32>, rows: &[i32]) -> Array2<f32> {
    Array2::from_shape_fn((rows.len(), x.ncols()), |(i, j)| usize::try_from(rows[i]).map_or(0.0, |row| x[(row, j)]))
}

/// To what products read, with the scale of the whole matrix where one is given.
fn quantize(values: &Array2<f32>, recipe: Recipe, given: Option<GivenScale>) -> Result<(HostQuantMatrix, Option<f32>)> {
    Ok(match (recipe, given) {
        (Recipe::Fp8(fp8), Some(given)) => {
            let (q, amax) = reference::quantize_tensor(values.view(), fp8.format, given)?;
            (q, matches!(given, GivenScale::Encode(_)).then_some(amax))
        }
        (_, Some(given)) => (reference::quantize_with_scale(values.view(), DType::F32, recipe, given)?, None),
        (_, None) => (reference::quantize(values.view(), DType::F32, recipe)?, None),
    })
}

/// The CPU: the reference.
pub struct OnCpu;

impl Sources for OnCpu {
    fn cast_source(
        &mut self,
        source: &HostSource<'_>,
        part: Part<'_>,
        recipe: CastRecipe,
    ) -> Result<(HostCastMatrix, ClampCounts)> {
        let scheme = recipe.scheme();
        // Codes go into the cast as they are, which is what is checked of them.
        let (values, counts) = match source.values {
            HostValues::Coded(_) => Default::default(),
            values => values.read_by(scheme)?,
        };
        let input = match source.values {
            HostValues::Coded(q) => CastInput::from(q),
            _ => CastInput::from(values.view()),
        };
        let input = source.rows.map_or(Ok(input), |rows| input.gathered(rows))?;
        let q = match part {
            Part::Whole => reference::cast(&input, recipe)?,
            Part::Codes(scales) => reference::cast_with_scales(&input, scheme, scales)?,
            Part::Scales => {
                let (rows, cols) = (input.rows(), input.cols());
                let codes = vec![0; scheme.code_bytes(rows, cols)];
                HostCastMatrix::from_logical(scheme, rows, cols, codes, reference::cast_scales(&input, recipe)?)?
            }
        };
        Ok((q, source.counts(counts)?))
    }

    fn quantize_source(
        &mut self,
        source: &HostSource<'_>,
        recipe: Recipe,
        given: Option<GivenScale>,
    ) -> Result<(HostQuantMatrix, Option<f32>)> {
        let (values, _) = source.values.computed()?;
        quantize(&source.rows.map_or_else(|| values.clone(), |rows| gather(&values, rows)), recipe, given)
    }

    fn refuses_recipes(&self) -> bool {
        false
    }

    fn many_rows(&self) -> Option<usize> {
        None
    }

    fn fp4_to_fp8(&mut self, q: &HostCastMatrix, _: Inexact) -> Result<(HostCastMatrix, Option<u32>)> {
        Ok((reference::fp4_to_fp8(q)?, None))
    }

    fn rms_norm_cast(&mut self, x: Wide<'_>, norm: &RmsNorm<'_>, recipe: CastRecipe) -> Result<NormCast> {
        let RmsNormed { values, sum, rstd } = reference::rms_norm(x.values.view(), norm)?;
        Ok(NormCast { cast: reference::cast(&values.view().into(), recipe)?, sum, rstd })
    }

    fn rms_norm_quantize(
        &mut self,
        x: Wide<'_>,
        norm: &RmsNorm<'_>,
        recipe: Recipe,
        given: Option<GivenScale>,
    ) -> Result<HostQuantMatrix> {
        Ok(quantize(&reference::rms_norm(x.values.view(), norm)?.values, recipe, given)?.0)
    }

    fn swiglu_backward(
        &mut self,
        x: GatedInput<'_>,
        gradient: Wide<'_>,
        options: &Swiglu<'_>,
        recipe: CastRecipe,
    ) -> Result<Gradients> {
        let x = x.values();
        let all = reference::swiglu_backward(x.view(), gradient.values.view(), options)?;
        Ok(Gradients {
            x: reference::cast(&all.x.view().into(), recipe)?,
            x_bf16: reference::round_values(all.x, DType::Bf16),
            out: all.out,
            weights: all.weights,
        })
    }

    fn swiglu_backward_quantize(
        &mut self,
        x: GatedInput<'_>,
        gradient: Wide<'_>,
        options: &Swiglu<'_>,
        recipe: Recipe,
    ) -> Result<HostQuantMatrix> {
        let all = reference::swiglu_backward(x.values().view(), gradient.values.view(), options)?;
        reference::quantize(all.x.view(), DType::F32, recipe)
    }
}

impl GatedInput<'_> {
    /// In FP32.
    pub fn values(&self) -> Array2<f32> {
        match self {
            Self::Plain(x) => x.values.clone(),
            Self::Coded(q) => reference::cast_back(q, DType::F32),
        }
    }
}
