//! Needs no GPU.

use cudarc::driver::sys::CUtensorMap;

use super::*;
use crate::gpu::kernels::sm90_config::{Kind, Sm90Config};

const TABLE: &str = include_str!("../../../../kernels/gemm/sm90_table.cuh");
const SOURCES: [&str; 11] = [
    include_str!("../../../../kernels/gemm/sm90_config.cuh"),
    include_str!("../../../../kernels/gemm/sm90_block.cu"),
    include_str!("../../../../kernels/gemm/sm90_outer.cu"),
    include_str!("../../../../kernels/gemm/sm90_vector.cu"),
    include_str!("../../../../kernels/gemm/sm90_cast.cu"),
    include_str!("../../../../kernels/gemm/sm90_e5m2.cuh"),
    include_str!("../../../../kernels/gemm/sm90_block_a.cu"),
    include_str!("../../../../kernels/gemm/sm90_plain.cu"),
    include_str!("../../../../kernels/gemm/sm90_outer_plain.cu"),
    include_str!("../../../../kernels/gemm/sm90_vector_fp32.cu"),
    include_str!("../../../../kernels/gemm/sm90_outer_fp32.cu"),
];
const LOOPS: &str = include_str!("../../../../kernels/gemm/sm90_loop.cuh");

/// E5M2 on either side.
const E5M2_PAIRS: [[Fp8Format; 2]; 2] = [[Fp8Format::E5M2, Fp8Format::E4M3], [Fp8Format::E4M3, Fp8Format::E5M2]];

/// The tile of a row of a table, from its rows on; of D's columns, for each of which B has so many rows.
fn tile_of(row: &[&str], parts: usize) -> Sm90Tile {
    let number = |at: usize| -> usize { row[at].parse().unwrap() };
    let sharers = match row[3] {
        "SHARE_A" => 2,
        "SHARE_NONE" => 1,
        other => panic!("{other}: boxes of the other operand would be halved"),
    };
    let (rows, cols, warpgroups) = (number(0), number(1) / parts, number(2) as u32);
    let (split, boxes) = (row.get(11).map_or(1, |split| split.parse().unwrap()), row[8] == "STORE_BOXES");
    Sm90Tile { rows, cols, warpgroups, sharers, split, boxes, residents: number(9), shared: number(10) as u32 }
}

#[test]
fn the_table_is_that_of_the_kernels() {
    let rows: Vec<Vec<&str>> = TABLE
        .lines()
        .filter(|line| line.starts_with("SM90"))
        .filter_map(|line| line.strip_suffix(')'))
        .map(|row| row.split(['(', ',']).map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), Sm90Config::ALL.len());
    for (config, row) in Sm90Config::ALL.into_iter().zip(rows) {
        let (of, row) = (row[0], &row[1..]);
        for pair in E5M2_PAIRS {
            assert_eq!(config.multiplies(pair), of == "SM90", "{config}");
        }
        assert_eq!(config.k_parts() > 1, of.ends_with("_SPLIT"), "{config}");
        assert_eq!(config.ends_plainly(), of.starts_with("SM90_PLAIN"), "{config}");
        let tile = tile_of(&row[1..], 1);
        let name = format!("gemm_fp8_plain_{}", row[0]);
        assert_eq!((config.kernel(E4M3_PAIR, Kind::Plain), config.tile()), (name, tile), "{config}");
        // The body of its loop over k, where a kernel with a plain end begins with that: unless it goes round the ring whole times.
        let (_, of_blocks) = LOOPS.split_once("loop_of_blocks(").unwrap();
        let (of_blocks, _) = of_blocks.split_once("\n}").unwrap();
        assert!(of_blocks.contains("if (rows == 256) return {of_table.stages, of_table.depth, 8};"), "{of_blocks}");
        assert!(of_blocks.contains("if (rows == 128 && cols == 128) return {5, 2, 5};"), "{of_blocks}");
        assert_eq!(config.least_plain_blocks(), if tile.rows == 256 { 8 } else { 1 }, "{config}");
        // 227 KiB of a block, and 228 of a multiprocessor with 1 KiB for each block's own use.
        assert!(tile.shared <= 227 << 10 && tile.residents * (tile.shared as usize + 1024) <= 228 << 10, "{config}");
        assert_eq!((tile.split, row.len()), (config.k_parts(), if tile.split > 1 { 13 } else { 12 }), "{config}");
        assert_eq!(serde_json::to_string(&config).unwrap(), format!("\"{config}\""));
    }
}

