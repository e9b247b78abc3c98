use super::*;
use crate::epilogue::Activation;
use crate::gpu::kernels::small_m_config::Shape;

const E2M1: &str = include_str!("../../../../kernels/gemm/small_m_e2m1.cu");
const REPACKED: &str = include_str!("../../../../kernels/gemm/small_m_repacked.cu");
const E4M3: &str = include_str!("../../../../kernels/gemm/small_m_e4m3.cu");
const TILE: &str = include_str!("../../../../kernels/gemm/small_m_tile.cuh");

/// Rows of a table: what is in the brackets of its macro, but for its definition.
fn rows(source: &str, table: &str) -> Vec<String> {
    let of = |line: &str| Some(line.strip_prefix(table)?.strip_prefix('(')?.strip_suffix(')')?.to_string());
    source.lines().filter_map(of).collect()
}

#[test]
fn the_kernels_are_those_of_the_table() {
    let of = |block: SmallMBlock| match block.shape() {
        Shape::E2m1 { pairs, warps, stages, residents: [few, more] } => {
            Some(format!("{block}, {pairs}, {warps}, {stages}, {few}, {more}"))
        }
        Shape::E4m3 { .. } | Shape::Tile { .. } => None,
    };
    assert_eq!(rows(E2M1, "SMALL_M"), SmallMBlock::ALL.into_iter().filter_map(of).collect::<Vec<_>>());
    let in_one_stage = |block: SmallMBlock| match block.shape() {
        Shape::E2m1 { pairs, warps, stages, residents: [few, more] } => {
            let of_stage = warps * 16 * pairs * (64 + 16);
            let [own, published] = [block.repacked_shared(8), block.shared(8)].map(|bytes| bytes as usize);
            assert_eq!(published - own, (stages - 1) * of_stage);
            Some(format!("{block}, {pairs}, {warps}, 1, {few}, {more}"))
        }
        Shape::E4m3 { .. } | Shape::Tile { .. } => None,
    };
    assert_eq!(rows(REPACKED, "SMALL_M"), SmallMBlock::ALL.into_iter().filter_map(in_one_stage).collect::<Vec<_>>());
    // Kernels of links, which are in both files, of as many warps, for which there are as many registers.
    let Shape::E2m1 { pairs, warps, residents: [few, more], .. } = SmallMBlock::Four.shape() else { panic!("E2M1") };
    let link = format!("four_{LINK_STAGES}, {pairs}, {warps}, {LINK_STAGES}, {few}, {more}");
    assert_eq!([E2M1, REPACKED].map(|source| rows(source, "SMALL_M_LINK")), [[link.clone()], [link]]);
    assert_eq!(
        name_of_links(16, (SmallMWeights::Nvfp4Repacked, DType::F16)),
        "gemm_small_m_nvfp4_repacked_f16_16_four_3"
    );
    let tiles = |block: SmallMBlock| match block.shape() {
        Shape::Tile { stages, residents, .. } => {
            let name = block.name().replace('-', "_");
            let row = |(tokens, blocks)| format!("{tokens}, {name}, {stages}, {blocks}");
            block.widths().iter().zip(residents).map(row).collect()
        }
        Shape::E4m3 { .. } | Shape::E2m1 { .. } => Vec::new(),
    };
    for (source, block) in [(E2M1, SmallMBlock::Tile), (REPACKED, SmallMBlock::Tile), (E4M3, SmallMBlock::TileE4m3)] {
        assert_eq!(rows(source, "SMALL_M_TILES"), tiles(block));
    }
    // Each has its row in the list of its file.
    let mut listed = 0;
    for (weights, a_type) in SmallMWeights::served() {
        let list = match weights.operands() {
            _ if weights == SmallMWeights::Nvfp4Repacked => "REPACKED",
            SmallMOperands::E2m1Weights => "E2M1",
            _ => "E4M3",
        };
        let rows = TILE.split("#define EACH_").find(|rows| rows.starts_with(list)).unwrap();
        let scales = weights.name();
        let number = if a_type == DType::F16 { "F16" } else { "Bf16" };
        let row = format!("KERNEL({scales}, {}, {a_type}, {number}, __VA_ARGS__)", scales.to_uppercase());
        assert!(rows.contains(&row), "{list}: {row}");
        listed += 1;
    }
    assert_eq!(TILE.matches("    KERNEL(").count(), listed);
    // And the files make kernels of all of their list.
    for (source, list) in [(E2M1, "E2M1"), (REPACKED, "REPACKED"), (E4M3, "E4M3")] {
        assert!(source.contains(&format!("EACH_{list}_WEIGHTS(SMALL_M_TILE_KERNEL, __VA_ARGS__)")), "{list}");
    }
    let widths = SmallMBlock::Four.widths();
    for (source, list) in [(E2M1, "E2M1"), (REPACKED, "REPACKED")] {
        for (tokens, blocks) in widths.iter().zip(["FEW", "MORE"]) {
            let of = format!("SMALL_M_KERNEL, {tokens}, block, PAIRS, PARTS, STAGES, {blocks}");
            assert!(source.contains(&format!("EACH_{list}_WEIGHTS({of})")), "{list}: {of}");
        }
        assert_eq!(source.matches("SMALL_M_KERNEL").count(), widths.len(), "{list}");
    }
    assert_eq!(name(SmallMBlock::Eight, 16, (SmallMWeights::Mxfp4, DType::Bf16)), "gemm_small_m_mxfp4_bf16_16_eight");
    assert_eq!(name(SmallMBlock::Tile, 48, (SmallMWeights::Nvfp4, DType::F16)), "gemm_small_m_nvfp4_f16_48_tile");
    assert_eq!(
        name(SmallMBlock::TileE4m3, 8, (SmallMWeights::Fp8Tiles, DType::Bf16)),
        "gemm_small_m_fp8_128x128_bf16_8_tile_e4m3"
    );
}

