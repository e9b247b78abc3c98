//! Grouped tensors on the device: `Handle::{quantize_grouped_into, quantize_grouped_with_scales_into, dequantize_grouped_into}`.
//!
//! The bytes of members are those of [`crate::reference`]; gaps are neither read nor written.

use crate::epilogue::ActivationGradient;
use crate::error::{Error, Result};
use crate::format::{DType, Fp8Format, GivenScale, GroupedRecipe, GroupedScales, GroupedScheme};
use crate::gpu::device::memory::{DeviceBytes, DeviceBytesMut, Span};
use crate::gpu::device::stream::Order;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{GroupedFactors, GroupedForward, GroupedInput, GroupedMembers};
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
    /// [`Error::Shape`] if a buffer is too short, or there are more members than the workspace has room for, above a million;
    /// [`Error::Unsupported`] for a tensor of another scheme than the recipe's, or two with different layouts.
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
    /// `amax`, where given, is raised to every amax of `v` before scaling; the caller sets it to zero first.
    ///
    /// # Errors
    /// As [`Handle::quantize_grouped_into`]; [`Error::Shape`] for another number of scales; [`Error::Unsupported`] if an amax is given.
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
        let (count, length, scales) = (layout.members(), layout.buffer_len(), scheme.scales());
        let scales_count = scales.count(count);
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

        let (stream, kernels) = (self.queue(), self.kernels());
        let order = stream.order();
        let places = layout.read(&order)?;
        let clamped = layout.count(&order)?;
        let members = members(layout, &places, &scratch, &clamped);
        let x = source.values.at(&order)?;
        let forward = source.forward.as_ref().map(|forward| ForwardSpans::of(forward, &order)).transpose()?;
        let forward = forward.as_ref().map(ForwardSpans::of_kernels);
        let input = GroupedInput { x: &x, dtype: source.dtype, forward };
        let out = out.as_deref().map(|out| out.write(&order)).transpose()?;
        let transposed = transposed.as_deref().map(|out| out.write(&order)).transpose()?;
        let (out, transposed) = (out.as_ref().map(|o| o.of_kernels()), transposed.as_ref().map(|o| o.of_kernels()));
        let to = [out.as_ref(), transposed.as_ref()];
        let amax = amax.map(|amax| amax.at(&order)).transpose()?;
        let what: (Fp8Format, GroupedScales) = (scheme.format(), scales);

        // A call that is refused leaves no work behind, in a capture neither.
        input.check(&members)?;
        kernels.plan_grouped(stream, &members, input.forward.as_ref())?;
        debug_assert_eq!(members.length, length);
        match how {
            How::Given(given) => {
                let numbers = given.number().at(&order)?;
                let factors = match given {
                    GivenScale::Decode(_) => GroupedFactors::Decode(&numbers),
                    GivenScale::Encode(_) | GivenScale::Amax(_) => GroupedFactors::Encode(&numbers),
                };
                kernels.quantize_grouped(stream, &input, &members, what, factors, to, amax.as_ref())
            }
            How::Current(recipe) => {
                let amax = amax.as_ref().unwrap_or(&own_amax);
                kernels.zero(stream, amax, scales_count * 4)?;
                kernels.amax_grouped(stream, &input, &members, scales, amax)?;
                let factors = GroupedFactors::Amax(amax, recipe.member());
                kernels.quantize_grouped(stream, &input, &members, what, factors, to, None)
            }
        }
    }

    /// `y = round(fl(code * scale))` of each member, to a buffer of BF16, F16 or F32 in which members lie as in `q`, by rows also where they
    /// are stored transposed. Gaps of `y` stay as they are. Allocates nothing, waits for nothing, reads nothing back: safe inside graph
    /// capture.
    ///
    /// # Errors
    /// [`Error::DType`] for other types; [`Error::Shape`] if `y` is shorter than the buffer of `q`, or there are more members than the
    /// workspace has room for.
    pub fn dequantize_grouped_into(&self, q: &GroupedTensor, y: &mut DeviceBytesMut<'_>, dtype: DType) -> Result<()> {
        check_wide("dequantized grouped tensor", dtype)?;
        let (layout, scheme) = (q.layout(), q.scheme());
        let [scratch, _] = self.grouped_scratch(layout.members(), scheme.scales())?;
        let (stream, kernels) = (self.queue(), self.kernels());
        let order = stream.order();
        let places = layout.read(&order)?;
        let clamped = layout.count(&order)?;
        let members = members(layout, &places, &scratch, &clamped);
        let (spans, y) = (q.read(&order)?, y.at(&order)?);
        kernels.plan_grouped(stream, &members, None)?;
        let what = (scheme.format(), scheme.scales(), scheme.is_transposed());
        kernels.dequantize_grouped(stream, &spans.of_kernels(), &members, what, &y, dtype)
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
