//! Groups of the product for sm_90: between guards, with more tiles than blocks, and what is refused.

use scaled_gemm::Fp8Format::E5M2;

use super::*;

#[test]
fn groups_between_guards() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(159);
    for (pair, out) in [
        ((VEC, BLK), DType::Bf16),
        (VECTOR_PAIR, DType::Bf16),
        (VECTOR_PAIR, DType::F32),
        (ROW_PAIR, DType::F32),
        (TENSOR_PAIR, DType::F16),
    ] {
        check_groups_between_guards(&handle, &mut rng, pair, out);
    }
    for pair in [(VEC, BLK), ROW_PAIR, TENSOR_PAIR] {
        check_plain_groups_between_guards(&handle, &mut rng, pair);
    }
}

/// Small, for runs under a sanitizer, too: each kernel of groups with 1x128 scales on both sides. One k-block, a cut one, and more than any ring has stages.
#[test]
fn groups_are_what_each_is_alone_with_two_vectors_of_scales() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(160);
    for (shape, epilogue) in [
        ([256, 400], (1.0, DType::Bf16)),
        ([128, 1168], (-0.5, DType::F32)),
        ([384, 16], (1.0, DType::F16)),
        ([640, 128], (1.0, DType::Bf16)),
    ] {
        check_alone(&handle, &mut rng, shape, epilogue, VECTOR_PAIR, &COMMON);
    }
    check_many(&handle, &mut rng, VECTOR_PAIR, &COMMON);
}

/// Of every pair that one launch serves, in the configuration asked for and in the one that is chosen.
#[test]
fn explain_says_the_way_its_memory_and_why() {
    let Some(handle) = hopper() else { return };
    let (counts, mut buffer) = (numbers(&handle, &[1, 1]), poisoned(&handle, 1 << 20));
    let with_e5m2 = [(Scheme::Fp8Group1x128(E5M2), BLK), (VEC, Scheme::Fp8Group1x128(E5M2))];
    for (of_a, of_b) in [(VEC, BLK), VECTOR_PAIR, ROW_PAIR, TENSOR_PAIR].into_iter().chain(with_e5m2) {
        let [a, b] = [of_a, of_b].map(|scheme| QuantMatrix::zeros(&handle, scheme, 256, 128).unwrap());
        for config in COMMON.map(Some).into_iter().chain([None]) {
            let rows = GroupedRows::Masked { slot_rows: 128, counts: (&counts).into() };
            let d = MatMut::new(&mut buffer, DType::Bf16, 256, 128).unwrap();
            let mut args = GroupedGemmArgs::new(&a, &b, 2, rows, d);
            if let Some(config) = config {
                args = args.config(config);
            }
            let text = args.explain(&handle).unwrap();
            let what = format!("2 groups of {of_a} x {of_b}, n = 128, k = 128");
            let why = "because our kernels for sm_90 serve this pair";
            for words in [&what[..], "no scratch memory", "empty groups take no time", why, "cuBLASLt"] {
                assert!(text.contains(words), "{words:?} in {text}");
            }
            let may_be = config.map_or(of_groups_with((of_a, of_b)), |config| vec![config]);
            let says = |config: &Sm90Config| text.contains(&format!("one launch of {config}, "));
            assert_eq!(may_be.iter().filter(|config| says(config)).count(), 1, "one of {may_be:?} in {text}");
        }
    }
}

