//! Grouped tensors in FP8: many matrices in one buffer, each with a scale of its own or one for all. TransformerEngine's arithmetic.
//!
//! ```text
//! v        = x                                  numbers
//!            fl(OP'(x) * g)                     the gradient of an activation: ActivationGradient, not rounded between
//! amax[t]  = max |v| of member t                before scaling; NaN ignored, 0 without elements. Shared: of all members
//! encode[t], scale[t]                           given, and the inverse of that (delayed scaling), or GroupedRecipe::group_scale of amax[t]
//!                                               (current scaling)
//! code     = sat(fl(v * encode[t]))             NaN to 0x7F; sign of zero kept
//! y        = round(fl(code * scale[t]))         back
//! ```
//!
//! Members without elements have an amax and a scale like the others. What lies in gaps is never read, and written as zero. Forward
//! activations, OP(x) before the cast, are not here: apply [`Activation`](crate::Activation) to the values.

use std::borrow::Cow;
use std::ops::Range;

use ndarray::ArrayViewMut2;

use super::delayed::{REMEDY, delayed_update_if_seen};
use super::parallel;
use super::quantize::amax;
use crate::epilogue::ActivationGradient;
use crate::error::{Error, Result};
use crate::format::{
    AmaxHistory, DType, DelayedScaling, DelayedState, Fp8Format, GivenScale, GroupScale, GroupedLayout, GroupedRecipe,
    GroupedScheme, HostGroupedTensor, codec,
};

/// Elements of the pieces that cores share: a member may be one element or the whole buffer.
const PIECE: usize = 1 << 12;

/// The values of a grouped tensor in FP32, and where its members lie.
#[derive(Debug, Clone, Copy)]
pub struct GroupedView<'a> {
    layout: &'a GroupedLayout,
    values: &'a [f32],
}

impl<'a> GroupedView<'a> {
    /// Members of `values` that lie as `layout` says. A buffer may be longer; what is behind the layout's is a gap.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are fewer than `layout.buffer_len()` values.
    pub fn new(layout: &'a GroupedLayout, values: &'a [f32]) -> Result<Self> {
        if values.len() < layout.buffer_len() {
            return Err(Error::shape(
                "values of a grouped tensor",
                values.len().to_string(),
                format!("must be at least the {} elements of its layout", layout.buffer_len()),
                "pass the whole buffer, gaps included",
            ));
        }
        Ok(Self { layout, values })
    }

    /// Where members lie.
    pub fn layout(&self) -> &'a GroupedLayout {
        self.layout
    }

    /// A member, `[rows][cols]`.
    ///
    /// # Panics
    /// If there is no member `t`.
    pub fn member(&self, t: usize) -> &'a [f32] {
        &self.values[self.layout.members()[t].range()]
    }
}

/// What a grouped quantization reads: values, or the gradient of an activation.
#[derive(Debug, Clone, Copy)]
pub struct GroupedInput<'a> {
    values: GroupedView<'a>,
    forward: Option<(ActivationGradient, GroupedView<'a>)>,
}

impl<'a> From<GroupedView<'a>> for GroupedInput<'a> {
    fn from(values: GroupedView<'a>) -> Self {
        Self { values, forward: None }
    }
}

impl<'a> GroupedInput<'a> {
    /// `fl(OP'(x) * g)`, x being what the activation was given in the forward pass, g the gradient of its result.
    ///
    /// Members have the same shapes, each tensor its own offsets and gaps. The result lies as the gradient does. Both are widened to FP32 from
    /// types of their own.
    ///
    /// # Errors
    /// [`Error::Shape`] if shapes differ.
    pub fn activation_gradient(of: ActivationGradient, gradient: GroupedView<'a>, x: GroupedView<'a>) -> Result<Self> {
        gradient.layout.check_shapes("x of an activation gradient", x.layout)?;
        Ok(Self { values: gradient, forward: Some((of, x)) })
    }

    /// Where the members lie: those of the gradient, where it is one.
    pub fn layout(&self) -> &'a GroupedLayout {
        self.values.layout
    }

    /// Number `at` of member `t`: v.
    pub(super) fn value(&self, t: usize, at: usize) -> f32 {
        let value = self.values.member(t)[at];
        self.forward.map_or(value, |(of, x)| of.apply(x.member(t)[at]) * value)
    }

    /// v of the whole buffer; gaps hold anything.
    fn computed(&self) -> Cow<'a, [f32]> {
        if self.forward.is_none() {
            return Cow::Borrowed(self.values.values);
        }
        let mut values = vec![0.0; self.layout().buffer_len()];
        for_each_piece(self.layout(), &mut values, 16, |t, range, out| {
            out.iter_mut().zip(range).for_each(|(v, at)| *v = self.value(t, at));
        });
        Cow::Owned(values)
    }
}

