//! What is checked of a call. Needs no GPU.

use super::*;
use crate::format::Fp8Granularity;
use crate::gpu::kernels::sm90_config::E4M3_PAIR;
use crate::gpu::kernels::sm90_groups::Sm90Rows;

/// How many operands of a call are checked.
const OPERANDS: usize = 9;
const NAMES: [&str; OPERANDS] =
    ["A", "scales of A", "B", "scales of B", "D", "counts of groups", "starts of groups", "bias", "residual"];

fn span(bytes: usize) -> Span<'static> {
    Span::unguarded(0x7F00_0000_0000, bytes)
}

/// A product whose operands are exactly as long as it needs, with something changed.
fn check(
    shape: [usize; 3],
    d_stride: usize,
    slots: Option<(usize, usize)>,
    lengths: [isize; OPERANDS],
) -> std::result::Result<(), String> {
    check_places(shape, d_stride, slots, Sm90Scales::Blocks, lengths, [0; OPERANDS])
}

/// The same of operands that begin so many bytes later; slots of no rows are starts.
fn check_places(
    [m, n, k]: [usize; 3],
    d_stride: usize,
    slots: Option<(usize, usize)>,
    layout: Sm90Scales,
    lengths: [isize; OPERANDS],
    places: [u64; OPERANDS],
) -> std::result::Result<(), String> {
    let groups = slots.map_or(1, |(count, _)| count);
    let scales = match layout {
        Sm90Scales::Blocks => {
            [m.next_multiple_of(4) * k.div_ceil(128), groups * n.div_ceil(128) * k.div_ceil(128).next_multiple_of(4)]
        }
        Sm90Scales::Vectors => [m, groups * n].map(|rows| rows.next_multiple_of(4) * k.div_ceil(128)),
        Sm90Scales::BlocksOfA => {
            [m.div_ceil(128) * k.div_ceil(128).next_multiple_of(4), n.next_multiple_of(4) * k.div_ceil(128)]
        }
        Sm90Scales::Outer { each } => [if each[0] { m } else { 1 }, if each[1] { groups * n } else { 1 }],
    };
    let d = extent(m, n, d_stride);
    let exact: [usize; OPERANDS] =
        [m * k, scales[0] * 4, groups * n * k, scales[1] * 4, d * 2, groups * 8, groups * 8, groups * n * 4, d * 2];
    let mut spans =
        exact.iter().zip(lengths).map(|(exact, more)| span((*exact as isize + more) as usize)).collect::<Vec<_>>();
    spans.iter_mut().zip(places).for_each(|(span, place)| span.address += place);
    let call = Sm90Call {
        config: Sm90Config::Tile128x128,
        stand_in: None,
        formats: E4M3_PAIR,
        m,
        n,
        k,
        a: Sm90Operand { codes: &spans[0], scales: &spans[1] },
        b: Sm90Operand { codes: &spans[2], scales: &spans[3] },
        layout,
        d: &spans[4],
        d_stride,
        d_type: DType::Bf16,
        alpha: 1.0,
        beta: 0.0,
        bias: Some((&spans[7], DType::F32)),
        activation: Activation::Gelu,
        residual: Some((&spans[8], d_stride, DType::F16)),
        groups: slots.map(|(count, slot_rows)| {
            let rows = if slot_rows == 0 { Sm90Rows::Starts(&spans[6]) } else { Sm90Rows::Slots(slot_rows) };
            Sm90Groups { count, along: Sm90Along::Rows, rows, counts: &spans[5], scales: [false; 2] }
        }),
        end: Sm90End::Numbers,
    };
    call.check().map_err(|error| error.to_string())
}

