//! Launches for grouped tensors: `kernels/cast/grouped*.cu`.

use super::Kernels;
use super::grouped_forward::{Forward, GroupedForward, SECOND_INPUT, SECOND_OFFSETS, check_buffer, is_buffer_aligned};
use super::grouped_members::{FEW, GroupedMembers, Members};
use super::launch::{Blocks, ByInput, Kernel, THREADS, enqueue};
use super::module::Modules;
use super::operand::{address, check_aligned, check_bytes, check_floats, format_code, words};
use super::scale_rule::ScaleRule;
use crate::error::Result;
use crate::format::{DType, Fp8Format, Fp8Granularity, Fp8Recipe, GroupedScales};
use crate::gpu::device::memory::{Span, check_apart};
use crate::gpu::device::stream::Queue;

/// Elements of a chunk, and blocks of each multiprocessor, as `kernels/cast/grouped.cuh` has them.
const CHUNK: usize = 8192;
const CHUNK_BLOCKS: usize = 4;
/// Casts by rows of many members have twice as many blocks as run at once: those of the second half begin where others end early. Both halves together take
/// less time than one of longer parts (docs/performance-casts.md).
const QUANTIZE_BLOCKS: usize = 2 * CHUNK_BLOCKS;
const TILE_BLOCKS: usize = 3;
const GRADIENT_BLOCKS: usize = 3;
const GRADIENT_TILE_BLOCKS: usize = 2;

/// The kernels of the family.
pub(super) struct GroupedKernels {
    plan: Kernel,
    clear_amax: Kernel,
    /// Of a plain source, then of a gradient.
    amax: [ByInput; 2],
    quantize: [ByInput; 2],
    /// Amax and cast of a plain source that is aligned, of few members: bf16, f16, f32.
    turns: [[Kernel; 2]; 3],
    quantize_tiles: [ByInput; 2],
    /// Of codes by rows, then of transposed ones.
    dequantize: [ByInput; 2],
    pub(super) clear_between: Kernel,
    pub(super) count_clamped: Kernel,
    pub(super) arrays: Kernel,
    pub(super) spread: Kernel,
    pub(super) amax_over: Kernel,
    pub(super) delayed_update: Kernel,
}

impl GroupedKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let (rows, tiles) = (modules.file("cast/grouped")?, modules.file("cast/grouped_tile")?);
        let (turns, gradient) = (modules.file("cast/grouped_turns")?, modules.file("cast/grouped_gradient")?);
        let between = modules.file("cast/grouped_between")?;
        Ok(Self {
            plan: rows.kernel("plan_grouped")?,
            clear_amax: rows.kernel("clear_grouped_amax")?,
            amax: [rows.by_input("amax_grouped")?, gradient.by_input("amax_grouped_gradient")?],
            quantize: [rows.by_input("quantize_grouped")?, gradient.by_input("quantize_grouped_gradient")?],
            turns: [
                [turns.kernel("amax_grouped_turns_bf16")?, turns.kernel("quantize_grouped_turns_bf16")?],
                [turns.kernel("amax_grouped_turns_f16")?, turns.kernel("quantize_grouped_turns_f16")?],
                [turns.kernel("amax_grouped_turns_f32")?, turns.kernel("quantize_grouped_turns_f32")?],
            ],
            quantize_tiles: [
                tiles.by_input("quantize_grouped_tiles")?,
                gradient.by_input("quantize_grouped_gradient_tiles")?,
            ],
            dequantize: [rows.by_input("dequantize_grouped")?, tiles.by_input("dequantize_grouped_tiles")?],
            clear_between: between.kernel("clear_between_groups")?,
            count_clamped: between.kernel("count_clamped_groups")?,
            arrays: modules.file("gemm/grouped_arrays")?.kernel("gemm_grouped_arrays")?,
            spread: between.kernel("spread_over_groups")?,
            amax_over: between.kernel("amax_over_groups")?,
            delayed_update: modules.file("cast/grouped_delayed")?.kernel("delayed_update_grouped")?,
        })
    }
}

