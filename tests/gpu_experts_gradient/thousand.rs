//! A thousand groups along k, of which most have no rows, others as many as end beside a multiple of 128: a warp reads 32 groups at once, so that many rounds lie between a block's group and its next one. What a round
//! adds up wrong, or a group that takes a neighbour's rows or dW, shows in the bits; so does dW of a group without rows that is written.

use super::*;

const GROUPS: usize = 1000;
const CONFIGS: [Option<Sm90Config>; 3] = [None, Some(Sm90Config::Tile256x128), Some(Sm90Config::Tile64x64)];

/// Rows of each group in turn, none in the last.
fn ragged(turn: usize) -> Vec<usize> {
    let rows = |(g, count): (usize, i64)| if count > 0 { [1, 127, 128, 129, 300, 77][g / 9 % 6] } else { 0 };
    counts_of_a_thousand(turn).into_iter().enumerate().map(rows).collect()
}

/// One behind the other: an empty group begins where the next one does.
#[test]
fn a_thousand_starts_give_what_each_group_gives_alone() {
    let Some(handle) = hopper() else { return };
    let turns = [0, 1, 2, 3].map(|turn| {
        let mut at = 0;
        let place = |count: usize| {
            let start = at;
            at += count.next_multiple_of(128);
            (start, count)
        };
        let taken: Vec<_> = ragged(turn).into_iter().map(place).collect();
        (taken, at)
    });
    // Behind the groups lie rows of none, no whole block of them.
    let rows = turns.iter().map(|(_, end)| end).max().unwrap() + 16;
    let of = Experts::of_shape(91, rows, GROUPS, [144, 80]);
    for (taken, _) in &turns {
        let (starts, counts): (Vec<_>, Vec<_>) =
            taken.iter().map(|(start, count)| (*start as i64, *count as i64)).unzip();
        of.in_one(&handle, taken, Some(&starts), (&counts, 0), &CONFIGS);
    }
}

/// In slots of 128 rows, to which counts are cut.
#[test]
fn a_thousand_slots_give_what_each_group_gives_alone() {
    let Some(handle) = hopper() else { return };
    let of = Experts::of_shape(92, GROUPS * 128, GROUPS, [48, 32]);
    for told in [0, 1, 2, 3].map(ragged) {
        let taken: Vec<_> = told.iter().enumerate().map(|(g, count)| (g * 128, (*count).min(128))).collect();
        let clamped = told.iter().filter(|count| **count > 128).count() as u32;
        let told: Vec<_> = told.into_iter().map(|count| count as i64).collect();
        of.in_one(&handle, &taken, None, (&told, clamped), &CONFIGS);
    }
}

/// One product a group, of a transpose of each slot: added to what dW holds, with the bits of each alone.
#[test]
fn a_thousand_products_give_what_each_group_gives_alone() {
    let Some(handle) = hopper() else { return };
    let (slot, shape) = (128, [48, 32]);
    let of = Experts::of_shape(93, GROUPS * slot, GROUPS, shape);
    let transposes = |x: &Array2<f32>| {
        let (rows, cols) = x.dim();
        let on = upload(&handle, &bytes_of(DType::Bf16, x.iter()));
        let mut all: Vec<_> = (0..GROUPS).map(|_| QuantMatrix::zeros(&handle, SCHEME, cols, slot).unwrap()).collect();
        let x = MatRef::new(&on, DType::Bf16, rows, cols).unwrap();
        handle.quantize_slots_transposed_into(&x, Recipe::new(SCHEME), &mut all).unwrap();
        all
    };
    let (dy_t, x_t) = (transposes(&of.dy), transposes(&of.x));
    let mut dw = handle.upload(&of.dw).unwrap();
    let to = GroupedWeightGradient::new(&dy_t, &x_t, target_of(&mut dw, GROUPS, shape));
    handle.grouped_weight_gradient(to).unwrap();
    let found = handle.read::<f32>(&dw.view()).unwrap();
    let own = shape[0] * (shape[1] + GAP);
    for (g, (found, before)) in found.chunks(own).zip(of.dw.chunks(own)).enumerate() {
        let mut alone = handle.upload(before).unwrap();
        let args = GemmArgs::new(&dy_t[g], &x_t[g], target_of(&mut alone, 1, shape)).accumulate(1.0);
        handle.scaled_gemm(args).unwrap();
        let want = handle.read::<f32>(&alone.view()).unwrap();
        assert!(found.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "group {g}");
        assert!(found != before, "group {g}: nothing was added");
    }
}
