//! Grouped tensors on the CPU: byte for byte their definition and each member alone, over layouts, formats, scales and both orders; the
//! gradients of activations; every defect that the review of TransformerEngine's kernel found, where a CPU can have it.

use ndarray::{Array2, ArrayView2};
use scaled_gemm::codec::{decode, encode, round_to};
use scaled_gemm::reference::{
    GroupedInput, GroupedView, Noise, definition, delayed_update, delayed_update_grouped, dequantize,
    dequantize_grouped, quantize, quantize_grouped, quantize_grouped_with_scales, quantize_tensor, raise_amax,
};
use scaled_gemm::{
    AmaxHistory, DType, Fp8Format, Fp8Rule, GivenScale, GroupScale, GroupedLayout, GroupedRecipe, GroupedScheme,
    HostGroupedTensor, Result,
};

#[path = "grouped_reference/gradients.rs"]
mod gradients;
#[path = "grouped_reference/refusals.rs"]
mod refusals;

const E4M3: GroupedScheme = GroupedScheme::new(Fp8Format::E4M3);

/// Ragged rows, ragged columns, both, one row, one column, members without elements at both ends and between, and one of several pieces.
const SHAPES: [[usize; 2]; 12] =
    [[0, 16], [3, 16], [5, 7], [1, 1], [0, 0], [130, 48], [7, 0], [1, 33], [40, 1], [67, 129], [16, 32], [4, 0]];

/// T matrices, every seventh without elements.
fn many(count: usize) -> Vec<[usize; 2]> {
    (0..count).map(|t| if t % 7 == 3 { [0, 16] } else { [1 + t % 5, [16, 1, 32, 7][t % 4]] }).collect()
}

/// Packed, aligned, and with gaps of all lengths before, between and behind members that begin anywhere.
fn layouts(shapes: &[[usize; 2]]) -> Vec<GroupedLayout> {
    let (mut offsets, mut end) = (Vec::new(), 5);
    for (t, [rows, cols]) in shapes.iter().enumerate() {
        offsets.push(end);
        end += rows * cols + t * 3 % 11;
    }
    let gaps = GroupedLayout::new(shapes, &offsets, end + 3).unwrap();
    let aligned = GroupedLayout::aligned(shapes, 64).unwrap();
    vec![GroupedLayout::packed(shapes).unwrap(), aligned, gaps]
}

/// Normal numbers, each member of another magnitude, some of its values special; NaN in gaps, so that one that is read is seen.
fn values(layout: &GroupedLayout, dtype: DType, seed: u64) -> Vec<f32> {
    let mut noise = Noise::new(seed);
    let mut values = vec![f32::NAN; layout.buffer_len()];
    for (t, member) in layout.members().iter().enumerate() {
        let magnitude = 2f32.powi((t as i32 * 5) % 23 - 11);
        for (at, v) in values[member.range()].iter_mut().enumerate() {
            *v = match (noise.below(61), at) {
                (0, 1..) => f32::NAN,
                (1, _) => -0.0,
                (2, _) if t % 9 == 5 => f32::NEG_INFINITY,
                _ => round_to(dtype, noise.normal() * magnitude),
            };
        }
    }
    values
}

/// The same in another layout, gaps poisoned again.
fn moved(from: &GroupedLayout, values: &[f32], to: &GroupedLayout) -> Vec<f32> {
    let mut out = vec![f32::NAN; to.buffer_len()];
    for (a, b) in from.members().iter().zip(to.members()) {
        out[b.range()].copy_from_slice(&values[a.range()]);
    }
    out
}

fn input<'a>(layout: &'a GroupedLayout, values: &'a [f32]) -> GroupedInput<'a> {
    GroupedView::new(layout, values).unwrap().into()
}