impl GroupedKernels {
    /// The kernels of amax and cast whose blocks take pieces in turns, where there are any: members are few, so that each block finds itself where they lie.
    fn in_turns(&self, cast: &GroupedCast<'_>) -> Option<[Kernel; 2]> {
        let GroupedInput { x, dtype, forward } = &cast.input;
        let place = [DType::Bf16, DType::F16, DType::F32].iter().position(|known| known == dtype)?;
        let known = is_buffer_aligned(x) && forward.is_none() && cast.members.are_few();
        known.then_some(self.turns[place])
    }
}

/// What a grouped quantizer reads.
pub(crate) struct GroupedInput<'a> {
    pub(crate) x: &'a Span<'a>,
    pub(crate) dtype: DType,
    pub(crate) forward: Option<GroupedForward<'a>>,
}

/// What the factors of members follow from: one FP32 a member, or one that all share.
#[derive(Clone, Copy)]
pub(crate) enum GroupedFactors<'a> {
    Encode(&'a Span<'a>),
    Decode(&'a Span<'a>),
    /// Both by this rule.
    Amax(&'a Span<'a>, Fp8Recipe),
}

/// Mirror of `GroupedFactors` in `kernels/cast/grouped.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Factors {
    factor: u64,
    scales: u64,
    scales_t: u64,
    kind: u32,
    shared: u32,
    rule: ScaleRule,
}

/// Codes and scales of a grouped tensor.
#[derive(Clone, Copy)]
pub(crate) struct GroupedCodes<'a> {
    pub(crate) codes: &'a Span<'a>,
    pub(crate) scales: &'a Span<'a>,
}

impl GroupedCodes<'_> {
    /// Codes are stored and loaded eight at a time.
    fn check(&self, members: &GroupedMembers<'_>, scales: GroupedScales) -> Result<()> {
        check_bytes("codes", self.codes, members.length)?;
        check_aligned("codes", self.codes, 16)?;
        check_floats("scales", self.scales, scales.count(members.count))
    }
}

/// One quantization: `code = sat(fl(v * encode))` of members, by rows, transposed, or both, and the scale of every member.
pub(crate) struct GroupedCast<'a> {
    pub(crate) input: GroupedInput<'a>,
    pub(crate) members: GroupedMembers<'a>,
    pub(crate) format: Fp8Format,
    pub(crate) scales: GroupedScales,
    /// An amax among them is found first, and written.
    pub(crate) factors: GroupedFactors<'a>,
    /// By rows, and transposed.
    pub(crate) to: [Option<GroupedCodes<'a>>; 2],
    /// Raised to every amax, where factors are given.
    pub(crate) amax: Option<&'a Span<'a>>,
}

/// The same as its kernels take it.
struct Checked {
    members: Members,
    forward: Option<Forward>,
    factors: Factors,
    codes: [u64; 2],
}

