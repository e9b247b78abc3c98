//! More parts of D than clusters run at once, by warpgroup products: each cluster computes several, one behind the other in the same shared memory.

use super::*;

/// Blocks of warpgroup products on a multiprocessor.
const RESIDENTS: usize = 2;

/// Rows of a part and parts of k, as `explain` tells them.
fn cut(text: &str) -> [usize; 2] {
    let (before, behind) = text.split_once(" rows at a time, tiles of 128 rows of B, k split by ").expect("tiles");
    let split = behind.split_once(", by warpgroup products").expect("warpgroup products").0;
    [before.rsplit(' ').next().unwrap(), split].map(|number| number.parse().unwrap())
}

/// Rows of groups, n and k, and whether there are two matrices.
type Shape = (&'static [usize], [usize; 2], bool);

/// Widths and splits of the kernels that these shapes reached, each by starts, in slots or both, with more parts than clusters run at once.
fn walk(rng: &mut Noise, shapes: &[Shape], places: &[bool]) -> Vec<(bool, usize, usize)> {
    let Some(handle) = hopper() else { return Vec::new() };
    let mut kernels = std::collections::BTreeSet::new();
    for (pair, usuals) in [(PAIRS[0], &[32, 128][..]), (PAIRS[12], &[128])] {
        for (j, (counts, [n, k], gated)) in shapes.iter().copied().enumerate() {
            // The same experts by starts and in slots: to make as many is most of the time.
            let rows = places.iter().map(|slots| rows_for(counts, *slots)).max().unwrap();
            let each = if gated { 2 * n } else { n };
            let mut of = Experts::new(&handle, rng, rows, [counts.len(), each, k], pair);
            for (usual, slots) in usuals.iter().flat_map(|usual| places.iter().map(|slots| (*usual, *slots))) {
                let text = check_of(&handle, rng, &mut of, counts, (usual, WIDE[j % 3]), (slots, gated));
                let [width, split] = cut(&text);
                kernels.insert((is_e2m1(pair.1), width, split));
                // Without those that a start between multiples of eight adds.
                let parts =
                    counts.iter().map(|count| count.div_ceil(width)).sum::<usize>() * n / if gated { 64 } else { 128 };
                let at_once = handle.device().sm_count as usize * RESIDENTS / split;
                assert!(parts > at_once, "{parts} parts for {at_once} clusters, no second one: {text}");
            }
        }
    }
    kernels.into_iter().collect()
}

/// Those of every width with these splits; none where no GPU answers.
fn every(splits: &[usize], reached: &[(bool, usize, usize)]) {
    let widths = [(false, 48), (true, 32), (true, 64)];
    let all = widths.map(|(e2m1, width)| splits.iter().map(|split| (e2m1, width, *split)).collect::<Vec<_>>());
    assert!(reached.is_empty() || reached == all.concat(), "{reached:?}");
}

/// Every width of the kernels, in clusters of one block, two and four.
#[test]
fn clusters_walk_several_parts() {
    let reached = walk(
        &mut Noise::new(315),
        &[
            (&[300, 0, 257, 64, 131], [6400, 128], false),
            (&[100, 70, 0, 30], [3200, 7168], false),
            (&[130, 190], [1280, 7168], true),
            (&[130, 0, 190, 68], [1280, 3584], true),
        ],
        &[false, true],
    );
    every(&[1, 2, 4], &reached);
}

/// As few of them as show it, for runs under racecheck.
#[test]
fn second_parts_once() {
    let reached =
        walk(&mut Noise::new(316), &[(&[300, 70], [6400, 128], false), (&[300, 70], [1280, 7168], false)], &[false]);
    every(&[1, 4], &reached);
}