#[test]
fn grouped_refusals_name_operand_numbers_and_rule() {
    let Some(handle) = hopper() else { return };
    let zeros = |scheme, rows, cols| QuantMatrix::zeros(&handle, scheme, rows, cols).unwrap();
    let mut buffer = poisoned(&handle, 1 << 20);
    let counts = numbers(&handle, &[1, 1]);
    let mut call =
        |a: (Scheme, usize, usize), b: (Scheme, usize, usize), slot_rows: usize, d: (DType, usize, usize)| {
            let (a, b) = (zeros(a.0, a.1, a.2), zeros(b.0, b.1, b.2));
            let rows = GroupedRows::Masked { slot_rows, counts: (&counts).into() };
            let d = MatMut::new(&mut buffer, d.0, d.1, d.2).unwrap();
            handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, 2, rows, d))
        };
    let bf16 = DType::Bf16;
    call((VEC, 256, 128), (BLK, 256, 128), 128, (bf16, 256, 128)).unwrap();
    // Of block scales on both sides small slots are rows of one launch; of these there is no kernel.
    refused(
        call((BLK, 256, 128), (VEC, 256, 128), 4, (bf16, 256, 128)),
        &[
            "fp8-128x128:e4m3 x fp8-1x128:e4m3",
            "it serves fp8-1x128:e4m3 x fp8-128x128:e4m3",
            "slots of 4 rows",
            "one by one",
        ],
    );
    refused(call((VEC, 256, 128), (BLK, 384, 128), 128, (bf16, 256, 128)), &["B: 384 x 128", "2 * 128 x 128"]);
    refused(call((VEC, 256, 128), (BLK, 256, 256), 128, (bf16, 256, 128)), &["B: 256 x 256", "A's 128 columns"]);
    refused(call((VEC, 256, 128), (BLK, 256, 128), 128, (bf16, 128, 128)), &["D: 128 x 128", "A's 256 rows"]);
    refused(
        call((VEC, 256, 128), (BLK, 256, 128), 128, (DType::E4M3, 256, 128)),
        &["D", "e4m3", "is not bf16, f16 or f32"],
    );
    refused(call((VEC, 256, 128), (BLK, 272, 128), 128, (bf16, 256, 136)), &["D: 256 x 136", "multiple of 128"]);
    refused(call((VEC, 256, 128), (BLK, 256, 128), 256, (bf16, 256, 128)), &["256 rows for 2 slots of 256"]);
    refused(call((VEC, 256, 128), (BLK, 256, 128), 30, (bf16, 256, 128)), &["2 slots of 30", "multiple of 4"]);
    let (a, b, one) = (zeros(VEC, 256, 128), zeros(BLK, 256, 128), numbers(&handle, &[1]));
    let rows = GroupedRows::Masked { slot_rows: 128, counts: (&one).into() };
    let d = MatMut::new(&mut buffer, bf16, 256, 128).unwrap();
    refused(
        handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, 2, rows, d)),
        &["counts of groups: 8 bytes", "at least 16"],
    );
    // Configurations that divide k or end plainly, in both places where one is chosen.
    for config in Sm90Config::ALL.into_iter().filter(|config| !of_groups().contains(config)) {
        let name = config.to_string();
        let divides =
            [&name[..], "of a product of groups", "groups have any number of tiles", "without -k in its name"];
        let plain = [&name[..], "of another product than a whole one", "have no other end", "for none"];
        let words = if config.ends_plainly() { plain } else { divides };
        let two = numbers(&handle, &[1, 1]);
        let one_part = config.k_parts() == 1;
        for schemes in [(VEC, BLK), VECTOR_PAIR, ROW_PAIR, TENSOR_PAIR] {
            // Two vectors of scales are the reason there.
            if one_part && schemes == VECTOR_PAIR {
                continue;
            }
            let (a, b) = (zeros(schemes.0, 256, 128), zeros(schemes.1, 256, 128));
            let mut asked = |explains: bool| {
                let rows = GroupedRows::Masked { slot_rows: 128, counts: (&two).into() };
                let d = MatMut::new(&mut buffer, bf16, 256, 128).unwrap();
                let mut args = GroupedGemmArgs::new(&a, &b, 2, rows, d).config(config);
                if explains { args.explain(&handle).map(drop) } else { handle.grouped_gemm(args) }
            };
            [true, false].into_iter().for_each(|explains| drop(refused(asked(explains), &words)));
        }
    }
    // Those without kernels for two vectors of scales.
    let one_part = Sm90Config::ALL.into_iter().filter(|config| config.k_parts() == 1);
    for config in one_part.filter(|config| !COMMON.contains(config)) {
        let (a, b) = (zeros(VEC, 256, 128), zeros(VEC, 256, 128));
        let rows = GroupedRows::Masked { slot_rows: 128, counts: (&counts).into() };
        let d = MatMut::new(&mut buffer, bf16, 256, 128).unwrap();
        let name = format!("configuration {config} of a product of groups of rows with 1x128 scales on both sides");
        let words = [&name[..], "256x128, 128x128, 64x128 and 64x64-two", "ask for one of these"];
        refused(handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, 2, rows, d).config(config)), &words);
    }
}

