//! Grouped tensors on the device: `Handle::{quantize_grouped_into, quantize_grouped_with_scales_into, delayed_update_grouped_into,
//! dequantize_grouped_into}`.
//!
//! The bytes of members are those of [`crate::reference`]; gaps are neither read nor written.

use crate::epilogue::ActivationGradient;
use crate::error::{Error, Result};
use crate::format::{DType, DelayedScaling, Fp8Format, GivenScale, GroupedRecipe, GroupedScales, GroupedScheme};
use crate::gpu::device::memory::{DeviceBytes, DeviceBytesMut, Span};
use crate::gpu::device::stream::Order;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{GroupedCast, GroupedFactors, GroupedForward, GroupedInput, GroupedMembers};
use crate::gpu::matrix::{GroupedDeviceLayout, GroupedPlaces, GroupedTensor};

/// What a grouped quantization reads: values, or the gradient of an activation.
///
/// The values lie as the layout of the result says: members `[rows][cols]`, at the same offsets.
pub struct GroupedSource<'a> {
    values: DeviceBytes<'a>,
    dtype: DType,
    forward: Option<Forward<'a>>,
}

struct Forward<'a> {
    of: ActivationGradient,
    x: DeviceBytes<'a>,
    dtype: DType,
    layout: &'a GroupedDeviceLayout,
}

impl<'a> GroupedSource<'a> {
    /// A buffer of BF16, F16 or F32, as long as that of the result or longer.
    ///
    /// # Errors
    /// [`Error::DType`] for other types.
    pub fn new(values: impl Into<DeviceBytes<'a>>, dtype: DType) -> Result<Self> {
        check_wide("values of a grouped tensor", dtype)?;
        Ok(Self { values: values.into(), dtype, forward: None })
    }

    /// `fl(OP'(x) * g)`, x being what the activation was given in the forward pass, and g, the gradient of its result, these values.
    ///
    /// `layout` says where the members of x begin, and nothing else: they have the shapes of the gradient's. Rows that x has no room for are
    /// left out, and counted in the layout of the result. x may have another type than the gradient.
    ///
    /// # Errors
    /// [`Error::DType`] for other types than BF16, F16 and F32.
    pub fn of_activation(
        self,
        of: ActivationGradient,
        x: impl Into<DeviceBytes<'a>>,
        dtype: DType,
        layout: &'a GroupedDeviceLayout,
    ) -> Result<Self> {
        check_wide("x of an activation gradient", dtype)?;
        Ok(Self { forward: Some(Forward { of, x: x.into(), dtype, layout }), ..self })
    }
}

/// Which tensors a grouped quantization writes.
pub enum GroupedTo<'a> {
    /// One, by rows or transposed, as its scheme says.
    One(&'a mut GroupedTensor),
    /// One by rows and one transposed, the input read once, with the same scales. Both have the same layout
    /// ([`GroupedDeviceLayout::share`]).
    ///
    /// The transposed one is for weights, whose transposes [`GroupedTensor::stacked`] gives the gradient of the input. Transposed members of X and dY,
    /// which are TransformerEngine's columnwise ones, serve no product of groups here: [`GroupedTensor::padded_rows`] refuses them, and
    /// [`GroupedWeightGradient`](crate::GroupedWeightGradient) reads other transposes, and says which.
    Both(&'a mut GroupedTensor, &'a mut GroupedTensor),
}

impl<'a> From<&'a mut GroupedTensor> for GroupedTo<'a> {
    fn from(out: &'a mut GroupedTensor) -> Self {
        Self::One(out)
    }
}