impl GroupedCast<'_> {
    /// That nothing is written where something is read, or where something else is written: blocks do both at the same time.
    fn check_apart(&self) -> Result<()> {
        let Self { input, members, to: [out, transposed], .. } = self;
        let (given, found) = match self.factors {
            GroupedFactors::Encode(span) | GroupedFactors::Decode(span) => (Some(span), self.amax),
            GroupedFactors::Amax(span, _) => (None, Some(span)),
        };
        // Of memory that may be longer as many numbers as are read, or written.
        let count = self.scales.count(members.count);
        let second =
            input.forward.iter().flat_map(|forward| [(SECOND_INPUT, *forward.x), (SECOND_OFFSETS, *forward.offsets)]);
        let read = members.numbers().into_iter().chain([("input", *input.x)]).chain(second);
        let read = read.chain(given.map(|given| words("given scales", given, count)));
        let plain = out.iter().flat_map(|out| [("codes", *out.codes), ("scales", *out.scales)]);
        let turned = transposed.iter();
        let turned =
            turned.flat_map(|out| [("transposed codes", *out.codes), ("scales of transposed codes", *out.scales)]);
        let written = plain.chain(turned).chain(found.map(|amax| words("amax", amax, count)));
        check_apart(read, written.chain([("count of clamped members", *members.clamped)]))
    }

    /// Everything that may be refused of all its launches, so that a refused call leaves no work behind.
    fn checked(&self) -> Result<Checked> {
        let Self { input, members, format, scales, to: [out, transposed], .. } = self;
        let count = scales.count(members.count);
        check_buffer("input", input.x, members.length, input.dtype)?;
        let outputs = [out, transposed].into_iter().flatten();
        outputs.clone().try_for_each(|out| out.check(members, *scales))?;
        let unused = Fp8Recipe::new(Fp8Granularity::Tensor, *format);
        let (factor, kind, recipe) = match self.factors {
            GroupedFactors::Encode(span) => (span, 0, unused),
            GroupedFactors::Decode(span) => (span, 1, unused),
            GroupedFactors::Amax(span, recipe) => (span, 3, Fp8Recipe { format: *format, ..recipe }),
        };
        check_floats(if kind == 3 { "amax" } else { "given scales" }, factor, count)?;
        check_floats("amax", self.amax, count)?;
        self.check_apart()?;
        Ok(Checked {
            members: members.checked(input.forward.as_ref())?,
            forward: input.forward.as_ref().map(|forward| forward.checked(members.count)).transpose()?,
            factors: Factors {
                factor: factor.address,
                scales: address(out.map(|out| out.scales)),
                scales_t: address(transposed.map(|out| out.scales)),
                kind,
                shared: is_shared(*scales),
                rule: ScaleRule::new(recipe, DType::F32),
            },
            codes: [address(out.map(|out| out.codes)), address(transposed.map(|out| out.codes))],
        })
    }
}

fn is_shared(scales: GroupedScales) -> u32 {
    (scales == GroupedScales::Shared) as u32
}

impl Kernels {
    /// Enqueues a quantization: where members lie, their amax where factors follow from it, and the cast. Refused as a whole or not at all.
    pub(crate) fn quantize_grouped(&self, stream: &Queue, cast: &GroupedCast<'_>) -> Result<()> {
        let checked = cast.checked()?;
        let GroupedCast { members, input, .. } = cast;
        let family = self.grouped(stream)?;
        let gradient = usize::from(input.forward.is_some());
        let by_input = |of: &[ByInput; 2]| of[gradient].of(input.dtype, is_buffer_aligned(input.x));
        let (amax, rows, tiles) =
            (by_input(&family.amax)?, by_input(&family.quantize)?, by_input(&family.quantize_tiles)?);
        let turns = family.in_turns(cast);

        let found = match cast.factors {
            GroupedFactors::Amax(to, _) => Some((to, cast.scales.count(members.count))),
            GroupedFactors::Encode(_) | GroupedFactors::Decode(_) => None,
        };
        self.plan_grouped(stream, members, checked.members, found)?;
        if let Some((to, _)) = found {
            let blocks = self.chunk_blocks(members, [CHUNK_BLOCKS, GRADIENT_BLOCKS][gradient]);
            let amax = turns.map_or(amax, |[amax, _]| amax);
            let Checked { members: m, factors, .. } = checked;
            match checked.forward {
                None => enqueue!(stream, amax, blocks, input.x.address, m, factors, to.address)?,
                Some(forward) => enqueue!(stream, amax, blocks, input.x.address, forward, m, factors, to.address)?,
            }
        }
        let Checked { members: m, forward, factors, codes: [codes, codes_t] } = checked;
        let (x, raised) = (input.x.address, address(cast.amax));
        if cast.to[1].is_none() {
            let (kernel, blocks) = match turns {
                Some([_, turns]) => (turns, CHUNK_BLOCKS),
                None => (rows, [QUANTIZE_BLOCKS, GRADIENT_BLOCKS][gradient]),
            };
            let blocks = self.chunk_blocks(members, blocks);
            return match forward {
                None => enqueue!(stream, kernel, blocks, x, m, factors, codes, raised),
                Some(forward) => enqueue!(stream, kernel, blocks, x, forward, m, factors, codes, raised),
            };
        }
        // A tile has at least one element.
        let blocks = self.grouped_blocks(members.length, [TILE_BLOCKS, GRADIENT_TILE_BLOCKS][gradient]);
        match forward {
            None => enqueue!(stream, tiles, blocks, x, m, factors, codes, codes_t, raised),
            Some(forward) => enqueue!(stream, tiles, blocks, x, forward, m, factors, codes, codes_t, raised),
        }
    }