/// Those of kernels that cast D: of codes the same tiles as of numbers.
#[test]
fn the_table_of_casts_is_that_of_the_kernels() {
    let of_kind = |kind, of: &str, end: &str, parts| {
        let rows = SOURCES[4].lines().filter_map(|line| line.strip_prefix(of)?.strip_prefix('(')?.strip_suffix(')'));
        let rows: Vec<Vec<&str>> =
            rows.map(|row| row.split(", ").collect()).filter(|row: &Vec<&str>| row[1] == end).collect();
        let found = rows.iter().map(|row| (format!("gemm_fp8_{}", row[0]), tile_of(&row[2..], parts)));
        let known =
            Sm90Config::ALL.into_iter().filter_map(|c| Some((c.kernel(E4M3_PAIR, kind), c.tile_of(kind, E4M3_PAIR)?)));
        assert_eq!(found.collect::<Vec<_>>(), known.collect::<Vec<_>>(), "{end}");
        rows.len()
    };
    assert_eq!((of_kind(Kind::Codes, "SM90", "END_CODES", 1), of_kind(Kind::Swiglu, "SM90", "END_SWIGLU", 2)), (3, 2));
    assert_eq!(of_kind(Kind::OuterSwiglu, "SM90_OUTER", "END_SWIGLU", 2), 2);
    for grouped in [Kind::CodesGrouped, Kind::SwigluGrouped, Kind::OuterSwigluGrouped] {
        let kernel = Sm90Config::Tile64x128.kernel(E4M3_PAIR, grouped);
        assert!(kernel.ends_with("_64x128_grouped"), "{kernel}");
    }
}

#[test]
fn each_kind_has_kernels_of_its_own() {
    let config = Sm90Config::Tile64x64Two;
    assert_eq!(
        Kind::ALL.map(|kind| config.kernel(E4M3_PAIR, kind)),
        [
            "block_64x64_two",
            "block_64x64_two_grouped",
            "plain_64x64_two",
            "plain_64x64_two_grouped",
            "vector_64x64_two",
            "vector_64x64_two_grouped",
            "vector_64x64_two_k_grouped",
            "vector_fp32_64x64_two",
            "vector_fp32_64x64_two_k_grouped",
            "block_a_64x64_two",
            "outer_64x64_two",
            "outer_64x64_two_grouped",
            "outer_plain_64x64_two",
            "outer_plain_64x64_two_grouped",
            "outer_fp32_64x64_two_k_grouped",
            "codes_64x64_two",
            "codes_64x64_two_grouped",
            "swiglu_64x64_two",
            "swiglu_64x64_two_grouped",
            "outer_swiglu_64x64_two",
            "outer_swiglu_64x64_two_grouped"
        ]
        .map(|name| format!("gemm_fp8_{name}"))
    );
    assert_eq!(config.kernel(E5M2_PAIRS[0], Kind::Vector), "gemm_e5m2_e4m3_vector_64x64_two");
    assert_eq!(config.kernel(E5M2_PAIRS[1], Kind::Outer), "gemm_e4m3_e5m2_outer_64x64_two");
    assert_eq!(config.kernel(E5M2_PAIRS[1], Kind::BlockA), "gemm_e4m3_e5m2_block_a_64x64_two");
    assert_eq!(config.kernel(E5M2_PAIRS[0], Kind::VectorOfK), "gemm_e5m2_e4m3_vector_64x64_two_k_grouped");
    assert_eq!(config.kernel(E5M2_PAIRS[1], Kind::Grouped), "gemm_e4m3_e5m2_block_64x64_two_grouped");
    // Each of these makes a whole product and one of groups of rows, with two vectors of scales and with those of rows and matrices also one of groups of k, with blocks of A a whole product alone.
    for kind in [
        "SM90_E5M2(block",
        "SM90_E5M2(vector",
        "SM90_E5M2(outer",
        "SM90_E5M2_OF_K(vector",
        "SM90_E5M2_OF_K(outer_fp32",
        "SM90_E5M2_WHOLE(block_a",
    ] {
        assert_eq!(SOURCES[5].matches(&format!("{kind}_##NAME)")).count(), 1);
    }
    for name in ["_##NAME, ", "_##NAME##_grouped, ", "_##NAME##_k_grouped, "] {
        assert_eq!(SOURCES[5].matches(&format!("SM90_KERNEL(gemm_##TYPES##{name}")).count(), 1);
    }
    let both = [Fp8Format::E5M2; 2];
    assert!(Sm90Config::ALL.into_iter().all(|config| config.multiplies(E4M3_PAIR) && !config.multiplies(both)));
    let words = config.has_none(Kind::Block, both).to_string();
    assert!(words.contains("64x64-two of a product of e5m2 codes (A) and e5m2 codes (B)"), "{words}");
    // Those for whole products also where blocks divide k.
    for (file, kernel) in [
        (1, "gemm_fp8_block_##NAME,"),
        (1, "gemm_fp8_block_##NAME##_grouped,"),
        (2, "gemm_fp8_outer_##NAME,"),
        (2, "gemm_fp8_outer_##NAME##_grouped,"),
        (3, "gemm_fp8_vector_##NAME,"),
        (3, "gemm_fp8_vector_##NAME##_grouped,"),
        (3, "gemm_fp8_vector_##NAME##_k_grouped,"),
        (4, "gemm_fp8_##NAME,"),
        (4, "gemm_fp8_##NAME##_grouped,"),
        (6, "gemm_fp8_block_a_##NAME,"),
        (7, "gemm_fp8_plain_##NAME,"),
        (7, "gemm_fp8_plain_##NAME##_grouped,"),
        (8, "gemm_fp8_outer_plain_##NAME,"),
        (8, "gemm_fp8_outer_plain_##NAME##_grouped,"),
        (9, "gemm_fp8_vector_fp32_##NAME,"),
        (9, "gemm_fp8_vector_fp32_##NAME##_k_grouped,"),
        (10, "gemm_fp8_outer_fp32_##NAME##_k_grouped,"),
    ] {
        // Of those that end plainly one file has them, whole.
        let tables = match (file, kernel.ends_with("NAME,")) {
            (7, true) => 3,
            (4..=6, _) | (_, false) => 1,
            _ => 2,
        };
        assert_eq!(SOURCES[file].matches(&format!("SM90_KERNEL({kernel}")).count(), tables, "{kernel}");
    }
}