fn span(bytes: usize) -> Span<'static> {
    Span::unguarded(0x7F00_0000_0000, bytes)
}

const NAMES: [&str; 8] = ["A", "B", "scales of B in the sum", "scales of A", "scales of B", "bias", "residual", "D"];

fn of(each: bool) -> Each {
    if each { Each::Row } else { Each::All }
}

/// What is wrong with a call whose operands are as long as it needs, and so many bytes longer.
fn check(
    block: SmallMBlock,
    [m, n, k]: [usize; 3],
    (weights, each): (SmallMWeights, bool),
    (a_stride, d_stride): (usize, usize),
    more: [isize; 8],
    places: [u64; 8],
) -> String {
    let (groups, tiles) = (k.div_ceil(128), n.div_ceil(128));
    let scales = match weights {
        SmallMWeights::Nvfp4 | SmallMWeights::Nvfp4Repacked => tiles * 128 * (k / 16).next_multiple_of(4),
        SmallMWeights::Mxfp4 | SmallMWeights::Mxfp8 => tiles * groups * 512,
        SmallMWeights::Fp8 => 0,
        SmallMWeights::Fp8Vectors => n * groups * 4,
        SmallMWeights::Fp8Tiles => tiles * groups.next_multiple_of(4) * 4,
    };
    let codes = if weights.operands() == SmallMOperands::E2m1Weights { n * k / 2 } else { n * k };
    let count = |rows| if each { rows * 4 } else { 4 };
    let d = extent(m, n, d_stride);
    let a = extent(m, k, a_stride) * 2;
    let exact = [a, codes, scales, count(m), count(n), n * 4, d * 2, d * 4];
    let mut spans: Vec<_> =
        exact.iter().zip(more).map(|(bytes, more)| span((*bytes as isize + more) as usize)).collect();
    spans.iter_mut().zip(places).for_each(|(span, place)| span.address += place);
    let call = SmallMWeightsCall {
        config: SmallMConfig::new(block, 2).unwrap(),
        m,
        n,
        k,
        a: &spans[0],
        a_stride,
        a_type: DType::Bf16,
        a_is_made: false,
        weights,
        codes: &spans[1],
        scales: (weights != SmallMWeights::Fp8).then_some(&spans[2]),
        outer: [3, 4].map(|i| Some(OuterScales { scales: &spans[i], each: of(each) })),
        scratch: None,
        end: SmallMEnd {
            alpha: 1.0,
            beta: 0.5,
            bias: Some((&spans[5], DType::F32)),
            activation: Activation::None,
            residual: Some((&spans[6], d_stride, DType::Bf16)),
            d: &spans[7],
            d_stride,
            d_type: DType::F32,
        },
    };
    call.check().err().map_or(String::new(), |error| error.to_string())
}