impl Handle {
    /// Current scaling: `code = sat(fl(v * encode))` and `scale` for each member, both from its amax, or from that of all members. Allocates
    /// nothing, waits for nothing, and reads nothing back: safe inside graph capture, whose launches take members as the device has them
    /// by then.
    ///
    /// `amax`, FP32, where given, receives every amax: one for each member, or one if scales are shared. Scales are written of every member.
    /// The input is read twice. The recipe says whether `to` is transposed, unless it is both.
    ///
    /// ```no_run
    /// use half::bf16;
    /// use scaled_gemm::{
    ///     DType, Fp8Format, GroupedDeviceLayout, GroupedLayout, GroupedRecipe, GroupedScheme, GroupedSource, GroupedTensor, Handle,
    /// };
    ///
    /// # fn main() -> scaled_gemm::Result<()> {
    /// let handle = Handle::new(0)?;
    /// // Three members, one after the other; the second has no rows in this step.
    /// let layout = GroupedLayout::packed(&[[96, 512], [0, 512], [32, 512]])?;
    /// let scheme = GroupedScheme::new(Fp8Format::E4M3);
    /// // Allocated once, for the longest buffer that there will be.
    /// let places = GroupedDeviceLayout::from_host(&handle, &layout)?;
    /// let mut q = GroupedTensor::zeros(&handle, scheme, places)?;
    ///
    /// let x = handle.upload(&vec![bf16::ONE; layout.buffer_len()])?;
    /// let source = GroupedSource::new(&x, DType::Bf16)?;
    /// handle.quantize_grouped_into(&source, GroupedRecipe::new(scheme), &mut q, None)?;
    /// assert_eq!(q.layout().clamped(&handle)?, 0);
    ///
    /// // Other shapes for the same members: in the same memory, also between launches of a captured graph.
    /// q.layout_mut().write(&handle, &GroupedLayout::packed(&[[16, 512], [64, 512], [48, 512]])?)?;
    /// handle.quantize_grouped_into(&source, GroupedRecipe::new(scheme), &mut q, None)?;
    /// // One member as an operand of products, on the host.
    /// let second = q.to_host(&handle)?.matrix(1)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if a buffer is too short, what is written lies where something else is read or written, or there are more members than
    /// the workspace has room for, above a million; [`Error::Alignment`] unless `amax` begins at a multiple of 4 bytes, and values at one of their size; [`Error::Unsupported`] for a tensor of
    /// another scheme than the recipe's, or two with different layouts. Nothing has been written then.
    pub fn quantize_grouped_into<'a>(
        &self,
        source: &GroupedSource<'_>,
        recipe: GroupedRecipe,
        to: impl Into<GroupedTo<'a>>,
        amax: Option<&mut DeviceBytesMut<'_>>,
    ) -> Result<()> {
        recipe.member().check()?;
        self.quantize_members(source, recipe.scheme(), How::Current(recipe), to.into(), amax)
    }

    /// Delayed scaling: the same with scales that the caller brings: encode or decode factors, FP32, one for each member, those without
    /// elements too, or one if they are shared; of either the other is `fl(1 / given)`. Allocates nothing, waits for nothing, reads nothing
    /// back: safe inside graph capture. The input is read once.
    ///
    /// `amax`, where given, is raised to every amax of `v` before scaling; the caller sets it to zero first, or takes row 0 of a history that
    /// [`Handle::delayed_update_grouped_into`] clears.
    ///
    /// # Errors
    /// As [`Handle::quantize_grouped_into`]; [`Error::Shape`] for another number of scales, [`Error::Alignment`] unless they begin at a multiple of 4 bytes; [`Error::Unsupported`] if an amax is given.
    pub fn quantize_grouped_with_scales_into<'a>(
        &self,
        source: &GroupedSource<'_>,
        scheme: GroupedScheme,
        scales: &GivenScale<DeviceBytes<'_>>,
        to: impl Into<GroupedTo<'a>>,
        amax: Option<&mut DeviceBytesMut<'_>>,
    ) -> Result<()> {
        if matches!(scales, GivenScale::Amax(_)) {
            return Err(scales.needs_recipe());
        }
        self.quantize_members(source, scheme, How::Given(scales), to.into(), amax)
    }

    /// Ends a step of delayed scaling: the encode factors of the next step, in place, of every scale of a grouped tensor.
    /// [`reference::delayed_update_grouped`](crate::reference::delayed_update_grouped) on the device, and its bits:
    ///
    /// ```text
    /// history[0][t] = 0: encode[t] and column t stay; else
    /// amax      = max over i of history[i][t], or history[0][t]                            NaN ignored
    /// encode[t] = min(fl(fl(MAX * 2^-margin) / amax), FLT_MAX)     kept if amax is 0, infinite or NaN
    /// column t  : rotated by one row, row 0 set to 0                               for the next step
    /// ```
    ///
    /// MAX is the largest number of `format`; `scaling` has the margin, the window, and which of the two maxima counts.
    ///
    /// `encode`: FP32, one for each scale; as many numbers as it has are the scales, also none. `history`: FP32 `[window][scales]`, row 0 that of
    /// the step that ends: what [`Handle::quantize_grouped_with_scales_into`] raised as its `amax` ([`DeviceBytesMut::part`]). Begin with
    /// factors of 1 and a history of zeros. A scale whose amax in row 0 is 0 keeps its factor and its column, as in TransformerEngine's update
    /// of a whole model (`common/recipe/delayed_scaling.cu`, `amax_and_scale_update_after_reduction`): an expert without tokens forgets nothing.
    ///
    /// One launch. Allocates nothing, waits for nothing, reads nothing back: safe inside graph capture, where each launch of the graph ends a
    /// step of its own; the kernels are loaded by [`GroupedTensor::zeros`], or by [`Handle::load_kernels`] of
    /// [`KernelFamily::Grouped`](crate::KernelFamily).
    ///
    /// # Errors
    /// [`Error::Shape`] unless the history has `window` numbers for each of `encode`'s, or if the two overlap; [`Error::Alignment`] unless both begin at multiples of
    /// 4 bytes; [`Error::Kernel`] and [`Error::Unsupported`] if the kernels cannot be loaded, in a capture too; [`Error::Driver`] if the launch fails.
    #[doc(alias = "amax_and_scale_update_after_reduction")]
    pub fn delayed_update_grouped_into(
        &self,
        history: &mut DeviceBytesMut<'_>,
        encode: &mut DeviceBytesMut<'_>,
        format: Fp8Format,
        scaling: DelayedScaling,
    ) -> Result<()> {
        let scales = encode.len() / 4;
        let wanted = scaling.window().checked_mul(encode.len());
        if !encode.len().is_multiple_of(4) || wanted != Some(history.len()) {
            return Err(Error::shape(
                "amax history of a grouped tensor",
                format!("{} bytes beside {} bytes of encode factors", history.len(), encode.len()),
                format!("must be {} rows of as many FP32 numbers as there are factors", scaling.window()),
                "pass a row for each step of the window and a column for each scale",
            ));
        }
        let order = self.queue().order();
        let (history, encode) = (history.at(&order)?, encode.at(&order)?);
        self.kernels().delayed_update_grouped(self.queue(), (scaling, format), scales, &history, &encode)
    }

    fn quantize_members(
        &self,
        source: &GroupedSource<'_>,
        scheme: GroupedScheme,
        how: How<'_>,
        to: GroupedTo<'_>,
        amax: Option<&mut DeviceBytesMut<'_>>,
    ) -> Result<()> {
        let (out, transposed) = targets(scheme, to)?;
        let Some(layout) = out.as_deref().or(transposed.as_deref()).map(|out| out.layout()) else { return Ok(()) };
        let (count, scales) = (layout.members(), scheme.scales());
        if let Some(forward) = source.forward.as_ref().filter(|forward| forward.layout.members() != count) {
            return Err(Error::shape(
                "members of x of an activation gradient",
                forward.layout.members().to_string(),
                format!("must be {count}"),
                "pass tensors of the same shapes, those without elements too",
            ));
        }
        if let Some(amax) = amax.as_deref() {
            scales.check_count("amax of a grouped tensor", count, floats(amax.len()))?;
        }
        if let How::Given(given) = &how {
            scales.check_count("given scales of a grouped tensor", count, floats(given.number().len()))?;
        }
        let [scratch, own_amax] = self.grouped_scratch(count, scales)?;

        let order = self.queue().order();
        let places = layout.read(&order)?;
        let clamped = layout.count(&order)?;
        let x = source.values.at(&order)?;
        let forward = source.forward.as_ref().map(|forward| ForwardSpans::of(forward, &order)).transpose()?;
        let out = out.as_deref().map(|out| out.write(&order)).transpose()?;
        let transposed = transposed.as_deref().map(|out| out.write(&order)).transpose()?;
        let amax = amax.map(|amax| amax.at(&order)).transpose()?;
        let numbers;
        let (factors, raised) = match how {
            How::Given(given) => {
                numbers = given.number().at(&order)?;
                let factors = match given {
                    GivenScale::Decode(_) => GroupedFactors::Decode(&numbers),
                    GivenScale::Encode(_) | GivenScale::Amax(_) => GroupedFactors::Encode(&numbers),
                };
                (factors, amax.as_ref())
            }
            How::Current(recipe) => (GroupedFactors::Amax(amax.as_ref().unwrap_or(&own_amax), recipe.member()), None),
        };
        let cast = GroupedCast {
            input: GroupedInput { x: &x, dtype: source.dtype, forward: forward.as_ref().map(ForwardSpans::of_kernels) },
            members: members(layout, &places, &scratch, &clamped),
            format: scheme.format(),
            scales,
            factors,
            to: [&out, &transposed].map(|out| out.as_ref().map(|out| out.of_kernels())),
            amax: raised,
        };
        self.kernels().quantize_grouped(self.queue(), &cast)
    }

    /// `y = round(fl(code * scale))` of each member, to a buffer of BF16, F16 or F32 in which members lie as in `q`, by rows also where they
    /// are stored transposed. Gaps of `y` stay as they are. Allocates nothing, waits for nothing, reads nothing back: safe inside graph
    /// capture.
    ///
    /// # Errors
    /// [`Error::DType`] for other types; [`Error::Shape`] if `y` is shorter than the buffer of `q`, or there are more members than the
    /// workspace has room for; [`Error::Alignment`] if it begins inside an element.
    pub fn dequantize_grouped_into(&self, q: &GroupedTensor, y: &mut DeviceBytesMut<'_>, dtype: DType) -> Result<()> {
        check_wide("dequantized grouped tensor", dtype)?;
        let (layout, scheme) = (q.layout(), q.scheme());
        let [scratch, _] = self.grouped_scratch(layout.members(), scheme.scales())?;
        let order = self.queue().order();
        let places = layout.read(&order)?;
        let clamped = layout.count(&order)?;
        let members = members(layout, &places, &scratch, &clamped);
        let (spans, y) = (q.read(&order)?, y.at(&order)?);
        let what = (scheme.format(), scheme.scales(), scheme.is_transposed());
        self.kernels().dequantize_grouped(self.queue(), &spans.of_kernels(), &members, what, &y, dtype)
    }

    /// Parts of the workspace: scratch of the plan, and amax of members.
    fn grouped_scratch(&self, count: usize, scales: GroupedScales) -> Result<[Span<'_>; 2]> {
        let workspace = self.workspace();
        let plan = GroupedMembers::scratch_bytes(count).filter(|plan| *plan <= workspace.bytes);
        let amax = scales.count(count).saturating_mul(4);
        let each = if scales == GroupedScales::Shared { 24 } else { 28 };
        match plan.filter(|plan| amax <= workspace.bytes - plan) {
            Some(plan) => Ok([workspace.slice(0, plan), workspace.slice(plan, amax)]),
            None => Err(Error::shape(
                "members of a grouped tensor",
                count.to_string(),
                format!("must be at most {}, which the workspace has room for", (workspace.bytes - 16) / each),
                "split the tensor",
            )),
        }
    }
}