/// Of groups of rows with two vectors of scales, and with blocks of A, the common configurations have kernels alone, and none has one of blocks that divide k for groups.
#[test]
fn configurations_of_groups_are_those_of_the_kernels() {
    assert!(
        SOURCES[7].contains("#define SM90_PLAIN(NAME, ...)")
            && SOURCES[7].contains("#define SM90_PLAIN_SPLIT SM90_SPLIT\n")
    );
    assert!((0..11).all(|file| file == 7 || !SOURCES[file].contains("define SM90_PLAIN")));
    let row = |config: Sm90Config| {
        let name = format!("({}, ", config.to_string().replace('-', "_"));
        TABLE.lines().find(|line| line.contains(&name)).and_then(|line| line.split('(').next()).unwrap()
    };
    for config in Sm90Config::ALL {
        let (common, split) = (row(config) == "SM90", row(config).ends_with("_SPLIT"));
        let plain = row(config).starts_with("SM90_PLAIN");
        let has = |kind| config.check_groups(kind, E4M3_PAIR).map_err(|error| error.to_string());
        for kind in [
            Kind::Grouped,
            Kind::OuterGrouped,
            Kind::VectorOfK,
            Kind::PlainGrouped,
            Kind::OuterPlainGrouped,
            Kind::VectorFp32OfK,
            Kind::OuterFp32OfK,
        ] {
            assert_eq!(has(kind).is_ok(), !split && !plain, "{config}, {kind:?}");
            let words = if plain { "have no other end" } else { "groups have any number of tiles" };
            assert!(has(kind).err().is_none_or(|error| error.contains(words)), "{config}, {kind:?}");
        }
        assert_eq!([has(Kind::VectorGrouped).is_ok(), has(Kind::BlockA).is_ok()], [common; 2], "{config}");
        assert!(common || has(Kind::BlockA).unwrap_err().contains("with 128x128 scales of A"), "{config}");
        let words = has(Kind::VectorGrouped).err().unwrap_or_default();
        for (pair, kind) in E5M2_PAIRS.into_iter().flat_map(|pair| Kind::ALL.map(|kind| (pair, kind))) {
            let one_end = ["gemm/sm90_plain", "gemm/sm90_outer_plain", "gemm/sm90_vector_fp32"].contains(&kind.file());
            let casts = kind.casts();
            let tile = config.tile_of(kind, pair);
            assert_eq!(tile, (common && !casts && !one_end).then(|| config.tile()), "{config}, {kind:?}");
        }
        let reason = match (split, plain) {
            (true, true) => "have no other end",
            (true, false) => "groups have any number of tiles",
            (false, _) => "256x128, 128x128, 64x128 and 64x64-two",
        };
        assert!(common || words.contains(reason), "{config}: {words}");
    }
    let (all, common) = SOURCES[3].split_once("#define SM90(").unwrap();
    assert!(all.contains("_k_grouped, ") && all.contains("#define SM90_E4M3(") && !all.contains("##_grouped, "));
    assert!(
        common.contains("SM90_E4M3(NAME, __VA_ARGS__)")
            && common.contains("##_grouped, Config_##NAME, GROUPS_OF_ROWS)")
    );
    assert!(SOURCES[6].contains("#define SM90_E4M3(...)\n") && SOURCES[6].contains("#define SM90_SPLIT(...)\n"));
}