fn encodes(scheme: GroupedScheme, members: usize) -> Vec<f32> {
    (0..scheme.scales().count(members)).map(|t| 1.5 + 0.5 * t as f32).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

#[track_caller]
fn same(got: &Result<(HostGroupedTensor, Vec<f32>)>, want: &Result<(HostGroupedTensor, Vec<f32>)>, what: &str) {
    let ((got, amax), (want, want_amax)) = (got.as_ref().unwrap(), want.as_ref().unwrap());
    assert_eq!((got.scheme(), got.layout()), (want.scheme(), want.layout()), "{what}");
    assert_eq!(bits(amax), bits(want_amax), "amax, {what}");
    assert_eq!(bits(got.scales()), bits(want.scales()), "scales, {what}");
    if let Some(at) = (0..want.codes().len()).find(|at| got.codes()[*at] != want.codes()[*at]) {
        panic!("{what}: code {at} is {:#04x}, must be {:#04x}", got.codes()[at], want.codes()[at]);
    }
}

#[test]
fn quantizers_are_their_definition_over_layouts_schemes_and_rules() {
    for shapes in [vec![], vec![[3, 16]], SHAPES.to_vec(), many(70), many(1000)] {
        for layout in layouts(&shapes) {
            let x = values(&layout, DType::Bf16, 61);
            for scheme in GroupedScheme::all() {
                let what = format!("{} members, {scheme}", shapes.len());
                let input = input(&layout, &x);
                for rule in Fp8Rule::ALL.into_iter().filter(|rule| rule.has(scheme.format())) {
                    let recipe = GroupedRecipe::new(scheme).with_rule(rule);
                    for recipe in [recipe, recipe.power_of_two()] {
                        let want = definition::quantize_grouped(&input, recipe);
                        same(&quantize_grouped(&input, recipe), &want, &format!("{what}, {rule}"));
                    }
                }
                let numbers = encodes(scheme, shapes.len());
                for scales in [GivenScale::Encode(&numbers[..]), GivenScale::Decode(&numbers[..])] {
                    let got = quantize_grouped_with_scales(&input, scheme, scales);
                    same(&got, &definition::quantize_grouped_with_scales(&input, scheme, scales), &what);
                    let q = &got.unwrap().0;
                    for dtype in [DType::F32, DType::Bf16, DType::F16, DType::E4M3] {
                        let back = dequantize_grouped(q, dtype);
                        assert_eq!(bits(&back), bits(&definition::dequantize_grouped(q, dtype)), "{what}, {dtype}");
                    }
                }
            }
        }
    }
}

/// A grouped call is one call of `quantize_tensor` for each member, whose shapes that takes.
#[test]
fn a_member_is_what_it_would_be_alone() {
    let shapes: Vec<_> = (0..70).map(|t| [(t * 5) % 9, 16 * (1 + t % 3)]).collect();
    for layout in layouts(&shapes) {
        let x = values(&layout, DType::F16, 62);
        let alone = |t: usize| {
            let member = layout.members()[t];
            ArrayView2::from_shape((member.rows(), member.cols()), &x[member.range()]).unwrap()
        };
        for format in Fp8Format::ALL {
            let scheme = GroupedScheme::new(format);
            let encode = encodes(scheme, 70);
            let (q, amax) =
                quantize_grouped_with_scales(&input(&layout, &x), scheme, GivenScale::Encode(&encode)).unwrap();
            let values = dequantize_grouped(&q, DType::Bf16);
            let recipe = GroupedRecipe::new(scheme);
            let (current, _) = quantize_grouped(&input(&layout, &x), recipe).unwrap();
            for t in 0..70 {
                let (want, want_amax) = quantize_tensor(alone(t), format, GivenScale::Encode(encode[t])).unwrap();
                assert_eq!(q.matrix(t).unwrap(), want, "member {t}");
                assert_eq!((amax[t].to_bits(), q.member_scale(t)), (want_amax.to_bits(), 1.0 / encode[t]));
                let back = dequantize(&want, DType::Bf16);
                assert_eq!(bits(&values[layout.members()[t].range()]), bits(&back.iter().copied().collect::<Vec<_>>()));
                let want = quantize(alone(t), DType::F16, recipe.member()).unwrap();
                assert_eq!(current.matrix(t).unwrap(), want, "member {t}, current scaling");
            }
        }
    }
}

/// Rows, columns and both: by columns is the quantized transpose at the same offsets, with the same scales.
#[test]
fn by_columns_is_the_transpose_of_by_rows() {
    let transposed = SHAPES.map(|[rows, cols]| [cols, rows]);
    for (layout, of_transpose) in layouts(&SHAPES).into_iter().zip(layouts(&transposed)) {
        let x = values(&layout, DType::Bf16, 63);
        let mut x_t = vec![f32::NAN; of_transpose.buffer_len()];
        for (a, b) in layout.members().iter().zip(of_transpose.members()) {
            assert_eq!(a.range(), b.range());
            let member = ArrayView2::from_shape((a.rows(), a.cols()), &x[a.range()]).unwrap();
            x_t[b.range()].iter_mut().zip(member.t()).for_each(|(to, v)| *to = *v);
        }
        for scheme in GroupedScheme::all().filter(|scheme| !scheme.is_transposed()) {
            let (rows, amax) = quantize_grouped(&input(&layout, &x), GroupedRecipe::new(scheme)).unwrap();
            let (cols, same_amax) =
                quantize_grouped(&input(&layout, &x), GroupedRecipe::new(scheme.transposed())).unwrap();
            let (want, _) = quantize_grouped(&input(&of_transpose, &x_t), GroupedRecipe::new(scheme)).unwrap();
            assert_eq!((cols.codes(), cols.scales(), &same_amax), (want.codes(), want.scales(), &amax), "{scheme}");
            assert_eq!(rows.scales(), cols.scales());
            // Both: one from the other.
            assert_eq!((&rows.transpose(), &cols.transpose()), (&cols, &rows), "{scheme}");
            assert_eq!(bits(&dequantize_grouped(&cols, DType::F32)), bits(&dequantize_grouped(&rows, DType::F32)));
            // A member of 16 x 32 is an operand both ways.
            let [by_rows, by_cols] = [&rows, &cols].map(|q| q.matrix(10).unwrap());
            assert_eq!([by_rows.rows(), by_rows.cols(), by_cols.rows(), by_cols.cols()], [16, 32, 32, 16]);
            assert_eq!((by_rows.codes()[1], by_rows.scales()), (by_cols.codes()[16], by_cols.scales()));
        }
    }
}

/// (g) of the review: what is in gaps never counts. (f): a single member has its offset too.
#[test]
fn gaps_are_never_read_and_written_as_zero() {
    for shapes in [SHAPES.to_vec(), vec![[2, 8]], vec![]] {
        let [packed, rest @ ..] = &layouts(&shapes)[..] else { unreachable!() };
        let x = values(packed, DType::Bf16, 64);
        for scheme in GroupedScheme::all() {
            let (want, amax) = quantize_grouped(&input(packed, &x), GroupedRecipe::new(scheme)).unwrap();
            for layout in rest {
                for poison in [f32::NAN, f32::INFINITY, 3e38] {
                    let mut moved = moved(packed, &x, layout);
                    let mut inside = vec![false; moved.len()];
                    layout.members().iter().for_each(|member| inside[member.range()].fill(true));
                    moved.iter_mut().zip(&inside).filter(|(_, inside)| !**inside).for_each(|(v, _)| *v = poison);
                    // (h): a buffer may be longer than its layout.
                    moved.extend([poison; 9]);
                    let (got, same_amax) =
                        quantize_grouped(&input(layout, &moved), GroupedRecipe::new(scheme)).unwrap();
                    assert_eq!((&same_amax, got.scales()), (&amax, want.scales()), "{scheme}");
                    assert_eq!(got, want.in_layout(layout.clone()).unwrap(), "{scheme}");
                    assert_eq!(got.codes().len(), layout.buffer_len());
                    let gaps = |codes: &[u8]| codes.iter().zip(&inside).filter(|(_, i)| !**i).all(|(c, _)| *c == 0);
                    assert!(gaps(got.codes()), "{scheme}");
                    let back = dequantize_grouped(&got, DType::F32);
                    assert!(back.iter().zip(&inside).all(|(v, inside)| *inside || v.to_bits() == 0));
                    // Bytes of a device, which leaves gaps as they were.
                    let codes = got.codes().iter().zip(&inside).map(|(c, i)| if *i { *c } else { 0xFF }).collect();
                    let read = HostGroupedTensor::from_parts(scheme, layout.clone(), codes, got.scales().to_vec());
                    assert_eq!(read.unwrap(), got, "{scheme}");
                }
            }
        }
    }
}

/// (a) and (c): more members than 64, and more than a grid has rows of blocks, each with amax and scale; 0 and its own scale without elements.
#[test]
fn every_member_has_an_amax_and_a_scale() {
    for count in [0, 1, 63, 64, 65, 70, 1000, 70_000] {
        let shapes: Vec<_> = (0..count).map(|t| [usize::from(t % 5 != 3 && t + 1 != count), 1]).collect();
        let layout = GroupedLayout::packed(&shapes).unwrap();
        let number = |t: usize| ((t * 31 % 997) as f32 - 400.0) / 16.0;
        let x: Vec<f32> = (0..count).filter(|t| shapes[*t][0] == 1).map(number).collect();
        let encode = encodes(E4M3, count);
        let (q, amax) = quantize_grouped_with_scales(&input(&layout, &x), E4M3, GivenScale::Encode(&encode)).unwrap();
        assert_eq!((amax.len(), q.scales().len()), (count, count));
        for t in 0..count {
            let want = if shapes[t][0] == 1 { number(t).abs() } else { 0.0 };
            assert_eq!(amax[t].to_bits(), want.to_bits(), "member {t} of {count}");
            assert_eq!(q.scales()[t], 1.0 / encode[t], "member {t} of {count}");
            let code = (shapes[t][0] == 1).then(|| encode_one(number(t) * encode[t]));
            assert_eq!(q.member_codes(t).first().copied(), code, "member {t} of {count}");
        }
        // One for all: the largest, also of no members.
        let (shared, one) = quantize_grouped(&input(&layout, &x), GroupedRecipe::new(E4M3.shared())).unwrap();
        assert_eq!(one, [x.iter().fold(0.0, |a: f32, v| a.max(v.abs()))]);
        let scale = if one[0] == 0.0 { 1.0 } else { 1.0 / (448.0 / one[0]) };
        assert_eq!(shared.scales(), [scale]);
        // Without data, current scaling gives 1, as TransformerEngine does.
        let (own, _) = quantize_grouped(&input(&layout, &x), GroupedRecipe::new(E4M3)).unwrap();
        assert!((0..count).all(|t| shapes[t][0] == 1 || own.scales()[t] == 1.0));
    }
}

fn encode_one(v: f32) -> u8 {
    encode(Fp8Format::E4M3, v)
}

/// The maximum of a member is found wherever it lies, at both ends of each piece that a core takes, and is no neighbour's.
#[test]
fn the_largest_number_is_found_in_every_place() {
    let shapes = [[3, 5], [2, 4099], [1, 17]];
    let layout = GroupedLayout::new(&shapes, &[1, 17, 8216], 8240).unwrap();
    for (t, member) in layout.members().iter().enumerate() {
        let near =
            |at: usize| (at % 4096).min(4095 - at % 4096) < 2 || at + 2 > member.elements() || at.is_multiple_of(509);
        for at in (0..member.elements()).filter(|at| near(*at)) {
            let mut x = vec![0.5; layout.buffer_len()];
            x[member.range()][at] = -7.0;
            let (_, amax) = quantize_grouped(&input(&layout, &x), GroupedRecipe::new(E4M3)).unwrap();
            assert_eq!(amax, [0, 1, 2].map(|other| if other == t { 7.0 } else { 0.5 }), "member {t}, {at}");
        }
    }
}

#[test]
fn scales_of_members_that_were_seen_are_updated_as_each_alone() {
    for (window, scales) in [(1, 1), (16, 70), (4, 0), (0, 3), (1024, 2)] {
        for (format, margin) in [(Fp8Format::E4M3, 0), (Fp8Format::E5M2, 1), (Fp8Format::E4M3, -2)] {
            for rule in AmaxHistory::ALL {
                let mut noise = Noise::new(67);
                let special = [0.0, f32::INFINITY, f32::NAN, 1e-45];
                let mut history = Array2::from_shape_simple_fn((window, scales), || match noise.below(9) {
                    kind @ 0..4 => special[kind],
                    _ => noise.normal().abs(),
                });
                // A column of nothing but zeros keeps its factor.
                history.columns_mut().into_iter().step_by(7).for_each(|mut column| column.fill(0.0));
                let previous: Vec<f32> = (0..scales).map(|t| 2.0 + t as f32).collect();
                let mut got_history = history.clone();
                let got = delayed_update_grouped(got_history.view_mut(), &previous, format, margin, rule).unwrap();
                assert_eq!(got.len(), scales);
                for t in 0..scales {
                    let mut column = history.column(t).to_vec();
                    let want = match column.first() {
                        // Not seen in this step: nothing moves.
                        Some(0.0) => GroupScale { encode: previous[t], scale: 1.0 / previous[t] },
                        _ => delayed_update(&mut column, previous[t], format, margin, rule).unwrap(),
                    };
                    assert_eq!(got[t], want);
                    assert_eq!(bits(&got_history.column(t).to_vec()), bits(&column));
                    assert!(t % 7 != 0 || got[t].encode == previous[t]);
                }
            }
        }
    }
}

/// By hand: a member without elements in this step keeps its factor and what it had, whichever amax decides; its neighbour does not.
#[test]
fn a_member_that_was_not_seen_forgets_nothing() {
    for rule in AmaxHistory::ALL {
        let mut history = Array2::from_shape_vec((3, 2), vec![0.0, 7.0, 4.0, 4.0, 2.0, 2.0]).unwrap();
        let next = delayed_update_grouped(history.view_mut(), &[112.0, 112.0], Fp8Format::E4M3, 0, rule).unwrap();
        assert_eq!(next.iter().map(|factor| factor.encode).collect::<Vec<_>>(), [112.0, 64.0]);
        assert_eq!(history.column(0).to_vec(), [0.0, 4.0, 2.0], "{rule}");
        assert_eq!(history.column(1).to_vec(), [0.0, 2.0, 7.0], "{rule}");
    }
}

/// Steps of delayed scaling as a training loop takes them: amax of two calls merged into row 0, then the update.
#[test]
fn a_running_amax_is_raised_and_decides_the_next_scale() {
    let layout = GroupedLayout::packed(&[[1, 2], [0, 5], [1, 1]]).unwrap();
    let mut history = Array2::zeros((3, 3));
    let mut encode = vec![1.0; 3];
    for (step, largest) in [4.0f32, 8.0, 2.0].into_iter().enumerate() {
        for x in [[1.0, -largest, 0.5], [largest / 2.0, 1.0, f32::NAN]] {
            let scales = GivenScale::Encode(&encode[..]);
            let (_, amax) = quantize_grouped_with_scales(&input(&layout, &x), E4M3, scales).unwrap();
            raise_amax(history.row_mut(0).as_slice_mut().unwrap(), &amax).unwrap();
        }
        assert_eq!(history.row(0).to_vec(), [largest, 0.0, 0.5]);
        let next = delayed_update_grouped(history.view_mut(), &encode, Fp8Format::E4M3, 0, AmaxHistory::Max).unwrap();
        encode = next.iter().map(|factor| factor.encode).collect();
        assert_eq!(encode, [448.0 / [4.0, 8.0, 8.0][step], 1.0, 896.0], "step {step}");
        assert_eq!(history.row(0).to_vec(), [0.0; 3]);
    }
    // As signed integers: nothing that a caller may have put there blinds a slot but a NaN that is meant to.
    let mut running = [1.0, 3.0, f32::NAN, f32::INFINITY, 0.0, -0.0, -1.0, -f32::NAN, f32::NEG_INFINITY, -0.0];
    assert!(running[7].is_sign_negative() && running[2].is_sign_positive());
    raise_amax(&mut running, &[2.0, 2.0, 2.0, 2.0, 0.0, 2.0, 2.0, 2.0, 0.0, 0.0]).unwrap();
    assert_eq!(bits(&running), bits(&[2.0, 3.0, f32::NAN, f32::INFINITY, 0.0, 2.0, 2.0, 2.0, 0.0, 0.0]));
}

/// Every number is taken as a scale, and means what it means to `quantize_tensor`.
#[test]
fn any_number_is_a_scale_as_it_is_alone() {
    let tiny = f32::from_bits(1);
    let numbers = [
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
        -1.5,
        tiny,
        -tiny,
        2f32.powi(-128),
        2f32.powi(-127),
        2f32.powi(127),
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        3.0,
    ];
    let layout = GroupedLayout::packed(&[[2, 16]; 16]).unwrap();
    let special =
        [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, tiny, -tiny, 1e-20, -448.0];
    let x: Vec<f32> =
        (0..layout.buffer_len()).map(|at| special[at % 32 % 12] * if at % 32 > 20 { 0.75 } else { 1.0 }).collect();
    for format in Fp8Format::ALL {
        for scheme in [GroupedScheme::new(format), GroupedScheme::new(format).transposed()] {
            for scales in [GivenScale::Encode(&numbers[..]), GivenScale::Decode(&numbers[..])] {
                let got = quantize_grouped_with_scales(&input(&layout, &x), scheme, scales);
                same(&got, &definition::quantize_grouped_with_scales(&input(&layout, &x), scheme, scales), "any scale");
                let (q, amax) = got.unwrap();
                let q = if scheme.is_transposed() { q.transpose() } else { q };
                let back = dequantize_grouped(&q, DType::F32);
                for (t, number) in numbers.into_iter().enumerate() {
                    let alone = ArrayView2::from_shape((2, 16), &x[layout.members()[t].range()]).unwrap();
                    let (want, want_amax) = quantize_tensor(alone, format, scales.with_number(number)).unwrap();
                    assert_eq!(q.member_codes(t), want.codes(), "{format}, {number:e}");
                    assert_eq!(bits(&[q.member_scale(t), amax[t]]), bits(&[want.scales()[0], want_amax]), "{number:e}");
                    let values = dequantize(&want, DType::F32).into_raw_vec_and_offset().0;
                    assert_eq!(bits(&back[layout.members()[t].range()]), bits(&values), "{number:e}");
                }
                // One for all.
                for number in numbers {
                    let one = [number];
                    let one = scales.with_number(&one[..]);
                    let (q, _) =
                        quantize_grouped_with_scales(&input(&layout, &x), scheme.by_rows().shared(), one).unwrap();
                    let alone = ArrayView2::from_shape((32, 16), &x[..]).unwrap();
                    let (want, _) = quantize_tensor(alone, format, scales.with_number(number)).unwrap();
                    assert_eq!(q.codes(), want.codes(), "{number:e}");
                }
            }
        }
    }
    // What docs/numerics.md says of 0, infinities and NaN, by hand: codes, scales and values of 0, 1, -1, infinity and NaN.
    let layout = GroupedLayout::packed(&[[1, 5]]).unwrap();
    let x = [0.0, 1.0, -1.0, f32::INFINITY, f32::NAN];
    let nan = f32::NAN;
    for (scale, codes, stored, values) in [
        (GivenScale::Encode(0.0), [0, 0, 0x80, 0x7F, 0x7F], f32::INFINITY, [nan; 5]),
        (GivenScale::Decode(f32::INFINITY), [0, 0, 0x80, 0x7F, 0x7F], f32::INFINITY, [nan; 5]),
        (GivenScale::Encode(f32::INFINITY), [0x7F, 0x7E, 0xFE, 0x7E, 0x7F], 0.0, [nan, 0.0, -0.0, 0.0, nan]),
        (GivenScale::Decode(0.0), [0x7F, 0x7E, 0xFE, 0x7E, 0x7F], 0.0, [nan, 0.0, -0.0, 0.0, nan]),
        (GivenScale::Encode(nan), [0x7F; 5], nan, [nan; 5]),
        (GivenScale::Decode(nan), [0x7F; 5], nan, [nan; 5]),
        (GivenScale::Encode(-1.0), [0x80, 0xB8, 0x38, 0xFE, 0x7F], -1.0, [0.0, 1.0, -1.0, 448.0, nan]),
        // An inverse beyond FP32.
        (
            GivenScale::Decode(tiny),
            [0x7F, 0x7E, 0xFE, 0x7E, 0x7F],
            tiny,
            [nan, 448.0 * tiny, -448.0 * tiny, 448.0 * tiny, nan],
        ),
    ] {
        let number = [*scale.number()];
        let (q, _) = quantize_grouped_with_scales(&input(&layout, &x), E4M3, scale.with_number(&number[..])).unwrap();
        assert_eq!((q.codes(), bits(q.scales())), (&codes[..], bits(&[stored])), "{scale:?}");
        assert_eq!(bits(&dequantize_grouped(&q, DType::F32)), bits(&values), "{scale:?}");
    }
}

/// Transposing in tiles and over cores is transposing: edges of tiles, long and short members, many of them.
#[test]
fn members_are_transposed_whatever_their_extents() {
    let long = [
        [1, 70_000],
        [70_000, 1],
        [3, 9000],
        [9000, 3],
        [63, 65],
        [64, 64],
        [65, 63],
        [129, 200],
        [300, 700],
        [0, 9],
        [9, 0],
    ];
    for shapes in [long.to_vec(), many(3000), vec![[2000, 65]], vec![[65, 2000]], vec![]] {
        for layout in layouts(&shapes) {
            let codes: Vec<u8> = (0..layout.buffer_len()).map(|at| (at * 31 % 251) as u8).collect();
            let q = HostGroupedTensor::from_parts(E4M3, layout.clone(), codes, vec![1.0; shapes.len()]).unwrap();
            let transposed = q.transpose();
            for (t, member) in layout.members().iter().enumerate().filter(|(_, member)| member.elements() > 0) {
                let of = |q: &HostGroupedTensor, rows, cols| {
                    Array2::from_shape_vec((rows, cols), q.member_codes(t).to_vec()).unwrap()
                };
                let (by_rows, by_cols) =
                    (of(&q, member.rows(), member.cols()), of(&transposed, member.cols(), member.rows()));
                assert_eq!(by_rows.t(), by_cols, "{} x {}", member.rows(), member.cols());
            }
            assert_eq!(transposed.transpose(), q);
        }
    }
}

/// Every code comes back as its value times the scale of its member; the two ends of FP32 too.
#[test]
fn all_codes_come_back() {
    let layout = GroupedLayout::new(&[[16, 16], [0, 3], [1, 256]], &[3, 260, 261], 520).unwrap();
    let codes: Vec<u8> = (0..520).map(|at| (at as usize).wrapping_sub(if at < 261 { 3 } else { 261 }) as u8).collect();
    for format in Fp8Format::ALL {
        for scales in [[0.75, 1.0, 3e38], [1e-45, f32::NAN, 2f32.powi(-9)]] {
            let scheme = GroupedScheme::new(format);
            let q = HostGroupedTensor::from_parts(scheme, layout.clone(), codes.clone(), scales.to_vec()).unwrap();
            for dtype in DType::WIDE {
                let got = dequantize_grouped(&q, dtype);
                for code in 0..=255u8 {
                    for (start, scale) in [(3, scales[0]), (261, scales[2])] {
                        let want = round_to(dtype, decode(format, code) * scale);
                        let got = got[start + usize::from(code)];
                        assert_eq!(bits(&[got]), bits(&[want]), "{format} {code:#04x} * {scale:e} as {dtype}");
                    }
                }
            }
        }
    }
}