/// Where factors come from.
enum How<'a> {
    Current(GroupedRecipe),
    Given(&'a GivenScale<DeviceBytes<'a>>),
}

struct ForwardSpans<'s> {
    of: ActivationGradient,
    x: Span<'s>,
    dtype: DType,
    offsets: Span<'s>,
    length: usize,
}

impl<'s> ForwardSpans<'s> {
    fn of<'q: 's>(forward: &'q Forward<'_>, order: &'s Order<'q>) -> Result<Self> {
        let (x, offsets) = (forward.x.at(order)?, forward.layout.read(order)?.offsets);
        Ok(Self { of: forward.of, x, dtype: forward.dtype, offsets, length: forward.layout.buffer_len() })
    }

    fn of_kernels(&self) -> GroupedForward<'_> {
        let Self { of, x, dtype, offsets, length } = self;
        GroupedForward { of: *of, x, dtype: *dtype, offsets, length: *length }
    }
}

fn members<'a>(
    layout: &GroupedDeviceLayout,
    places: &'a GroupedPlaces<'_>,
    scratch: &'a Span<'a>,
    clamped: &'a Span<'a>,
) -> GroupedMembers<'a> {
    let GroupedPlaces { rows, cols, offsets } = places;
    GroupedMembers { count: layout.members(), length: layout.buffer_len(), rows, cols, offsets, scratch, clamped }
}

