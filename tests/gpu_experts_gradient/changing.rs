//! One captured graph of clearing, casts and gradients in one launch, whose launches find groups elsewhere, all rows that were planned, and numbers beyond them.

use super::*;

/// Rows that are planned: no multiple of 128.
const ROWS: usize = 1040;

/// Starts and counts as they are told, and how many rows from where are taken; how many groups are not taken as told.
type Told = ([i64; GROUPS], [i64; GROUPS], [(usize, usize); GROUPS], u32);

const LAUNCHES: [Told; 7] = {
    const NONE: (usize, usize) = (0, 0);
    let usual = (
        [0, 256, 256, 384, 896, 1024],
        [200, 0, 128, 300, 1, 16],
        [(0, 200), NONE, (256, 128), (384, 300), (896, 1), (1024, 16)],
        0,
    );
    // All rows: of other groups, and of one alone.
    let moved = (
        [0, 0, 128, 128, 512, 640],
        [0, 128, 0, 384, 128, 400],
        [NONE, (0, 128), NONE, (128, 384), (512, 128), (640, 400)],
        0,
    );
    let one = ([0, 1040, 1040, 1040, 1040, 1040], [1040, 0, 0, 0, 0, 0], [(0, 1040), NONE, NONE, NONE, NONE, NONE], 0);
    // Below 0, more than up to the next, at no multiple of 128, before an earlier one, behind the end.
    let odd = (
        [-128, 0, 128, 388, 256, 1152],
        [100, 300, 200, 100, 100, 100],
        [NONE, (0, 128), (128, 200), NONE, NONE, NONE],
        5,
    );
    // Clearing at multiples of 4 takes rows from 516 on for a group's, so that they are NaN in the casts; here nobody sums over them. Where all groups share a scale it would be NaN, too: there
    // rows are cleared as this product takes groups.
    let beyond = (
        [0, 128, 516, 640, i64::MAX, i64::MIN],
        [i64::MAX, -1, 100, i64::MAX, 5, 5],
        [(0, 128), NONE, NONE, (640, 400), NONE, NONE],
        6,
    );
    [usual, moved, beyond, one, odd, ([0; GROUPS], [0; GROUPS], [NONE; GROUPS], 0), usual]
};

/// In slots of 128 rows: up to all of them, and beyond.
const IN_SLOTS: [Told; 5] = {
    const STARTS: [i64; GROUPS] = [0, 128, 256, 384, 512, 640];
    let usual = (STARTS, [0, 1, 127, 128, 64, 16], [(0, 0), (128, 1), (256, 127), (384, 128), (512, 64), (640, 16)], 0);
    let all = [(0, 128), (128, 128), (256, 128), (384, 128), (512, 128), (640, 128)];
    let beyond = (
        STARTS,
        [129, -1, i64::MAX, i64::MIN, 128, 300],
        [(0, 128), (128, 0), (256, 128), (384, 0), (512, 128), (640, 128)],
        5,
    );
    [usual, (STARTS, [128; GROUPS], all, 0), beyond, (STARTS, [0; GROUPS], [(0, 0); GROUPS], 0), usual]
};

/// E4M3, and dY in E5M2, by starts and in slots. All operands lie between guards: dW of groups that have rows, what is cleared and cast, and the count are written, and nothing else.
#[test]
fn a_captured_graph_takes_any_starts_and_counts() {
    for (family, format) in [(KernelFamily::Sm90, Fp8Format::E4M3), (KernelFamily::Sm90E5m2, Fp8Format::E5M2)] {
        let Some(handle) = handle_with(family) else { return };
        handle.load_kernels(&[family, KernelFamily::Fp8, KernelFamily::Grouped]).unwrap();
        check(&handle, [Scheme::Fp8Group1x128(format), SCHEME], ROWS, &LAUNCHES, None);
        check(&handle, [Scheme::Fp8Tensor(format), Scheme::Fp8Tensor(Fp8Format::E4M3)], ROWS, &LAUNCHES, None);
        check(&handle, [Scheme::Fp8Row(format), Scheme::Fp8Row(Fp8Format::E4M3)], ROWS, &LAUNCHES, None);
        check(
            &handle,
            [Scheme::Fp8Row(format), Scheme::Fp8Row(Fp8Format::E4M3)],
            GROUPS * 128 + 48,
            &IN_SLOTS,
            Some(128),
        );
        // Rows behind the last slot are of no group.
        check(&handle, [Scheme::Fp8Group1x128(format), SCHEME], GROUPS * 128 + 48, &IN_SLOTS, Some(128));
    }
}