    /// Goes before all others: which rows of each member lie where they may, with a second input only rows that also that has room for, but where members are
    /// few; and zeros in so many amax, which a kernel behind raises, checked by the caller.
    fn plan_grouped(
        &self,
        stream: &Queue,
        members: &GroupedMembers<'_>,
        checked: Members,
        amax: Option<(&Span<'_>, usize)>,
    ) -> Result<()> {
        let family = self.grouped(stream)?;
        let (to, count) = amax.map_or((0, 0), |(amax, count)| (amax.address, count as u32));
        match members.are_few() {
            false => enqueue!(stream, family.plan, Blocks::new((1, 1), 1024), checked, to, count),
            true if count > 0 => enqueue!(stream, family.clear_amax, Blocks::new((1, 1), FEW as u32), to, count),
            true => Ok(()),
        }
    }

    /// `y = round(fl(code * scale))` of members, by rows also of transposed codes.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn dequantize_grouped(
        &self,
        stream: &Queue,
        q: &GroupedCodes<'_>,
        members: &GroupedMembers<'_>,
        (format, scales, transposed): (Fp8Format, GroupedScales, bool),
        y: &Span<'_>,
        dtype: DType,
    ) -> Result<()> {
        q.check(members, scales)?;
        check_buffer("output", y, members.length, dtype)?;
        let read = members.numbers().into_iter().chain([("codes", *q.codes), ("scales", *q.scales)]);
        check_apart(read, [("output", *y), ("count of clamped members", *members.clamped)].into_iter())?;
        let m = members.checked(None)?;
        let kernel = self.grouped(stream)?.dequantize[usize::from(transposed)].of(dtype, is_buffer_aligned(y))?;
        let blocks = match transposed {
            false => self.chunk_blocks(members, CHUNK_BLOCKS),
            true => self.grouped_blocks(members.length, TILE_BLOCKS),
        };
        self.plan_grouped(stream, members, m, None)?;
        enqueue!(
            stream,
            kernel,
            blocks,
            q.codes.address,
            q.scales.address,
            m,
            is_shared(scales),
            format_code(format),
            y.address,
        )
    }

    /// The same for pieces that are chunks.
    fn chunk_blocks(&self, members: &GroupedMembers<'_>, each: usize) -> Blocks {
        self.grouped_blocks(members.length / CHUNK + 2 * members.count, each)
    }