/// Current scaling: `code = sat(fl(v * encode))` and `scale` for each member, both from its amax, or from that of all members.
///
/// Gives the tensor in the layout of the input, and every amax: one for each member, or one if scales are shared. The codes of a transposed
/// scheme are the others transposed. Runs on all cores; allocates the result, an FP32 number an element for gradients, a byte
/// an element if the scheme is transposed, and up to 180 bytes for each member and for every 4096 elements.
///
/// ```
/// use scaled_gemm::reference::{GroupedView, dequantize_grouped, quantize_grouped};
/// use scaled_gemm::{DType, Fp8Format, GroupedLayout, GroupedRecipe, GroupedScheme};
///
/// // Three experts, with two tokens, with none, and with one.
/// let layout = GroupedLayout::aligned(&[[2, 3], [0, 3], [1, 3]], 4)?;
/// let x = [1.0, -2.0, 0.5, 4.0, 0.0, 1.0, f32::NAN, f32::NAN, 8.0, 1.0, 2.0, f32::NAN];
/// let recipe = GroupedRecipe::new(GroupedScheme::new(Fp8Format::E4M3));
/// let (q, amax) = quantize_grouped(&GroupedView::new(&layout, &x)?.into(), recipe)?;
/// assert_eq!((&amax[..], q.member_codes(1)), (&[4.0, 0.0, 8.0][..], &[][..]));
/// assert_eq!(dequantize_grouped(&q, DType::Bf16), [1.0, -2.0, 0.5, 4.0, 0.0, 1.0, 0.0, 0.0, 8.0, 1.0, 2.0, 0.0]);
/// # Ok::<(), scaled_gemm::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a rule with codes that its project does not have
/// ([`Fp8Rule::has`](crate::Fp8Rule::has)).
pub fn quantize_grouped(input: &GroupedInput<'_>, recipe: GroupedRecipe) -> Result<(HostGroupedTensor, Vec<f32>)> {
    recipe.member().check()?;
    let values = input.computed();
    let amax = amax_of_members(input.layout(), &values, recipe.scheme());
    let factors: Vec<_> = amax.iter().map(|amax| recipe.group_scale(*amax)).collect();
    Ok((write(input.layout(), &values, recipe.scheme(), &factors)?, amax))
}

/// Delayed scaling: `code = sat(fl(v * encode))` with scales that the caller brings, and every amax of `v` before scaling.
///
/// Scales are encode or decode factors, one for each member, those without elements too, or one if they are shared; of either the other is
/// `fl(1 / given)`. Any FP32 number is one, as in [`quantize_tensor`](super::quantize_tensor), since a device cannot refuse what it has not
/// read: with an encode factor of 0 finite values become zeros and all come back as NaN; with an infinite one zeros become NaN, and the
/// rest saturates and comes back as zeros; with NaN all are NaN. For the rest see [`quantize_grouped`]. A running amax is raised by
/// [`raise_amax`].
///
/// The gradient of an activation with delayed scaling, and the scales of the next step:
///
/// ```
/// use ndarray::Array2;
/// use scaled_gemm::reference::{
///     GroupedInput, GroupedView, delayed_update_grouped, quantize_grouped_with_scales, raise_amax,
/// };
/// use scaled_gemm::{ActivationGradient, AmaxHistory, Fp8Format, GivenScale, GroupedLayout, GroupedScheme};
///
/// // Two experts: what the activation was given, and the gradient of its result.
/// let layout = GroupedLayout::from_offsets(&[[1, 2], [2, 1]], &[0, 2, 4])?;
/// let (x, g) = ([1.0, -3.0, 2.0, 0.5], [0.25, 8.0, -2.0, 1.0]);
/// let [g, x] = [GroupedView::new(&layout, &g)?, GroupedView::new(&layout, &x)?];
/// let input = GroupedInput::activation_gradient(ActivationGradient::Relu, g, x)?;
///
/// // E5M2, as gradients are. The history of 16 steps begins with zeros, the encode factors with 1.
/// let (mut history, mut encode) = (Array2::zeros((16, 2)), vec![1.0, 1.0]);
/// let scheme = GroupedScheme::new(Fp8Format::E5M2);
/// let (q, amax) = quantize_grouped_with_scales(&input, scheme, GivenScale::Encode(&encode))?;
/// assert_eq!((q.scales(), &amax[..]), (&[1.0, 1.0][..], &[0.25, 2.0][..]));
///
/// raise_amax(history.row_mut(0).as_slice_mut().expect("rows are in order"), &amax)?;
/// let next = delayed_update_grouped(history.view_mut(), &encode, Fp8Format::E5M2, 0, AmaxHistory::Max)?;
/// encode = next.iter().map(|factors| factors.encode).collect();
/// assert_eq!(encode, [57344.0 / 0.25, 57344.0 / 2.0]);
/// # Ok::<(), scaled_gemm::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] for another number of scales; [`Error::Unsupported`] if an amax is given.
#[doc(alias = "scale_inv")]
pub fn quantize_grouped_with_scales(
    input: &GroupedInput<'_>,
    scheme: GroupedScheme,
    scales: GivenScale<&[f32]>,
) -> Result<(HostGroupedTensor, Vec<f32>)> {
    let factors = given_factors(input.layout(), scheme, scales)?;
    let values = input.computed();
    let amax = amax_of_members(input.layout(), &values, scheme);
    Ok((write(input.layout(), &values, scheme, &factors)?, amax))
}