fn check(handle: &Handle, schemes: [Scheme; 2], all_rows: usize, launches: &[Told], slot: Option<usize>) {
    let mut of = Experts { schemes, ..Experts::new(101, all_rows, GROUPS) };
    let shared = of.share_scales();
    of.dw.chunks_mut(STRIDE).for_each(|row| row[FEATURES..].fill(f32::NAN));
    // Up to the end of the last row.
    let upto = GROUPS * OUT * STRIDE - (STRIDE - FEATURES);
    let before_dw = bytes_of(DType::F32, &of.dw[..upto]);
    let mut arena = Arena::new(handle, 16 << 20);
    let mut dw = arena.place(handle, &before_dw, 16);
    let at = arena.last();
    let mut always = Vec::new();
    let mut on = [OUT, FEATURES].map(|cols| {
        let on = arena.place(handle, &vec![0xFF; all_rows * cols * 2], 16);
        always.push(arena.last());
        on
    });
    let [mut dy_t, mut x_t] = [(schemes[0], OUT), (schemes[1], FEATURES)].map(|(scheme, cols)| {
        let (target, written) = arena.target(handle, scheme, [cols, all_rows]);
        always.extend(written);
        target
    });
    let [mut starts, mut counts] = [(); 2].map(|()| arena.numbers(handle, &[0; GROUPS]));
    let mut clamped = arena.place(handle, &[0x77; 4], 4);
    let counter = arena.last();
    always.push(counter.clone());
    let graph = capture_owned(handle, || {
        let places = || match slot {
            Some(slot_rows) => GroupedRows::Masked { slot_rows, counts: counts.view() },
            None => GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() },
        };
        for (on, to) in on.iter_mut().zip([&mut dy_t, &mut x_t]) {
            let (cols, scheme) = (to.rows(), to.scheme());
            let mut rows = MatMut::new(&mut *on, DType::Bf16, all_rows, cols)?;
            handle.clear_between_groups_at(if shared { 128 } else { 4 }, &mut rows, GROUPS, &places(), None)?;
            let x = MatRef::new(&*on, DType::Bf16, all_rows, cols)?;
            handle.quantize_into(&x, Recipe::new(scheme), QuantizeTo::Transposed(to))?;
        }
        let of = GroupedWeightGradient::whole(&dy_t, &x_t, GROUPS, places(), target(&mut dw, GROUPS));
        handle.grouped_weight_gradient(of.clamped(clamped.view_mut()))
    });
    let graph = graph.unwrap();
    for (launch, (told_starts, told_counts, taken, bad)) in launches.iter().copied().enumerate() {
        let words = format!("{schemes:?}, slots of {slot:?}, launch {launch}");
        for (on, all) in on.iter_mut().zip([&of.dy, &of.x]) {
            // Between groups lies anything.
            let mut rows = Array2::from_elem(all.raw_dim(), f32::NAN);
            for (start, count) in taken {
                let part = s![start..start + count, ..];
                rows.slice_mut(part).assign(&all.slice(part));
            }
            handle.write(&mut on.view_mut(), &bytes_of(DType::Bf16, rows.iter())).unwrap();
        }
        handle.write(&mut starts.view_mut(), &told_starts).unwrap();
        handle.write(&mut counts.view_mut(), &told_counts).unwrap();
        handle.write(&mut dw.view_mut(), &before_dw).unwrap();
        let written = (0..GROUPS)
            .filter(|g| taken[*g].1 > 0)
            .flat_map(|g| places_of_rows(at.start + g * OUT * STRIDE * 4, OUT, FEATURES * 4, STRIDE * 4));
        let written: Vec<_> = written.chain(always.iter().cloned()).collect();
        let before = arena.ready(handle);
        handle.launch(&graph).unwrap();
        let after = arena.read_behind(handle, &before, &written, &words);
        let (found, want) = (values_of(DType::F32, &after[at.clone()]), of.one_by_one(handle, &taken));
        let wrong = found.iter().zip(&want).position(|(found, want)| found.to_bits() != want.to_bits());
        let place = wrong.map(|at| [at / STRIDE / OUT, at / STRIDE % OUT, at % STRIDE]);
        assert_eq!(place, None, "{words}: the first group, row and column that differs");
        assert_eq!(after[counter.clone()], bad.to_le_bytes(), "clamped, {words}");
    }
}

/// Where groups are taken to lie is what the words of `GroupedRows` and `GroupedWeightGradient::whole` say, where there is no GPU either.
#[test]
fn what_changes_is_taken_as_the_words_say() {
    let all = LAUNCHES.map(|told| (told, ROWS as i64)).into_iter().chain(IN_SLOTS.map(|told| (told, 768)));
    for ((starts, counts, taken, bad), end) in all {
        let (mut largest, mut clamped) = (0, 0);
        for (g, (start, count)) in starts.into_iter().zip(counts).enumerate() {
            let next = starts.get(g + 1).copied().unwrap_or(end).min(end);
            let is_one = start >= largest && start % 128 == 0;
            let rows = if is_one { count.clamp(0, next.saturating_sub(start).max(0)) } else { 0 };
            largest = largest.max(start);
            clamped += u32::from(count != rows);
            assert_eq!(rows as usize, taken[g].1, "{starts:?}, {counts:?}, group {g}");
            assert!(rows == 0 || start as usize == taken[g].0, "{starts:?}, {counts:?}, group {g}");
        }
        assert_eq!(clamped, bad, "{starts:?}, {counts:?}");
    }
}