/// As many numbers as so many bytes are; no number of them where they are not whole.
fn floats(bytes: usize) -> usize {
    if bytes.is_multiple_of(4) { bytes / 4 } else { usize::MAX }
}

fn check_wide(operand: &str, dtype: DType) -> Result<()> {
    if dtype.is_wide() {
        return Ok(());
    }
    Err(Error::dtype(operand, dtype, "is not one of bf16, f16, f32", "pass one of these"))
}

/// The target by rows, and the transposed one.
type Targets<'a> = (Option<&'a mut GroupedTensor>, Option<&'a mut GroupedTensor>);

/// Takes the targets apart and checks that they fit.
fn targets(scheme: GroupedScheme, to: GroupedTo<'_>) -> Result<Targets<'_>> {
    let check = |out: &GroupedTensor, wanted: GroupedScheme| {
        if out.scheme() == wanted {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("a target of {}", out.scheme()),
            format!("the cast is to {wanted}"),
            "allocate it with GroupedTensor::zeros for that scheme",
        ))
    };
    match to {
        GroupedTo::One(out) => {
            check(out, scheme)?;
            Ok(if scheme.is_transposed() { (None, Some(out)) } else { (Some(out), None) })
        }
        GroupedTo::Both(out, transposed) => {
            check(out, scheme.by_rows())?;
            check(transposed, scheme.transposed())?;
            if !out.layout().is_same(transposed.layout()) {
                return Err(Error::unsupported(
                    "two targets with layouts of their own",
                    "the device's numbers may differ, and nobody compares them",
                    "give both the same (GroupedDeviceLayout::share)",
                ));
            }
            Ok((Some(out), Some(transposed)))
        }
    }
}