/// `fl(code * scale)` of its member, rounded to nearest even in `out`, as FP32 values in the layout of the tensor; gaps are zero.
///
/// Members are `[rows][cols]`, also those that are stored transposed. A value beyond the range of `out` becomes infinite in F32, BF16 and F16,
/// and the largest value in E4M3 and E5M2. Runs on all cores; allocates the result, a byte an element for transposed codes, and up to
/// 180 bytes for each member and for every 4096 elements.
pub fn dequantize_grouped(q: &HostGroupedTensor, out: DType) -> Vec<f32> {
    let by_rows = if q.scheme().is_transposed() { Cow::Owned(q.transpose()) } else { Cow::Borrowed(q) };
    let mut values = vec![0.0; q.layout().buffer_len()];
    for_each_piece(q.layout(), &mut values, 1, |t, range, values| {
        codec::decode_scaled(q.scheme().format(), &by_rows.member_codes(t)[range], q.member_scale(t), values);
        codec::round_all(out, values);
    });
    values
}

/// `running[i] = max(running[i], amax[i])`: what a quantization found, merged into what the caller has of this step, such as row 0 of an amax
/// history. Zero it before the first.
///
/// A maximum of bit patterns as signed integers, as TransformerEngine takes it: what is negative in `running`, be it -0 or NaN, is below every
/// amax, and a positive NaN stays. Kernels of this crate compare unsigned integers: give them a running amax without a sign.
/// Allocates nothing.
///
/// # Errors
/// [`Error::Shape`] if lengths differ; nothing is written then.
pub fn raise_amax(running: &mut [f32], amax: &[f32]) -> Result<()> {
    if running.len() != amax.len() {
        return Err(Error::shape(
            "running amax of a grouped tensor",
            running.len().to_string(),
            format!("must be {}, as many as were found", amax.len()),
            "pass one for each member, those without elements too, or one if scales are shared",
        ));
    }
    let key = |v: f32| v.to_bits().cast_signed();
    running.iter_mut().zip(amax).filter(|(to, amax)| key(**amax) > key(**to)).for_each(|(to, amax)| *to = *amax);
    Ok(())
}

/// [`delayed_update`](super::delayed_update) of every scale of a grouped tensor: its factors of the next step.
///
/// `history` is `[window][scales]`, row 0 that of the step just finished; afterwards every column is rotated as there. A scale whose amax in
/// row 0 is 0 keeps `previous_encode` and its column, as in TransformerEngine's update of a whole model: a member that had no elements in this
/// step, an expert without tokens, forgets nothing. Without rows all keep `previous_encode`. Allocates the result and one column.
///
/// # Errors
/// [`Error::Shape`] if the columns of the history are not as many as `previous_encode`, [`Error::Unsupported`] for a margin beyond [`DelayedScaling::MAX_MARGIN`],
/// and for a factor that is not finite and above 0, or whose inverse is not; nothing is written then. (A device takes any, since it cannot refuse what it has not read.)
pub fn delayed_update_grouped(
    mut history: ArrayViewMut2<f32>,
    previous_encode: &[f32],
    format: Fp8Format,
    margin: i32,
    rule: AmaxHistory,
) -> Result<Vec<GroupScale>> {
    if history.ncols() != previous_encode.len() {
        return Err(Error::shape(
            "amax history of a grouped tensor",
            format!("{} x {}", history.nrows(), history.ncols()),
            format!("must have {} columns, as many as there are encode factors", previous_encode.len()),
            "pass a row for each step and a column for each scale",
        ));
    }
    DelayedScaling::check_margin(margin)?;
    for (t, encode) in previous_encode.iter().enumerate() {
        DelayedState::check_encode(*encode, || format!("as factor {t} of the step before"), REMEDY)?;
    }
    let update = |(mut column, previous): (ndarray::ArrayViewMut1<f32>, &f32)| {
        let mut steps = column.to_vec();
        let factors = delayed_update_if_seen(&mut steps, *previous, format, margin, rule);
        column.iter_mut().zip(steps).for_each(|(to, amax)| *to = amax);
        factors
    };
    Ok(history.columns_mut().into_iter().zip(previous_encode).map(update).collect())
}

