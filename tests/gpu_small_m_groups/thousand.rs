//! A thousand groups of plain rows, of which most have none and many one, by starts and in slots of four rows, other counts at each launch of a graph: the bits of each alone.

use super::*;

const GROUPS: usize = 1000;
const ROWS: usize = 4096;
const SLOT: usize = 4;

/// By starts or in slots, as of so many usual rows.
fn launch<'a>(
    of: &'a Experts,
    (is_masked, usual): (bool, usize),
    starts: &'a DeviceBuffer,
    counts: &'a DeviceBuffer,
) -> Launch<'a> {
    let starts = if is_masked { None } else { Some(starts) };
    Launch { of, starts, slot_rows: SLOT, counts, usual, out: DType::Bf16, gap: 0 }
}

#[test]
fn a_thousand_groups() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(314);
    handle.load_kernels(&[KernelFamily::SmallMGroups]).unwrap();
    for pair in
        [(DType::Bf16, Scheme::Nvfp4), (DType::Bf16, Scheme::Fp8Group128x128(F)), (DType::F16, Scheme::Fp8Row(F))]
    {
        let of = Experts::new(&handle, &mut rng, ROWS, [GROUPS, 128, 160], pair);
        let [mut starts, mut counts] = [(); 2].map(|()| handle.upload(&[0i64; GROUPS]).unwrap());
        let mut d = handle.upload(&vec![0xFFu8; ROWS * 128 * 2]).unwrap();
        for is_masked in [false, true] {
            // As of few rows, and of many.
            let hows = [1, 16, 300].map(|usual| (is_masked, usual));
            let graphs = hows.map(|how| {
                let mut enqueue =
                    || launch(&of, how, &starts, &counts).enqueue(&handle, &mut d, false, &End::default());
                // Of many rows A is arranged in scratch memory, which is not reserved in a capture.
                enqueue().unwrap();
                capture_owned(&handle, enqueue).unwrap()
            });
            for turn in 0..4 {
                let told = counts_of_a_thousand(turn);
                let mut at = 0;
                let place = |(g, count): (usize, &i64)| match is_masked {
                    true => (SLOT * g, (*count as usize).min(SLOT)),
                    false => {
                        let start = at;
                        at += (*count as usize).next_multiple_of(4);
                        (start, *count as usize)
                    }
                };
                let taken: Vec<_> = told.iter().enumerate().map(place).collect();
                let begins: Vec<_> = taken.iter().map(|(start, _)| *start as i64).collect();
                handle.write(&mut starts.view_mut(), &begins).unwrap();
                handle.write(&mut counts.view_mut(), &told).unwrap();
                let want = launch(&of, hows[0], &starts, &counts).want(&handle, &taken, false, &End::default());
                for (graph, how) in graphs.iter().zip(hows) {
                    handle.write(&mut d.view_mut(), &vec![0xFFu8; ROWS * 128 * 2]).unwrap();
                    handle.launch(graph).unwrap();
                    let found = handle.read_bytes(&d.view()).unwrap();
                    let wrong = found.chunks(256).zip(want.chunks(256)).position(|(found, want)| found != want);
                    assert_eq!(wrong, None, "the first row that differs: {pair:?}, {how:?}, turn {turn}");
                }
            }
        }
    }
}