/// Nothing but a whole product to BF16 has kernels of those that end plainly, and what takes their place elsewhere has all ends and adds up alike.
#[test]
fn what_ends_plainly_has_one_kernel_and_a_stand_in() {
    let plain: Vec<_> = Sm90Config::ALL.into_iter().filter(|config| config.ends_plainly()).collect();
    assert_eq!(plain.len(), 6);
    for config in plain {
        for kind in Kind::ALL {
            let tile = config.tile_of(kind, E4M3_PAIR);
            assert_eq!(tile, (kind == Kind::Plain).then(|| config.tile()), "{config}, {kind:?}");
        }
        assert!(config.codes_tile().is_none() && config.swiglu_tile().is_none() && config.least_plain_blocks() == 1);
        let others: Vec<_> = Sm90Config::ALL.into_iter().filter(|other| other.stands_in_for(config)).collect();
        assert!(!others.is_empty(), "{config}");
        for other in others {
            assert!(!other.ends_plainly() && other.k_parts() == config.k_parts(), "{config}: {other}");
            assert!(other.tile_of(Kind::Block, E4M3_PAIR).is_some(), "{config}: {other}");
        }
        let words = config.has_none(Kind::Vector, E4M3_PAIR).to_string();
        assert!(words.contains("have no other end") && words.contains(config.name()), "{words}");
    }
}

#[test]
fn problems_have_the_size_that_the_kernels_take() {
    use std::mem::offset_of;
    assert_eq!((size_of::<Sm90Problem>(), size_of::<CUtensorMap>()), (184, 128));
    assert!(SOURCES[0].contains("sizeof(Sm90Problem) == 184"));
    assert_eq!(
        [
            offset_of!(Sm90Problem, d),
            offset_of!(Sm90Problem, alpha),
            offset_of!(Sm90Problem, bias),
            offset_of!(Sm90Problem, rule)
        ],
        [40, 88, 128, 164]
    );
}

#[test]
fn whole_clusters_are_launched_and_no_more_than_there_are_tiles() {
    let large = Sm90Config::Tile256x128.tile();
    assert_eq!((large.blocks_at_once(132), large.blocks_at_once(133), large.blocks_at_once(1)), (132, 132, 2));
    assert_eq!(Sm90Config::Tile64x64Two.tile().blocks_at_once(132), 264);
    // Clusters of four and of three leave some multiprocessors idle.
    assert_eq!(
        [Sm90Config::Tile64x64K3, Sm90Config::Tile64x64K4].map(|config| config.tile().blocks_at_once(132)),
        [120; 2]
    );
    // 3 x 5 tiles, the last along n with a neighbour that has no columns.
    assert_eq!((large.tiles(513, 520), large.tiles(1, 8)), (18, 2));
    assert_eq!(Sm90Config::Tile64x64.tile().tiles(65, 520), 18);
    // SwiGLU has no clusters.
    let swiglu = Sm90Config::Tile128x128.swiglu_tile().unwrap();
    assert_eq!((swiglu.tiles(129, 520), swiglu.tiles(257, 128), swiglu.blocks_at_once(133)), (10, 3, 133));
}
