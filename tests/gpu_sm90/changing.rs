//! Groups of the product for sm_90 whose places and counts change between launches of one graph, a thousand of them, and biases of each.

use super::*;

/// Scales of rows, of whole matrices, and 1x128 on both sides; 128x128 of B by any number of groups and biases of their own in the suite of epilogues, too.
const PAIRS: [(Scheme, Scheme); 4] = [(VEC, BLK), VECTOR_PAIR, ROW_PAIR, TENSOR_PAIR];

#[test]
fn graphs_follow_starts_and_counts_up_to_all_rows_and_beyond() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(162);
    let families = [KernelFamily::Sm90, KernelFamily::Grouped];
    for (pair, out) in PAIRS.map(|pair| (pair, DType::Bf16)).into_iter().chain([(VECTOR_PAIR, DType::F32)]) {
        check_starts_that_change(&handle, &mut rng, families, pair, out);
    }
}

#[test]
fn a_thousand_groups_of_every_pair() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(163);
    for pair in PAIRS {
        check_a_thousand(&handle, &mut rng, KernelFamily::Sm90, pair);
    }
}

#[test]
fn groups_have_biases_of_their_own_with_scales_of_every_kind() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(164);
    for pair in PAIRS {
        check_biases(&handle, &mut rng, pair, &of_groups_with(pair));
    }
}

/// Where groups are taken to lie is what the words of `GroupedRows` say, where there is no GPU either.
#[test]
fn what_changes_is_taken_as_the_words_say() {
    for (told, taken) in TOLD_AND_TAKEN {
        let mut largest = 0;
        for (g, (start, count)) in told.into_iter().enumerate() {
            let next = told.get(g + 1).map_or(640, |next| next.0).min(640);
            let is_one = start >= largest && start % 4 == 0;
            let rows = if is_one { count.clamp(0, (next.saturating_sub(start)).max(0)) } else { 0 };
            largest = largest.max(start);
            assert_eq!(rows, taken[g].1, "{told:?}, group {g}");
            assert!(rows == 0 || start == taken[g].0, "{told:?}, group {g}");
        }
    }
    let rows_of = |taken: [(i64, i64); 6]| taken.iter().map(|(_, count)| count).sum::<i64>();
    let most = TOLD_AND_TAKEN.iter().filter(|(_, taken)| rows_of(*taken) == 640).count();
    assert!(most >= 3, "{most} launches have all rows");
}