#[test]
fn exact_lengths_are_taken_and_shorter_ones_refused() {
    for shape in [[1, 8, 16], [127, 136, 144], [4099, 520, 7168], [0, 8, 16], [3, 0, 16]] {
        check(shape, shape[1] + 16, None, [0; OPERANDS]).unwrap();
    }
    check([512, 256, 400], 256, Some((4, 128)), [0; OPERANDS]).unwrap();
    check([512, 256, 400], 256, Some((0, 128)), [0; OPERANDS]).unwrap();
    // One row has no next one.
    check([1, 16, 32], 1 << 63, None, [0; OPERANDS]).unwrap();
    for (at, word) in NAMES.into_iter().enumerate() {
        let mut lengths = [0; OPERANDS];
        lengths[at] = -1;
        let error = check([512, 256, 400], 264, Some((4, 0)), lengths).unwrap_err();
        assert!(error.starts_with(word) && error.contains("must be at least"), "{word}: {error}");
        assert_eq!(error.contains("31 bytes for 4 groups"), [5, 6].contains(&at), "{error}");
    }
    // Starts are not read where there are slots.
    check([512, 256, 400], 264, Some((4, 128)), [0, 0, 0, 0, 0, 0, -1, 0, 0]).unwrap();
}

#[test]
fn operands_begin_where_the_kernel_can_read_them() {
    for (at, word) in NAMES.into_iter().enumerate() {
        let needed = [16, 16, 16, 16, 16, 8, 8, 4, 2][at];
        let mut places = [0; OPERANDS];
        for place in [needed, needed / 2] {
            places[at] = place;
            let found = check_places([512, 256, 400], 264, Some((4, 0)), Sm90Scales::Blocks, [0; OPERANDS], places);
            assert_eq!(found.is_ok(), place == needed, "{word} {place} bytes later: {found:?}");
            assert!(found.err().is_none_or(|error| error.starts_with(word)), "{word}");
        }
    }
}

#[test]
fn what_the_kernel_cannot_touch_is_refused() {
    for (shape, stride, slots, words) in [
        ([4, 12, 32], 16, None, "n a multiple of 8"),
        ([4, 16, 24], 16, None, "k must be a multiple of 16"),
        ([4, 16, 0], 16, None, "above 0"),
        ([4, 16, 32], 8, None, "row stride 8 (bf16) for n = 16"),
        ([4, 16, 32], 20, None, "row stride 20 (bf16) for n = 16 must be a multiple of 16 bytes"),
        ([1 << 31, 8, 16], 8, None, "below 2^31"),
        ([0, 128, 16], 128, Some((1 << 24, 0)), "below 2^31"),
        ([1 << 18, 128, 16], 128, Some((1 << 18, 0)), "below 2^31"),
        ([0, 0, 16], 0, Some((1 << 31, 0)), "below 2^31"),
        ([256, 136, 128], 136, Some((2, 128)), "multiple of 128: no 128x128 scale"),
        ([256, 128, 128], 128, Some((3, 128)), "256 rows for 3 slots of 128"),
        ([256, 128, 128], 128, Some((2, 126)), "multiple of 4 rows"),
    ] {
        let error = check(shape, stride, slots, [0; OPERANDS]).unwrap_err();
        assert!(error.contains(words), "{shape:?}: {error}");
    }
}