/// What passes read of each operand and store, one behind the other, is what the whole does.
#[test]
fn passes_are_rows_of_the_whole() {
    let spans: Vec<_> = (1..9u64).map(|i| Span::unguarded(i << 32, 1 << 20)).collect();
    for (each, with_residual) in [(true, true), (false, false)] {
        let end = SmallMEnd {
            alpha: 1.0,
            beta: 0.0,
            bias: Some((&spans[5], DType::F32)),
            activation: Activation::None,
            residual: with_residual.then_some((&spans[6], 80, DType::Bf16)),
            d: &spans[7],
            d_stride: 88,
            d_type: DType::F32,
        };
        let call = SmallMWeightsCall {
            config: SmallMConfig::new(SmallMBlock::Tile, 2).unwrap(),
            m: 150,
            n: 72,
            k: 96,
            a: &spans[0],
            a_stride: 104,
            a_type: DType::Bf16,
            a_is_made: false,
            weights: SmallMWeights::Nvfp4,
            codes: &spans[1],
            scales: Some(&spans[2]),
            outer: [(3, of(each)), (4, Each::Row)].map(|(i, each)| Some(OuterScales { scales: &spans[i], each })),
            scratch: None,
            end,
        };
        for (first, m) in [(0, 64), (64, 64), (128, 22)] {
            call.with_rows(first..first + m, |pass| {
                let first = first as u64;
                assert_eq!((pass.m, pass.n, pass.k, pass.config), (m, 72, 96, call.config));
                let extents = [(m - 1) * 104 + 96, (m - 1) * 80 + 72, (m - 1) * 88 + 72];
                assert_eq!((pass.a.address, pass.a.bytes), (spans[0].address + first * 208, extents[0] * 2));
                let residual = pass.end.residual.map(|(span, stride, _)| (span.address, span.bytes, stride));
                let wanted = (spans[6].address + first * 160, extents[1] * 2, 80);
                assert_eq!(residual, with_residual.then_some(wanted));
                let d = (pass.end.d.address, pass.end.d.bytes, pass.end.d_stride);
                assert_eq!(d, (spans[7].address + first * 352, extents[2] * 4, 88));
                let of_a = pass.outer[0].unwrap();
                let at = if each { first * 4 } else { 0 };
                assert_eq!((of_a.scales.address, of_a.each), (spans[3].address + at, of(each)));
                assert_eq!(pass.outer[1].unwrap().scales.address, spans[4].address);
                assert_eq!((pass.codes.address, pass.scales.unwrap().address), (spans[1].address, spans[2].address));
                assert_eq!(pass.end.bias.unwrap().0.address, spans[5].address);
                assert!(pass.check().is_ok());
            });
        }
    }
}