/// Both factors of each given scale.
pub(super) fn given_factors(
    layout: &GroupedLayout,
    scheme: GroupedScheme,
    scales: GivenScale<&[f32]>,
) -> Result<Vec<GroupScale>> {
    let numbers = *scales.number();
    scheme.scales().check_count("given scales of a grouped tensor", layout.members().len(), numbers.len())?;
    // That none may be an amax is so of no members too.
    scales.with_number(1.0).factors()?;
    numbers.iter().map(|number| scales.with_number(*number).factors()).collect()
}

/// Every amax that the scheme has a scale for.
fn amax_of_members(layout: &GroupedLayout, values: &[f32], scheme: GroupedScheme) -> Vec<f32> {
    let pieces = pieces(layout);
    let mut found = vec![0.0f32; pieces.len()];
    parallel::for_each_piece(&mut found, 1, PIECE, |i, found| {
        let (t, range) = &pieces[i];
        let start = layout.members()[*t].offset();
        found[0] = amax(&values[start + range.start..start + range.end]);
    });
    let mut all = vec![0.0f32; scheme.scales().count(layout.members().len())];
    for ((t, _), found) in pieces.iter().zip(found) {
        let amax = &mut all[scheme.scales().index(*t)];
        *amax = amax.max(found);
    }
    all
}

/// The tensor with these factors, one for each scale.
fn write(
    layout: &GroupedLayout,
    values: &[f32],
    scheme: GroupedScheme,
    factors: &[GroupScale],
) -> Result<HostGroupedTensor> {
    let mut codes = vec![0u8; layout.buffer_len()];
    for_each_piece(layout, &mut codes, 1, |t, range, codes| {
        let start = layout.members()[t].offset();
        let encode = factors[scheme.scales().index(t)].encode;
        codec::encode_scaled(scheme.format(), &values[start + range.start..start + range.end], encode, codes);
    });
    let scales = factors.iter().map(|factor| factor.scale).collect();
    let by_rows = HostGroupedTensor::from_parts(scheme.by_rows(), layout.clone(), codes, scales)?;
    Ok(if scheme.is_transposed() { by_rows.transpose() } else { by_rows })
}

/// All elements in order, in pieces: the member, and which of its elements. Members without elements have none.
fn pieces(layout: &GroupedLayout) -> Vec<(usize, Range<usize>)> {
    let members = layout.members().iter().enumerate();
    let of_member = |(t, elements): (usize, usize)| {
        (0..elements).step_by(PIECE).map(move |start| (t, start..elements.min(start + PIECE)))
    };
    members.map(|(t, member)| (t, member.elements())).flat_map(of_member).collect()
}

/// Calls `work(t, range, &mut member t [range])` for every piece of every member, on several cores if there is enough; gaps stay as they
/// are. `cost` says how many simple operations an element takes.
fn for_each_piece<T: Send>(
    layout: &GroupedLayout,
    mut buffer: &mut [T],
    cost: usize,
    work: impl Fn(usize, Range<usize>, &mut [T]) + Sync,
) {
    let (mut parts, mut end) = (Vec::new(), 0);
    for (t, range) in pieces(layout) {
        let start = layout.members()[t].offset() + range.start;
        let (part, rest) = buffer.split_at_mut(start - end).1.split_at_mut(range.len());
        (buffer, end) = (rest, start + range.len());
        parts.push((t, range, part));
    }
    parallel::for_each_piece(&mut parts, 1, PIECE * cost, |_, parts| {
        let (t, range, part) = &mut parts[0];
        work(*t, range.clone(), part);
    });
}