/// For scales of every kind: why is in the kernels' blocks, not in a scale.
#[test]
fn slots_along_k_are_of_whole_blocks() {
    Sm90Along::K.check_slots(512, 2, 256).unwrap();
    for slot in [64, 132, 384] {
        let error = Sm90Along::K.check_slots(512, 2, slot).unwrap_err().to_string();
        let words = [
            &format!("k: 512 for 2 slots of {slot}"),
            "multiple of 128",
            "blocks of 128, of which none belongs to two groups",
        ];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

/// Products that cast D: what they store, and what they do not do.
#[test]
fn casts_of_d_have_codes_and_scales_and_no_more() {
    let recipe = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3);
    type Change = fn(&mut Sm90Call<'_>);
    let check = |[m, n, k]: [usize; 3], swiglu: bool, d: [usize; 2], recipe, change: Change| {
        let parts = if swiglu { 2 } else { 1 };
        let blocks = k.div_ceil(128);
        let a = [span(m * k), span(m.next_multiple_of(4) * blocks * 4)];
        let b = [span(parts * n * k), span(parts * n.div_ceil(128) * blocks.next_multiple_of(4) * 4)];
        let (d, scales, bias) = (span(d[0]), span(d[1]), span(n * 4));
        let codes = Sm90Codes { scales: &scales, recipe };
        let mut call = Sm90Call {
            config: Sm90Config::Tile64x128,
            stand_in: None,
            formats: E4M3_PAIR,
            m,
            n,
            k,
            a: Sm90Operand { codes: &a[0], scales: &a[1] },
            b: Sm90Operand { codes: &b[0], scales: &b[1] },
            layout: Sm90Scales::Blocks,
            d: &d,
            d_stride: n,
            d_type: DType::E4M3,
            alpha: 1.0,
            beta: 0.0,
            bias: (!swiglu).then_some((&bias, DType::F32)),
            activation: Activation::None,
            residual: None,
            groups: None,
            end: if swiglu { Sm90End::Swiglu(Some(codes)) } else { Sm90End::Codes(codes) },
        };
        change(&mut call);
        call.check().map_err(|error| error.to_string())
    };
    for swiglu in [false, true] {
        let exact = [130 * 256, 132 * 2 * 4];
        check([130, 256, 400], swiglu, exact, recipe, |_| {}).unwrap();
        for (at, word) in ["D", "scales of D"].into_iter().enumerate() {
            let mut short = exact;
            short[at] -= 1;
            let error = check([130, 256, 400], swiglu, short, recipe, |_| {}).unwrap_err();
            assert!(error.starts_with(word) && error.contains("must be at least"), "{error}");
        }
        let refused = |n, recipe, change: Change, words: &str| {
            let error = check([130, n, 400], swiglu, exact, recipe, change).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        let rows = Fp8Recipe::new(Fp8Granularity::Row, Fp8Format::E4M3);
        refused(256, rows, |_| {}, "fp8-row");
        refused(256, recipe, |call| call.d_stride = 272, "row stride 272");
        refused(256, recipe, |call| call.beta = 1.0, "old value of D");
        refused(if swiglu { 64 } else { 72 }, recipe, |_| {}, "must be a multiple of");
        refused(
            256,
            recipe,
            |call| call.layout = Sm90Scales::Vectors,
            if swiglu { "1x128 scales of B" } else { "other scales" },
        );
        if !swiglu {
            refused(256, recipe, |call| call.layout = Sm90Scales::Outer { each: [false; 2] }, "other scales");
        }
        if swiglu {
            refused(256, recipe, |call| call.activation = Activation::Relu, "SwiGLU");
        }
    }
}

#[test]
fn scales_of_rows_and_matrices_have_lengths_of_their_own() {
    let check =
        |each, lengths, places| check_places([130, 136, 400], 136, None, Sm90Scales::Outer { each }, lengths, places);
    for each in [[true, true], [true, false], [false, true], [false, false]] {
        check(each, [0; OPERANDS], [0; OPERANDS]).unwrap();
        for at in [1, 3] {
            let (mut lengths, mut places) = ([0; OPERANDS], [0; OPERANDS]);
            lengths[at] = -1;
            let error = check(each, lengths, places).unwrap_err();
            assert!(error.starts_with(NAMES[at]) && error.contains("must be at least"), "{error}");
            // Single numbers are read.
            places[at] = 4;
            check(each, [0; OPERANDS], places).unwrap();
            places[at] = 2;
            assert!(check(each, [0; OPERANDS], places).unwrap_err().contains("4-byte aligned"));
        }
    }
    // B of groups has scales for the rows of all.
    let grouped = |layout, lengths| check_places([256, 128, 128], 128, Some((2, 128)), layout, lengths, [0; OPERANDS]);
    let outers = [[true, true], [false, true], [true, false]].map(|each| Sm90Scales::Outer { each });
    for layout in outers.into_iter().chain([Sm90Scales::Vectors]) {
        grouped(layout, [0; OPERANDS]).unwrap();
        let mut lengths = [0; OPERANDS];
        lengths[3] = -1;
        assert!(grouped(layout, lengths).unwrap_err().starts_with("scales of B"));
    }
    for (layout, at) in [Sm90Scales::Vectors, Sm90Scales::BlocksOfA].into_iter().flat_map(|l| [(l, 1), (l, 3)]) {
        let check = |lengths, places| check_places([130, 136, 400], 136, None, layout, lengths, places);
        check([0; OPERANDS], [0; OPERANDS]).unwrap();
        let (mut lengths, mut places) = ([0; OPERANDS], [0; OPERANDS]);
        lengths[at] = -1;
        assert!(check(lengths, places).unwrap_err().contains("must be at least"));
        places[at] = 8;
        assert!(check([0; OPERANDS], places).unwrap_err().contains("16-byte aligned"));
    }
    let error = grouped(Sm90Scales::BlocksOfA, [0; OPERANDS]).unwrap_err();
    assert!(error.contains("groups with 128x128 scales of A"), "{error}");
}

/// Of groups of k A and B are one matrix each, and D has one for each group: of the formats of others, and epilogues, there are no kernels.
#[test]
fn groups_of_k_have_one_a_and_b_and_many_d() {
    type Change = fn(&mut Sm90Call<'_>);
    let check = |[m, n, k]: [usize; 3], (count, slot): (usize, usize), lengths: [isize; 7], change: Change| {
        let scales = |rows: usize| rows.next_multiple_of(4) * k.div_ceil(128) * 4;
        let exact = [m * k, scales(m), n * k, scales(n), count * m * n * 4, count * 8, count * 8];
        let spans = exact.iter().zip(lengths).map(|(exact, more)| span((*exact as isize + more) as usize));
        let spans: Vec<_> = spans.collect();
        let mut call = Sm90Call {
            config: Sm90Config::Tile256x128,
            stand_in: None,
            formats: E4M3_PAIR,
            m,
            n,
            k,
            a: Sm90Operand { codes: &spans[0], scales: &spans[1] },
            b: Sm90Operand { codes: &spans[2], scales: &spans[3] },
            layout: Sm90Scales::Vectors,
            d: &spans[4],
            d_stride: n,
            d_type: DType::F32,
            alpha: 1.0,
            beta: 1.0,
            bias: None,
            activation: Activation::None,
            residual: None,
            groups: Some(Sm90Groups {
                count,
                along: Sm90Along::K,
                rows: if slot == 0 { Sm90Rows::Starts(&spans[6]) } else { Sm90Rows::Slots(slot) },
                counts: &spans[5],
                scales: [false; 2],
            }),
            end: Sm90End::Numbers,
        };
        change(&mut call);
        assert!([Kind::VectorFp32OfK, Kind::VectorOfK].contains(&call.kind()));
        let [a, b] = call.maps(call.config.tile());
        assert_eq!(([a.rows, a.cols], [b.rows, b.cols]), ([m, k], [n, k]));
        call.check().map_err(|error| error.to_string())
    };
    fn same(_: &mut Sm90Call<'_>) {}
    // Rows of B are not divided among groups: any multiple of 8.
    for (shape, groups) in [([130, 136, 768], (3, 256)), ([130, 136, 784], (3, 256)), ([130, 136, 400], (3, 0))] {
        check(shape, groups, [0; 7], same).unwrap();
        for at in 0..if groups.1 == 0 { 7 } else { 6 } {
            let mut lengths = [0; 7];
            lengths[at] = -1;
            let error = check(shape, groups, lengths, same).unwrap_err();
            assert!(error.starts_with(NAMES[at]) && error.contains("must be at least"), "{error}");
        }
    }
    let refused = |shape, groups, change: Change, words: &str| {
        let error = check(shape, groups, [0; 7], change).unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    let shape = [128, 128, 512];
    refused(shape, (4, 132), same, "512 for 4 slots of 132");
    refused(shape, (5, 128), same, "512 for 5 slots of 128");
    refused([1 << 16, 128, 512], (1 << 15, 0), same, "below 2^31");
    let bias: Change = |call| call.bias = Some((Box::leak(Box::new(span(512))), DType::F32));
    refused(shape, (4, 128), bias, "with groups of k");
    refused(shape, (4, 128), |call| call.activation = Activation::Relu, "with groups of k");
    refused(shape, (4, 128), |call| call.d_type = DType::Bf16, "beta");
}

/// And none of tiles of scales, nor of scales of groups; of those of rows and matrices, which groups share, sums alone are stored or added.
#[test]
fn groups_of_k_have_the_scales_that_their_kernels_read() {
    let all = span(1 << 20);
    let operand = Sm90Operand { codes: &all, scales: &all };
    let call = |layout, along| Sm90Call {
        config: Sm90Config::Tile64x64,
        stand_in: None,
        formats: E4M3_PAIR,
        m: 128,
        n: 128,
        k: 512,
        a: operand,
        b: operand,
        layout,
        d: &all,
        d_stride: 128,
        d_type: DType::F32,
        alpha: 1.0,
        beta: 1.0,
        bias: None,
        activation: Activation::None,
        residual: None,
        groups: Some(Sm90Groups { count: 1, along, rows: Sm90Rows::Slots(128), counts: &all, scales: [false; 2] }),
        end: Sm90End::Numbers,
    };
    call(Sm90Scales::Vectors, Sm90Along::K).check().unwrap();
    call(Sm90Scales::Blocks, Sm90Along::Rows).check().unwrap();
    let refused = |call: Sm90Call<'_>, words: &str| {
        let error = call.check().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(call(Sm90Scales::Blocks, Sm90Along::K), "groups of k with 128x128 scales");
    refused(call(Sm90Scales::BlocksOfA, Sm90Along::K), "groups with 128x128 scales of A");
    for each in [[true; 2], [false; 2], [true, false]] {
        let outer = || call(Sm90Scales::Outer { each }, Sm90Along::K);
        outer().check().unwrap();
        assert_eq!(outer().kind(), Kind::OuterFp32OfK);
        let others: [fn(&mut Sm90Call<'_>); 5] = [
            |call| call.beta = 0.0,
            |call| call.alpha = 0.5,
            |call| call.alpha = f32::NAN,
            |call| call.beta = 0.5,
            |call| (call.d_type, call.beta) = (DType::Bf16, 0.0),
        ];
        for change in others {
            let mut call = outer();
            change(&mut call);
            refused(call, "an alpha and a beta of 1 alone");
        }
        let mut own = outer();
        own.groups.as_mut().unwrap().scales = [true, false];
        refused(own, "they share the scales of A and of B");
        // A scale for each row, or one: of groups of k A and B are one matrix each.
        for (at, name, count) in [(0, "scales of A", each[0]), (1, "scales of B", each[1])] {
            let short = span(if count { 127 * 4 } else { 3 });
            let mut call = outer();
            let operand = Sm90Operand { codes: &all, scales: &short };
            if at == 0 {
                call.a = operand
            } else {
                call.b = operand
            }
            refused(call, name);
        }
    }
}

/// Only what a kernel with one end does the same way: alpha, what follows the sums, the type of D, codes and the least blocks of k all count.
#[test]
fn what_has_one_end_goes_to_kernels_that_have_no_other() {
    let (at, counts) = (span(1 << 30), span(8));
    let operand = Sm90Operand { codes: &at, scales: &at };
    let kind = |layout, along: Option<Sm90Along>, d_type, change: fn(&mut Sm90Call<'_>)| {
        let mut call = Sm90Call {
            config: Sm90Config::Tile256x128,
            stand_in: None,
            formats: E4M3_PAIR,
            m: 256,
            n: 256,
            k: 1024,
            a: operand,
            b: operand,
            layout,
            d: &at,
            d_stride: 256,
            d_type,
            alpha: 1.0,
            beta: 0.0,
            bias: None,
            activation: Activation::None,
            residual: None,
            groups: along.map(|along| Sm90Groups {
                count: 1,
                along,
                rows: Sm90Rows::Slots(256),
                counts: &counts,
                scales: [false; 2],
            }),
            end: Sm90End::Numbers,
        };
        change(&mut call);
        call.kind()
    };
    let outer = Sm90Scales::Outer { each: [true; 2] };
    let (rows, of_k) = (Some(Sm90Along::Rows), Some(Sm90Along::K));
    for (layout, along, d_type, one, all) in [
        (Sm90Scales::Blocks, None, DType::Bf16, Kind::Plain, Kind::Block),
        (Sm90Scales::Blocks, rows, DType::Bf16, Kind::PlainGrouped, Kind::Grouped),
        (outer, None, DType::Bf16, Kind::OuterPlain, Kind::Outer),
        (outer, rows, DType::Bf16, Kind::OuterPlainGrouped, Kind::OuterGrouped),
        (Sm90Scales::Vectors, None, DType::F32, Kind::VectorFp32, Kind::Vector),
        (Sm90Scales::Vectors, of_k, DType::F32, Kind::VectorFp32OfK, Kind::VectorOfK),
    ] {
        let of = |change| kind(layout, along, d_type, change);
        assert_eq!(of(|_| ()), one, "{layout:?}");
        let others: [fn(&mut Sm90Call<'_>); 7] = [
            |call| call.alpha = 0.5,
            |call| call.alpha = f32::NAN,
            |call| call.beta = 0.5,
            |call| call.bias = Some((call.d, DType::F32)),
            |call| call.activation = Activation::Relu,
            |call| call.residual = Some((call.d, 256, DType::Bf16)),
            |call| call.formats[1] = Fp8Format::E5M2,
        ];
        assert_eq!(others.map(of), [all; 7], "{layout:?}");
        // D of another type, and the old D: FP32 is added to.
        let other = |d_type| kind(layout, along, d_type, |_| ());
        let fp32 = layout == Sm90Scales::Vectors;
        assert_eq!([other(DType::F16), other(if fp32 { DType::Bf16 } else { DType::F32 })], [all; 2], "{layout:?}");
        assert_eq!(of(|call| call.beta = 1.0), if fp32 { one } else { all }, "{layout:?}");
        // Few blocks of k, of which the loop of tiles of 256 x 128 has none.
        let blocks = layout == Sm90Scales::Blocks;
        assert_eq!(of(|call| call.k = 896), if blocks { all } else { one }, "{layout:?}");
        assert_eq!(of(|call| call.k = 897), one, "{layout:?}");
    }
    assert_eq!(kind(Sm90Scales::Vectors, rows, DType::F32, |_| ()), Kind::VectorGrouped);
    assert_eq!(kind(Sm90Scales::BlocksOfA, None, DType::Bf16, |_| ()), Kind::BlockA);
}

/// Plans do not know alpha: where it is not 1, kernels that do not multiply by it are left to others, which the plan chose, or the call is refused.
#[test]
fn alpha_takes_a_configuration_that_multiplies_by_it() {
    let at = span(1 << 30);
    let operand = Sm90Operand { codes: &at, scales: &at };
    let with = |config, stand_in, alpha| Sm90Call {
        config,
        stand_in,
        formats: E4M3_PAIR,
        m: 256,
        n: 576,
        k: 16,
        a: operand,
        b: operand,
        layout: Sm90Scales::Blocks,
        d: &at,
        d_stride: 576,
        d_type: DType::Bf16,
        alpha,
        beta: 0.0,
        bias: None,
        activation: Activation::None,
        residual: None,
        groups: None,
        end: Sm90End::Numbers,
    };
    for config in Sm90Config::ALL {
        for other in Sm90Config::ALL {
            let of = |alpha| with(config, Some(other), alpha);
            assert_eq!(of(1.0).config_with_the_end(), config);
            let (call, stands_in) = (of(0.5), other.stands_in_for(config));
            let taken = if config.ends_plainly() && stands_in { other } else { config };
            assert_eq!((call.kind(), call.config_with_the_end()), (Kind::Block, taken), "{config}, {other}");
            let serves = taken.tile_of(Kind::Block, E4M3_PAIR).is_some();
            assert_eq!(serves, !config.ends_plainly() || stands_in, "{config}, {other}");
        }
        assert_eq!(with(config, None, 0.5).config_with_the_end(), config);
        // As where k is too short for the loop of the largest.
        let kind = if config.least_plain_blocks() > 1 { Kind::Block } else { Kind::Plain };
        assert_eq!(with(config, None, 1.0).kind(), kind, "{config}");
    }
    let (k2, other) = (Sm90Config::Tile128x144K2, Sm90Config::Tile128x64K2);
    assert_eq!(with(k2, Some(other), 2.0).config_with_the_end(), other);
    assert!(!Sm90Config::Tile128x160.stands_in_for(k2) && !k2.stands_in_for(k2), "of other bits, or without the end");
}