    /// So many blocks of each multiprocessor, or as many as there can be pieces: how many there are the device knows alone.
    fn grouped_blocks(&self, most_pieces: usize, each: usize) -> Blocks {
        Blocks::new((most_pieces.clamp(1, self.sm_count * each), 1), THREADS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::ActivationGradient;

    #[test]
    fn the_mirror_has_the_size_of_what_it_mirrors() {
        assert_eq!(size_of::<Factors>(), 56);
    }

    /// Parts of memory, of which one lies where another does.
    fn refusal_of(cast: impl Fn(&[Span<'_>; 12]) -> Result<()>, moved: usize, onto: usize) -> String {
        let place = |i: usize| Span::unguarded(if i == moved { onto } else { i } as u64 * 4096 + 4096, 24);
        cast(&std::array::from_fn(place)).map_or_else(|refused| refused.to_string(), |()| String::new())
    }

    const NAMES: [&str; 12] = [
        "rows of the layout",
        "columns of the layout",
        "offsets of the layout",
        "input",
        SECOND_INPUT,
        SECOND_OFFSETS,
        "codes",
        "scales",
        "transposed codes",
        "scales of transposed codes",
        "amax",
        "count of clamped members",
    ];

    /// Of three members, in both directions, by amax or by given scales.
    fn cast(parts: &[Span<'_>; 12], given: Option<&Span<'_>>) -> Result<()> {
        let [rows, cols, offsets, x, x2, offsets2, codes, scales, codes_t, scales_t, amax, clamped] = parts;
        let scratch = &Span::unguarded(1 << 20, 24 * 3 + 16);
        let rule = Fp8Recipe::new(Fp8Granularity::Tensor, Fp8Format::E4M3);
        let second =
            GroupedForward { of: ActivationGradient::Silu, x: x2, dtype: DType::Bf16, offsets: offsets2, length: 12 };
        let cast = GroupedCast {
            input: GroupedInput { x, dtype: DType::Bf16, forward: Some(second) },
            members: GroupedMembers { count: 3, length: 12, rows, cols, offsets, scratch, clamped },
            format: Fp8Format::E4M3,
            scales: GroupedScales::PerMember,
            factors: given.map_or(GroupedFactors::Amax(amax, rule), GroupedFactors::Encode),
            to: [Some(GroupedCodes { codes, scales }), Some(GroupedCodes { codes: codes_t, scales: scales_t })],
            amax: given.map(|_| amax),
        };
        cast.checked().map(drop)
    }

    /// Numbers of the layout, elements, words of codes and FP32 numbers each begin at a multiple of their size.
    #[test]
    fn buffers_begin_where_their_elements_may() {
        let needs = [8, 8, 8, 2, 2, 8, 16, 4, 16, 4, 4, 4];
        let at = |moved: usize, by: u64| {
            let place = |i: usize| Span::unguarded(i as u64 * 4096 + 4096 + if i == moved { by } else { 0 }, 24);
            std::array::from_fn(place)
        };
        for (i, need) in needs.into_iter().enumerate() {
            cast(&at(i, need), None).unwrap();
            let said = cast(&at(i, need / 2), None).unwrap_err().to_string();
            // Codes of both orders are called so.
            let name = NAMES[i].strip_prefix("transposed ").unwrap_or(NAMES[i]).split(" of transposed").next().unwrap();
            assert!(said.contains(name) && said.contains(&format!("{need}-byte aligned")), "{}: {said}", NAMES[i]);
        }
        let given = Span::unguarded((1 << 16) + 2, 12);
        assert!(cast(&at(0, 0), Some(&given)).unwrap_err().to_string().contains("given scales"));
    }

    #[test]
    fn nothing_is_written_where_others_read_or_write() {
        let found = |parts: &[Span<'_>; 12]| cast(parts, None);
        let given = |parts: &[Span<'_>; 12]| cast(parts, Some(&Span::unguarded(1 << 16, 12)));
        assert_eq!([refusal_of(found, 0, 0), refusal_of(given, 0, 0)], ["", ""]);
        for (moved, onto) in (6..12).flat_map(|moved| (0..moved).map(move |onto| (moved, onto))) {
            for said in [refusal_of(found, moved, onto), refusal_of(given, moved, onto)] {
                let says = said.contains("overlap") && said.contains(NAMES[moved]) && said.contains(NAMES[onto]);
                assert!(says, "{} at {}: {said:?}", NAMES[moved], NAMES[onto]);
            }
        }
        for written in 6..12 {
            let said = refusal_of(|parts| cast(parts, Some(&Span::unguarded(parts[written].address + 8, 12))), 0, 0);
            assert!(said.contains("given scales") && said.contains(NAMES[written]), "{}: {said:?}", NAMES[written]);
        }
        // Numbers of three members each, side by side, given and received by views that are longer.
        for beside in [-12i64, 12] {
            let long = |parts: &[Span<'_>; 12]| Span::unguarded(parts[10].address.wrapping_add_signed(beside), 24);
            assert_eq!(refusal_of(|parts| cast(parts, Some(&long(parts))), 0, 0), "", "{beside}");
        }
        // Two that are read may lie together: an activation of its own gradient.
        assert_eq!(refusal_of(found, 4, 3), "");
    }
}