/// Every block and pair of blocks takes tiles of several groups, over more than one round of 32 groups.
#[test]
fn many_groups_of_many_tiles() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(156);
    let counts: Vec<i64> = (0..70).map(|g| [257, 128, 0, 300, 96, 200][g % 6]).collect();
    let starts: Vec<i64> = counts
        .iter()
        .scan(0, |at, count| {
            let start = *at;
            *at += (count + 127) / 128 * 128;
            Some(start)
        })
        .collect();
    let places: Vec<(i64, i64)> = starts.iter().copied().zip(counts.iter().copied()).collect();
    let m = ((starts[69] + counts[69]) as usize).next_multiple_of(4);
    // As many where n = 384, whose last pair of blocks has columns for one of them: between two real tiles the other skips one.
    let pairs: i64 = counts.iter().map(|count| (count + 255) / 256 * 2).sum();
    assert!(pairs > i64::from(handle.device().sm_count), "{pairs} pairs of the largest tiles");
    let (starts, counts) = (numbers(&handle, &starts), numbers(&handle, &counts));
    // Of fewer k-blocks than a loop's body has, as many, and more: in BF16 (in the largest tiles from eight on) by the kernels that have no other end.
    for (n, k, out, pair) in [
        (512, 144, DType::Bf16, (VEC, BLK)),
        (512, 512, DType::F16, (VEC, BLK)),
        (512, 656, DType::Bf16, (VEC, BLK)),
        (512, 1024, DType::Bf16, (VEC, BLK)),
        (384, 1168, DType::Bf16, (VEC, BLK)),
        (512, 1536, DType::Bf16, (VEC, BLK)),
        (512, 1280, DType::Bf16, (VEC, BLK)),
        (512, 1024, DType::Bf16, ROW_PAIR),
        (384, 1168, DType::Bf16, ROW_PAIR),
        (384, 272, DType::F32, ROW_PAIR),
        (512, 656, DType::Bf16, TENSOR_PAIR),
    ] {
        let of = Groups::of(&handle, &mut rng, [m, n, k], places.len(), out, pair);
        let want = of.want(&handle, 1.0, &places);
        for config in of_groups() {
            let mut d = poisoned(&handle, m * n * out.bytes() + 1024);
            let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
            of.enqueue(&handle, places.len(), rows, &mut d, 0, |args| args.config(config)).unwrap();
            assert!(
                rows_of_d(&handle, &d, m, n * out.bytes(), 0) == want,
                "{config}, n = {n}, k = {k}, {out}, {pair:?}"
            );
        }
    }
}

/// Small, for runs under a sanitizer, too: more tiles than blocks, so that some take a second one.
#[test]
fn groups_are_what_each_is_alone_where_tiles_outnumber_blocks() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(161);
    let (n, k, groups) = (128, 1168, 140);
    assert!(groups > handle.device().sm_count as usize, "{groups} pairs of tiles");
    let places: Vec<(i64, i64)> = (0..groups as i64).map(|g| (132 * g, 129)).collect();
    let (starts, counts): (Vec<i64>, Vec<i64>) = places.iter().copied().unzip();
    let (starts, counts) = (numbers(&handle, &starts), numbers(&handle, &counts));
    let m = 132 * groups;
    let of = Groups::new(&handle, &mut rng, [m, n, k], groups, DType::Bf16);
    let mut d = poisoned(&handle, m * n * 2 + 1024);
    let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
    of.enqueue(&handle, groups, rows, &mut d, 0, |args| args.config(Sm90Config::Tile256x128)).unwrap();
    assert!(rows_of_d(&handle, &d, m, 2 * n, 0) == of.want(&handle, 1.0, &places));
}