#[test]
fn every_length_and_place_is_checked() {
    use SmallMBlock::{Eight, Four, Narrow, Sixteen, Tile, TileE4m3};
    use SmallMWeights::{Fp8, Fp8Tiles, Fp8Vectors, Mxfp4, Mxfp8, Nvfp4, Nvfp4Repacked};
    let of_e2m1 = [
        (Four, [1, 8, 32]),
        (Eight, [7, 136, 416]),
        (Sixteen, [9, 72, 2080]),
        (Narrow, [8, 264, 160]),
        (Four, [16, 64, 128]),
        (Tile, [3, 64, 32]),
        (Tile, [64, 136, 416]),
        (Tile, [150, 136, 416]),
    ];
    let of_e4m3 = [1, 7, 64, 65].map(|m| (TileE4m3, [m, 136, 1056]));
    for kind in [
        (Nvfp4, true),
        (Nvfp4, false),
        (Mxfp4, false),
        (Mxfp8, false),
        (Fp8, true),
        (Fp8, false),
        (Fp8Vectors, false),
        (Fp8Tiles, false),
    ] {
        let e2m1 = kind.0.operands() == SmallMOperands::E2m1Weights;
        for &(block, shape) in if e2m1 { &of_e2m1[..] } else { &of_e4m3 } {
            let check = |shape, kind, strides, more, places| check(block, shape, kind, strides, more, places);
            let strides = (shape[2] + 8, shape[1] + 4);
            assert_eq!(check(shape, kind, strides, [0; 8], [0; 8]), "");
            for (i, name) in NAMES.into_iter().enumerate().filter(|(i, _)| *i != 2 || kind.0 != Fp8) {
                let (mut more, mut places) = ([0; 8], [0; 8]);
                more[i] = -1;
                let why = check(shape, kind, strides, more, [0; 8]);
                assert!(why.starts_with(&format!("{name}: ")), "{name}: {why}");
                // An address of half the alignment is refused, one of it taken.
                let required = match name {
                    "scales of B in the sum" if kind.0 == Fp8Tiles => 4,
                    "A" | "B" | "scales of B in the sum" => 16,
                    "residual" => 2,
                    _ => 4,
                };
                places[i] = required / 2;
                let why = check(shape, kind, strides, [0; 8], places);
                let rule = format!("{required}-byte aligned");
                assert!(why.contains(&format!("{name}: address")) && why.contains(&rule), "{name}: {why}");
                places[i] = required;
                assert_eq!(check(shape, kind, strides, [0; 8], places), "", "{name}");
            }
        }
    }
    let fp8 = |shape, strides| check(TileE4m3, shape, (Fp8, false), strides, [0; 8], [0; 8]);
    assert_eq!(fp8([1, 8, 16], (16, 8)), "");
    assert!(fp8([1, 8, (1 << 25) + 16], ((1 << 25) + 16, 8)).contains("k at most 2^25"));
    assert!(fp8([1, 8, 24], (24, 8)).contains("multiple of 16"));
    let of = |block, shape, strides| check(block, shape, (Nvfp4, true), strides, [0; 8], [0; 8]);
    let repacked = |shape, strides| check(Four, shape, (Nvfp4Repacked, true), strides, [0; 8], [0; 8]);
    assert_eq!(repacked([1, 8, 128], (128, 8)), "");
    assert!(repacked([1, 8, 96], (96, 8)).contains("k must be a multiple of 128"));
    let why = |shape, strides| of(SmallMBlock::Four, shape, strides);
    let many = why([17, 64, 128], (128, 64));
    assert!(many.contains("m must be at most 16 for e2m1-weights in blocks of four"), "{many}");
    assert!(many.contains("choose blocks for more rows"), "{many}");
    assert_eq!(of(SmallMBlock::Tile, [64, 64, 128], (128, 64)), "");
    assert_eq!(of(SmallMBlock::Tile, [65, 64, 128], (128, 64)), "", "in passes");
    assert!(why([1, 12, 128], (128, 12)).contains("n a multiple of 8"));
    assert!(why([1, 8, 48], (48, 8)).contains("multiple of 32") && why([1, 8, 0], (0, 8)).contains("above 0"));
    assert!(why([2, 64, 128], (128, 63)).contains("no shorter than a row"));
    assert!(why([2, 64, 128], (120, 64)).contains("A: row stride 120 for k = 128"));
    assert!(why([2, 64, 128], (132, 64)).contains("multiple of 8"));
    assert!(why([1, (1 << 30) + 8, 32], (32, (1 << 30) + 8)).contains("at most 2^30"));
    assert!(why([1, 8, (1 << 26) + 32], ((1 << 26) + 32, 8)).contains("k at most 2^26"));
}
